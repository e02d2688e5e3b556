"""The numbers of replicas where the data do not say them."""

from __future__ import annotations

import polars as pl

from trace_export.model import INT, RANKS, SPANS, conform
from trace_export.pipeline.replicas import guess_replicas, number_replicas


def test_ranks_that_agree_in_their_places_form_a_replica() -> None:
    """Two stages, dp 2, tp 2: four replicas; a rank without a stage is in none."""
    rows = [(rank, rank // 4, rank // 2 % 2, rank % 2) for rank in range(8)] + [(8, None, 0, 0)]
    ranks = conform(pl.DataFrame(rows, schema=["rank", "stage", "dp", "tp"], orient="row"), RANKS)
    assert number_replicas(ranks)["replica"].to_list() == [0, 1, 2, 3] * 2 + [None]


def test_ranks_of_a_stage_that_nothing_distinguishes_are_numbered_in_order() -> None:
    ranks = conform(pl.DataFrame({"rank": [3, 2, 1, 0], "stage": [1, 1, 0, 0]}), RANKS)
    assert number_replicas(ranks)["replica"].to_list() == [1, 0, 1, 0]


def test_a_stage_of_one_rank_is_its_first_replica() -> None:
    unknown = pl.lit(None, INT)
    places = pl.DataFrame({"rank": [0, 1], "stage": [0, 1]}).with_columns(dp=unknown, tp=unknown, cp=unknown)
    found, notes = guess_replicas(places, conform(places, RANKS), conform(pl.DataFrame(), SPANS))
    assert found.select("rank", "dp", "tp", "cp").rows() == [(0, 0, 0, None), (1, 0, 0, None)]
    assert notes == []


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
