"""Which times are valid: the short test of a table against the test of each row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from trace_export.model import SPANS, Profile, conform
from trace_export.sources.shared.timestamps import LATEST_NS, valid_unix_times, without_invalid_times

TIMES = st.sampled_from([None, -(1 << 63), -1, 0, 1, 5, LATEST_NS - 1, LATEST_NS, (1 << 63) - 1])


@given(st.lists(st.tuples(TIMES, TIMES), max_size=4))
def test_the_rows_that_stay_are_those_with_valid_times(rows: list[tuple[int | None, int | None]]) -> None:
    times = pl.DataFrame(rows, {"start_ns": pl.Int64, "end_ns": pl.Int64}, orient="row")
    profile = replace(Profile(), spans=conform(times, SPANS))
    kept = without_invalid_times(profile, Path("x"))
    expected = times.filter(valid_unix_times().fill_null(True))
    assert kept.spans.select("start_ns", "end_ns").rows() == expected.rows()
    assert [note.count for note in kept.notes] == [len(rows) - expected.height] * (expected.height < len(rows))
