"""Tables in the order of some columns, and names in the order of their numbers. Most tables stand in it already, and to
look takes a tenth of the time of sorting."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

DIGITS = 18
"""A longer row of digits in a name is no number that something was counted with: it is sorted as text."""
DENSE = 4
"""Numbers that are at most this many times as many as what they number are not made dense, which takes a sort."""


def is_ordered(frame: pl.DataFrame, *keys: str, strictly: bool = False) -> bool:
    """Whether the rows stand in the order of `keys`, columns of whole numbers; `strictly`: and no two are equal in all
    of them. False where a key is null."""
    if any(frame[key].null_count() for key in keys):
        return False
    equal = np.ones(max(frame.height - 1, 0), bool)
    for key in keys:
        values = frame[key].to_numpy()
        if (equal & (values[1:] < values[:-1])).any():
            return False
        equal &= values[1:] == values[:-1]
    return not (strictly and equal.any())


def only(frame: pl.DataFrame, which: pl.Expr) -> pl.DataFrame:
    """The rows of `which`; where these are all, the same columns: a filter would copy them."""
    chosen = frame.select(which.fill_null(False)).to_series()
    return frame if chosen.all() else frame.filter(chosen)


def stretches(frame: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """A row for each stretch of rows that are equal in `keys`: `len`, the number of its rows, and `keys`. Where rows
    that share a fact mostly stand together, it is worked out once for each stretch, and `repeated` for its rows."""
    return frame.select(pl.struct(keys).rle().struct.unnest()).unnest("value")


def repeated(facts: pl.Series, lengths: pl.Series) -> pl.Series:
    """For each row what its stretch has; none is null. `lengths`: `len` of the stretches."""
    return pl.Series(facts.name, np.repeat(facts.to_numpy(), lengths))


def run_number(*keys: str) -> pl.Expr:
    """Numbers the runs of rows that are equal in `keys`. Rows that mostly stand together are grouped in a third of the
    time by these numbers first, and then their few groups by the keys."""
    return pl.struct(keys).rle_id().set_sorted().alias("run_number")


def group_number(frame: pl.DataFrame, *keys: str) -> pl.Series:
    """`group`: the number of each row's group of rows that are equal in `keys`, in the order of these. Where rows of a
    group mostly stand together, grouping by it takes two thirds of the time."""
    runs = stretches(frame, *keys)
    number = runs.select(pl.struct(keys).rank("dense").alias("group")).to_series()
    of_row = repeated(number, runs["len"])
    return of_row.set_sorted() if number.is_sorted() else of_row


def ordered(frame: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """`frame` in the order of `keys`, columns of whole numbers; equal rows as they were."""
    if is_ordered(frame, *keys):
        return frame
    if not any(frame[key].null_count() for key in keys):
        rows, told_apart = _merged(frame, *keys)
        if told_apart == len(keys) or is_ordered(frame.select(keys)[rows], *keys):
            return frame[rows]
    rows = frame.select(keys).with_row_index("row number").sort(*keys, maintain_order=True)["row number"]
    return frame[rows]


def _merged(frame: pl.DataFrame, *keys: str) -> tuple[pl.Series, int]:
    """The rows of a table that has some, in the order of as many of `keys` as fit into one number, and how many these
    are. Once the rows of a rank are together they are a few runs in the order of time, which a stable sort merges."""
    first = frame[keys[0]].to_numpy()
    number, size, told_apart = np.zeros(len(first), np.int64), 1, 0
    for key in keys:
        values = frame[key].to_numpy().astype(np.int64, copy=False)
        low, high = int(values.min()), int(values.max())
        size *= high - low + 1
        if size > np.iinfo(np.int64).max:
            break
        number, told_apart = number * (high - low + 1) + (values - low), told_apart + 1
    short = first.min() >= 0 and first.max() < 1 << 16  # NumPy sorts such in half the time
    rows = np.argsort(first.astype(np.uint16) if short else first, kind="stable")
    rows = rows[np.argsort(number[rows], kind="stable")]
    return pl.Series(rows if len(rows) >= 1 << 32 else rows.astype(np.uint32)), told_apart


def distinct(numbers: npt.NDArray[np.integer[Any]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.integer[Any]]]:
    """The values of `numbers`, which are not negative, and the place of each row's among them: without a sort where
    they are not much larger than the rows are many."""
    if numbers.max(initial=0) > DENSE * len(numbers):
        values, index = np.unique(numbers, return_inverse=True)
        return values.astype(np.int64), index
    there = np.zeros(int(numbers.max(initial=-1)) + 1, np.bool_)
    there[numbers] = True
    return np.flatnonzero(there), (np.cumsum(there, dtype=np.int32) - 1)[numbers]


def rows_by(numbers: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int32]:
    """The rows of `numbers`, none of which is negative, in their order; equal ones as they were. NumPy sorts 16 bits in
    a fraction of the time, so that two such sorts take half of that of one."""
    most = int(numbers.max(initial=0))
    if most >= 1 << 32:
        return np.argsort(numbers, kind="stable").astype(np.int32)
    low = np.argsort(numbers.astype(np.uint16), kind="stable").astype(np.int32)  # by the lower 16 bits
    return low if most < 1 << 16 else low[np.argsort((numbers >> 16).astype(np.uint16)[low], kind="stable")]


def packed(*keys: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.integer[Any]]:
    """For each row the number of those with the same keys, in the order of these; not many more than rows."""
    number, bound = np.zeros(len(keys[0]), np.int64), 1
    for key in keys:
        low = int(key.min(initial=0))
        size = int(key.max(initial=0)) - low + 1
        number *= size  # in place: a fresh column takes longer than to calculate
        number += key
        number -= low
        bound *= size
        if bound > DENSE * len(number) and number.max(initial=0) > DENSE * len(number):
            number = distinct(number)[1].astype(np.int64)
            bound = int(number.max(initial=0)) + 1
    return number


def rows_of(numbers: npt.NDArray[np.integer[Any]], asked: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.integer[Any]]:
    """The row of each of the `asked` numbers among the `numbers`, which rise; of others how many rows there are. A
    table takes a third of the time of a search; it is made where it is not much longer than both."""
    low, high, nowhere = (int(asked.min(initial=0)), int(asked.max(initial=0)), len(numbers))
    low, high = int(numbers.min(initial=low)), int(numbers.max(initial=high))
    if high - low < DENSE * (nowhere + len(asked)):
        table = np.full(high - low + 1, nowhere, np.int32)
        table[numbers - low] = np.arange(nowhere, dtype=np.int32)
        rows: npt.NDArray[np.integer[Any]] = table[asked - low]
        return rows
    at = np.searchsorted(numbers, asked)
    return np.where(np.append(numbers, -1)[at] == asked, at, nowhere)


def natural(text: str) -> tuple[tuple[int, int | str], ...]:
    """A sort key that puts machine2 before machine10."""
    parts = (part for part in re.split(r"(\d+)", text) if part)
    return tuple((0, int(part)) if part.isdecimal() and len(part) <= DIGITS else (1, part) for part in parts)
