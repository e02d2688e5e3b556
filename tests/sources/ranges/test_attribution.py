"""Which range a launch belongs to: the definition against the program, and the cost of deep nesting."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from trace_export.sources.ranges.attribution import NONE, Enclosing, RangeIndex, last_above

SCHEMA = {"id": pl.Int64, "thread": pl.Int64, "start": pl.Int64, "end": pl.Int64}

times = st.integers(-3, 25)
ranges = st.lists(st.tuples(st.integers(0, 2), times, st.integers(0, 12)), max_size=12)
launches = st.lists(st.tuples(st.integers(0, 3), times), min_size=1, max_size=20)


def frame(rows: list[tuple[int, int, int]]) -> pl.DataFrame:
    """Rows of (thread, start, length)."""
    table = [(i, thread, start, start + length) for i, (thread, start, length) in enumerate(rows)]
    return pl.DataFrame(table, SCHEMA, orient="row")


def innermost(rows: pl.DataFrame, moment: int) -> int:
    """The latest start around the moment; of equal starts the earliest end, of equal ranges the last."""
    around = [(start, -end, i) for i, _, start, end in rows.iter_rows() if start <= moment < end]
    return max(around)[2] if around else NONE


@given(ranges, launches)
def test_a_launch_belongs_to_the_innermost_range_of_its_thread_or_else_of_any(
    rows: list[tuple[int, int, int]], calls: list[tuple[int, int]]
) -> None:
    table = frame(rows)
    expected = []
    for thread, moment in calls:
        own = innermost(table.filter(pl.col("thread") == thread), moment)
        expected.append(innermost(table, moment) if own == NONE else own)
    threads, moments = (np.array(column) for column in zip(*calls, strict=True))
    assert RangeIndex(table).find(moments, threads).tolist() == expected


@given(st.lists(st.integers(0, 30), min_size=1, max_size=40), st.data())
def test_the_last_place_above_a_floor(values: list[int], data: st.DataObject) -> None:
    values = [31, *values]
    asked = st.tuples(st.integers(0, len(values) - 1), st.integers(0, 30))
    at, floors = (np.array(c) for c in zip(*data.draw(st.lists(asked, min_size=1)), strict=True))
    expected = [max(i for i in range(a + 1) if values[i] > floor) for a, floor in zip(at, floors, strict=True)]
    assert last_above(np.array(values), at, floors).tolist() == expected


def test_ranges_nested_a_hundred_thousand_deep() -> None:
    """A search that went out of the ranges one by one would make 10¹⁰ steps here."""
    depth = 100_000
    deep = np.arange(depth)
    after = depth + 2 * np.arange(depth)
    starts, ends = np.concatenate([deep, after]), np.concatenate([10 * depth - deep, after + 1])
    table = pl.DataFrame({"id": np.arange(2 * depth), "thread": 0, "start": starts, "end": ends})
    found = Enclosing(table, threads=False)
    nowhere = np.zeros(depth, np.int64)
    assert (found.find(after, nowhere) == depth + np.arange(depth)).all()
    assert (found.find(after + 1, nowhere) == depth - 1).all()
    assert (found.find(10 * depth - deep, nowhere) == deep - 1).all()


def test_a_launch_at_the_largest_number_is_outside() -> None:
    """A damaged database may hold any stamp: the last moment has no range after it."""
    largest = np.iinfo(np.int64).max
    ranges = pl.DataFrame({"id": [0], "thread": [7], "start": [10], "end": [20]})
    found = RangeIndex(ranges).find(np.array([15, largest]), np.array([7, 7]))
    assert found.tolist() == [0, NONE]
