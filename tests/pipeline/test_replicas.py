"""The numbers of replicas where the data do not say them."""

import polars as pl

from trace_export.model import INT, RANKS, SPANS, conform
from trace_export.pipeline.replicas import guess_replicas


def guessed(late_ns: list[int], stages: list[int]) -> list[tuple[int, int, int]]:
    """rank, dp, tp of ranks in `stages` whose blocks of 900 ns start so much later than those of the first."""
    rows = [
        {"rank": rank, "host": "h", "kind": "F", "microbatch": n, "start_ns": 1000 * n + late, "end_ns": 1000 * n + 900}
        for rank, late in enumerate(late_ns)
        for n in range(8)
    ]
    unknown, count = pl.lit(None, INT), len(stages)
    places = pl.DataFrame({"rank": range(count), "stage": stages, "origin": ["guessed"] * count}).with_columns(
        dp=unknown, tp=unknown, cp=unknown
    )
    ranks = conform(pl.DataFrame({"rank": range(count), "host": ["h"] * count}), RANKS)
    result, notes = guess_replicas(places, ranks, conform(pl.DataFrame(rows), SPANS))
    assert [note.code for note in notes] == ["tensor-parallel-guessed"]
    return result.select("rank", "dp", "tp").rows()


def test_peers_of_unequal_number_are_replicas_of_their_own() -> None:
    """Two of the three ranks of a stage start their blocks together: that is not tensor parallelism."""
    assert guessed([0, 0, 300], [0, 0, 0]) == [(0, 0, 0), (1, 1, 0), (2, 2, 0)]


def test_a_slow_rank_starts_after_its_peer() -> None:
    """The third pair of four is apart: its second rank has more to do after what the first waits for."""
    result = guessed([0, 0, 300, 300, 100, 180, 400, 400], [0, 0, 0, 0, 1, 1, 1, 1])
    assert [(dp, tp) for _, dp, tp in result] == [(0, 0), (0, 1), (1, 0), (1, 1)] * 2
