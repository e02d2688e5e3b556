"""Which times are valid, whether a table is tested by its extremes or row by row."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from trace_export.model import SPANS, Profile, conform
from trace_export.sources.shared.timestamps import valid_task_times, without_invalid_times

TIMES = st.sampled_from([None, -(1 << 63), -1, 0, 1, 5, (1 << 62) - 1, 1 << 62, (1 << 63) - 1])
DAY_NS = 86_400 * 10**9
EDGES = (-(1 << 62), 1 - (1 << 62), -DAY_NS, -1, 0, 1, DAY_NS, DAY_NS + 1, (1 << 62) - 1, 1 << 62, (1 << 63) - 1)


def may_be_valid(start: int | None, end: int | None) -> bool:
    """A time that is missing is not held against a row."""
    ordered = start is None or end is None or start <= end
    return ordered and (start is None or start > 0) and (end is None or end < 1 << 62)


@given(st.lists(st.tuples(TIMES, TIMES), max_size=4))
def test_the_rows_that_stay_are_those_with_valid_times(rows: list[tuple[int | None, int | None]]) -> None:
    times = pl.DataFrame(rows, {"start_ns": pl.Int64, "end_ns": pl.Int64}, orient="row")
    profile = replace(Profile(), spans=conform(times, SPANS))
    kept = without_invalid_times(profile, Path("x"))
    expected = [row for row in rows if may_be_valid(*row)]
    assert kept.spans.select("start_ns", "end_ns").rows() == expected
    assert [note.count for note in kept.notes] == [len(rows) - len(expected)] * (len(expected) < len(rows))


def test_a_shifted_clock_has_times_below_0_but_not_0() -> None:
    pairs = list(product(EDGES, EDGES))
    start, end = np.array(pairs).T
    expected = [s != 0 and -(1 << 62) < s <= e < 1 << 62 and e - s <= DAY_NS for s, e in pairs]
    assert valid_task_times(start, end).tolist() == expected
    frame = pl.DataFrame({"start": start, "end": end})
    assert frame.select(valid_task_times(pl.col("start"), pl.col("end"))).to_series().to_list() == expected
