"""Rows by groups of whole steps: computations of each step alone do not need the columns of all steps at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from trace_export.model import STEP_KEY

GROUP_ROWS = 1 << 17
"""This many rows are a group, or one step that has more."""

BELOW_ALL = -(1 << 31) - 1
"""In place of a null: less than any number of a run or step."""
STEP_NUMBERS = 1 << 33
"""Above all numbers of steps."""


def step_groups(rows: pl.DataFrame, size: int | None = None) -> Iterator[pl.DataFrame]:
    """`rows` (with run and step) by groups of whole steps, of about `size` rows (None: `GROUP_ROWS`). The steps follow
    each other by (run, step), null first; the rows of a group stand as they did."""
    size = GROUP_ROWS if size is None else size
    if rows.height <= size:
        yield rows
        return
    run, step = (rows[name].cast(pl.Int64).fill_null(BELOW_ALL).to_numpy() for name in STEP_KEY)
    key = run * STEP_NUMBERS + step
    starts = np.flatnonzero(np.append(True, key[1:] != key[:-1]))  # of stretches of rows of one step
    steps, of = np.unique(key[starts], return_inverse=True)
    lengths = np.diff(np.append(starts, len(key)))
    count = np.zeros(len(steps), np.int64)
    np.add.at(count, of, lengths)
    groups = ((np.cumsum(count) - count) // size)[of]
    if (groups[1:] >= groups[:-1]).all():
        for first in np.flatnonzero(np.append(True, groups[1:] != groups[:-1])).tolist():
            yield rows.slice(starts[first], lengths[groups == groups[first]].sum())
        return
    of_row = pl.Series(np.repeat(groups, lengths))
    for number in np.unique(groups).tolist():
        yield rows.filter(of_row == number)
