"""The trace processor in this process: values of every type, and errors."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.support.trace_processor import TraceProcessor, TraceProcessorError


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    path = tmp_path / "empty.pftrace"
    path.touch()
    return path


def test_values_of_every_type(empty: Path) -> None:
    with TraceProcessor(empty) as processor:
        first = "select 1 a, -9007199254740993 b, 1.5 c, 'ü' d, null e, '' f"
        rows = processor.query(f"{first} union all select 2, 9, 2, 'x', 3, 'y'")
    assert rows.to_dicts() == [
        {"a": 1, "b": -9007199254740993, "c": 1.5, "d": "ü", "e": None, "f": ""},
        {"a": 2, "b": 9, "c": 2.0, "d": "x", "e": 3, "f": "y"},
    ]


def test_many_rows_come_in_several_batches(empty: Path) -> None:
    numbers = "with recursive n(i) as (select 0 union all select i + 1 from n where i < 299999)"
    with TraceProcessor(empty) as processor:
        frame = processor.query(f"{numbers} select i, i || 'x' t from n")
    assert frame["i"].equals(pl.int_range(300_000, eager=True).alias("i"))
    assert frame["t"][299_999] == "299999x"


def test_no_rows_still_have_columns(empty: Path) -> None:
    with TraceProcessor(empty) as processor:
        assert processor.query("select ts, dur from slice").columns == ["ts", "dur"]


def test_wrong_sql_and_use_after_the_end(empty: Path) -> None:
    with TraceProcessor(empty) as processor, pytest.raises(TraceProcessorError, match="select 1 from nothing"):
        processor.query("select 1 from nothing")
    with pytest.raises(ValueError, match="closed"):
        processor.query("select 1")
