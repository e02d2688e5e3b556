"""The numbers of replicas where the data do not say them."""

from __future__ import annotations

import polars as pl

from trace_export.model import INT, RANKS, SPANS, conform
from trace_export.pipeline.replicas import guess_replicas


def test_peers_of_unequal_number_are_replicas_of_their_own() -> None:
    """Two of the three ranks of a stage start their blocks together: that is not tensor parallelism."""
    rows = [
        {"rank": rank, "host": "h", "kind": "F", "microbatch": n, "start_ns": 1000 * n + late, "end_ns": 1000 * n + 900}
        for rank, late in ((0, 0), (1, 0), (2, 300))
        for n in range(8)
    ]
    unknown = pl.lit(None, INT)
    places = pl.DataFrame({"rank": [0, 1, 2], "stage": [0, 0, 0], "origin": ["guessed"] * 3}).with_columns(
        dp=unknown, tp=unknown, cp=unknown
    )
    ranks = conform(pl.DataFrame({"rank": [0, 1, 2], "host": ["h"] * 3}), RANKS)
    found, notes = guess_replicas(places, ranks, conform(pl.DataFrame(rows), SPANS))
    assert found.select("rank", "dp", "tp").rows() == [(0, 0, 0), (1, 1, 0), (2, 2, 0)]
    assert [note.code for note in notes] == ["tensor-parallel-guessed"]
