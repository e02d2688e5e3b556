"""The search for a window offset: two recordings of one sequence of operations that begin at different operations.

Profilers start and stop at a different moment on each rank, so that the i-th operation of one recording is the (i +
k)-th of the other, with one window offset k for the whole recording. It is found by trying: under the right one the
times of the pairs agree. The caller decides by which measure.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

FEW_OFFSETS = 6
"""If both recordings are equally long, a window may begin this many operations earlier or later: more than the
micro-batches that fit into the largest difference drawn by tests/clocks/test_random.py (60 ms on each side)."""
MOST_OFFSETS = 64
"""The bound of the search, whose time is proportional to it."""
CLEARLY = 3.0
"""How many times better than its rival a window offset must fit to be believed. Of the pairs found in cut windows
0.31 % are wrong with 1, 0.28 % with 3 and 0.15 % with 6; each finds 99.5 % of the pairs."""


def candidates(difference: int) -> range:
    """The window offsets to try, for recordings whose lengths differ by `difference` operations."""
    most = min(FEW_OFFSETS + difference, MOST_OFFSETS)
    return range(-most, most + 1)


def fit_under(
    left: pl.DataFrame, right: pl.DataFrame, offset: int, by: Sequence[str], **measures: pl.Expr
) -> pl.DataFrame:
    """How well the i-th operation of `left` and the (i + `offset`)-th of `right` of each channel fit.

    Both have the columns channel and `at`, the operation's sequence number, and are best sorted by them. Returns a row
    for each `by` with `n`, the number of pairs, the `measures` (aggregations over the pairs, in which columns of
    `right` that `left` has too end in `_right`) and `offset`.
    """
    moved = right.with_columns(at=pl.col("at") - offset)
    both = _joined_in_order(left, moved)
    if both is None:
        both = left.join(moved, on=["channel", "at"], suffix="_right")
    return both.group_by(by).agg(n=pl.len(), **measures, offset=pl.lit(offset, pl.Int64))


def _joined_in_order(left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame | None:
    """`left` and `right` joined by the numbers `channel` and `at`; None where both do not fit into one number. By one
    number, in order, a join takes a tenth of the time."""
    ends = [
        side.select(low=pl.col("at").min(), high=pl.col("at").max(), channel=pl.col("channel").max())
        for side in (left, right)
    ]
    low, high, most = pl.concat(ends).select(pl.col("low").min(), pl.col("high").max(), pl.col("channel").max()).row(0)
    if low is None or (most + 1) * (high - low + 1) >= 1 << 62:
        return None
    key = pl.col("channel").cast(pl.Int64) * (high - low + 1) + pl.col("at") - low
    sides = [side.with_columns(key=key) for side in (left, right)]
    ordered = [side.set_sorted("key") if side["key"].is_sorted() else side.sort("key") for side in sides]
    return ordered[0].join(ordered[1].drop("channel", "at"), on="key", suffix="_right")
