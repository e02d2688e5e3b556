"""Rows by groups of whole steps: what is computed of each step alone needs not have the columns of all at once."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from trace_export.model import STEP_KEY

GROUP = 1 << 17
"""So many rows are a group, or those of one step that has more."""


def step_groups(rows: pl.DataFrame, size: int | None = None) -> Iterator[pl.DataFrame]:
    """`rows` (with run and step) by groups of whole steps, of about `size` rows (None: `GROUP`). The steps follow each
    other by (run, step), null first; the rows of a group stand as they did."""
    size = GROUP if size is None else size
    if rows.height <= size:
        yield rows
        return
    steps = rows.group_by(STEP_KEY).len().sort(STEP_KEY)
    steps = steps.select(*STEP_KEY, group=(pl.col("len").cum_sum() - pl.col("len")).cast(pl.Int64) // size)
    numbers = rows.select(STEP_KEY).join(steps, on=STEP_KEY, how="left", nulls_equal=True, maintain_order="left")
    for number in steps["group"].unique(maintain_order=True):
        yield rows.filter(numbers["group"] == number)
