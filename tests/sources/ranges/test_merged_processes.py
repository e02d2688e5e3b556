"""Ranges of several processes whose tables number their rows alike, as those of a merged database do."""

from __future__ import annotations

import polars as pl

from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.ranges.ranges import RANGE, gather


def test_equal_row_numbers_of_two_processes_multiply_nothing() -> None:
    """Torch's actions, whose ends are looked up by row where they may be wrong."""
    names = ["PP:0F0", "PP:0SEND_F0", "PP:0F1", "PP:0B0"]
    rows = [
        (row, process, 1, 1_000 * row + process, 1_000 * row + 500 + process, name)
        for process in range(2)
        for row, name in enumerate(names, 1)
    ]
    ranges = gather([pl.DataFrame(rows, {**RANGE, "text": pl.String()}, orient="row")], (), Dialects.of(()))
    found = ranges.frame.sort("process", "row").select("process", "row", "start", "end").rows()
    assert found == [(process, row, start, end) for row, process, _, start, end, _ in rows]
