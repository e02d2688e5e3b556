"""One worked example for each function that is hard to read: few rows in, few rows out."""

from __future__ import annotations

import numpy as np
import polars as pl

from trace_export.chart.lanes import _chain
from trace_export.model import Declared
from trace_export.pipeline.rank_order import Counts, count, places


def test_rank_order_count() -> None:
    """16 ranks, pp 2, dp 2, tp 2: a stage has 8 ranks, so 8 / (2 * 2) = 2 are left for cp."""
    ranks = pl.Series("rank", range(16))
    assert count(ranks, Declared(pp=2, tp=2, dp=2), by_user=False) == Counts(pp=2, per_stage=8, tp=2, cp=2)


def test_rank_order_places() -> None:
    """Five of eight ranks of pp 2, dp 2, tp 2 in both orders: (stage, dp, tp)."""
    ranks, counts = pl.Series("rank", [0, 1, 2, 4, 7]), Counts(pp=2, per_stage=4, tp=2, cp=1)
    found = {
        order: places(ranks, counts, order, "recorded").select("stage", "dp", "tp").rows()
        for order in ("tp-cp-dp-pp", "tp-cp-pp-dp")
    }
    assert found == {
        "tp-cp-dp-pp": [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (1, 1, 1)],
        "tp-cp-pp-dp": [(0, 0, 0), (0, 0, 1), (1, 0, 0), (0, 1, 0), (1, 1, 1)],
    }


def test_lanes_chain() -> None:
    """Rows 0-3, 1-2, 3-6, 5-9, 6-7: the lane takes the first, then always the next that starts when it has ended."""
    start, end = np.array([0, 1, 3, 5, 6]), np.array([3, 2, 6, 9, 7])
    assert _chain(start, end, free=0).tolist() == [True, False, True, False, True]
