"""Which range a launch belongs to: the definition against the program, and the cost of deep nesting."""

import numpy as np
import polars as pl
from hypothesis import strategies as st

from trace_export.sources.ranges.attribution import NONE, Enclosing, RangeIndex

times = st.integers(-3, 25)
ranges = st.lists(st.tuples(st.integers(0, 2), times, st.integers(0, 12)), max_size=12)


def test_ranges_nested_a_hundred_thousand_deep() -> None:
    """A search that went out of the ranges one by one would make 10¹⁰ steps here."""
    depth = 100_000
    deep = np.arange(depth)
    after = depth + 2 * np.arange(depth)
    starts, ends = np.concatenate([deep, after]), np.concatenate([10 * depth - deep, after + 1])
    table = pl.DataFrame({"id": np.arange(2 * depth), "thread": 0, "start": starts, "end": ends})
    result = Enclosing(table, threads=False)
    nowhere = np.zeros(depth, np.int64)
    assert (result.find(after, nowhere) == depth + np.arange(depth)).all()
    assert (result.find(after + 1, nowhere) == depth - 1).all()
    assert (result.find(10 * depth - deep, nowhere) == deep - 1).all()


def test_a_launch_at_the_largest_number_is_outside() -> None:
    """A damaged database may hold any stamp: the last moment has no range after it."""
    largest = np.iinfo(np.int64).max
    ranges = pl.DataFrame({"id": [0], "thread": [7], "start": [10], "end": [20]})
    result = RangeIndex(ranges).find(np.array([15, largest]), np.array([7, 7]))
    assert result.tolist() == [0, NONE]
