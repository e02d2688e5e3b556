"""The numbers of replicas where the data do not say them."""

from __future__ import annotations

import polars as pl

from trace_export.model import INT, RANKS, SPANS, conform
from trace_export.pipeline.replicas import guess_replicas


def test_a_stage_of_one_rank_is_its_first_replica() -> None:
    unknown = pl.lit(None, INT)
    places = pl.DataFrame({"rank": [0, 1], "stage": [0, 1]}).with_columns(dp=unknown, tp=unknown, cp=unknown)
    found, notes = guess_replicas(places, conform(places, RANKS), conform(pl.DataFrame(), SPANS))
    assert found.select("rank", "dp", "tp", "cp").rows() == [(0, 0, 0, None), (1, 0, 0, None)]
    assert notes == []
