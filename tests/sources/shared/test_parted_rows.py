"""Rows in parts by a number, in memory and in a temporary file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest.mock import patch

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_export.sources.shared import parted_rows
from trace_export.sources.shared.parted_rows import PartedRows

Keys = st.lists(st.lists(st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-40, 40), max_size=30), max_size=6)


@pytest.mark.parametrize("most", [0, 400, 1 << 20])
@settings(max_examples=25)
@given(launches=Keys, kernels=Keys)
def test_all_rows_are_there_in_their_order_and_equal_keys_together(
    most: int, launches: list[list[int]], kernels: list[list[int]]
) -> None:
    given = {"launches": launches, "kernels": kernels}
    with patch.object(parted_rows, "MOST_BYTES", most), PartedRows("id", *given) as rows:
        for table, pieces in given.items():
            for number, keys in enumerate(pieces):
                rows.add(table, pl.DataFrame({"id": keys, "piece": number}, {"id": pl.Int64, "piece": pl.Int64}))
        found: dict[str, list[tuple[int, int]]] = {table: [] for table in given}
        seen: dict[int, int] = {}
        for part, tables in enumerate(rows.parts()):
            for table, frames in tables.items():
                for key, piece in (row for frame in frames for row in frame.iter_rows()):
                    assert seen.setdefault(key, part) == part
                    found[table].append((key, piece))
        assert rows.count == {table: sum(map(len, pieces)) for table, pieces in given.items()}
    for table, pieces in given.items():
        expected = [(key, number) for number, keys in enumerate(pieces) for key in keys]
        assert sorted(found[table]) == sorted(expected)
        for key in seen:
            assert [row for row in found[table] if row[0] == key] == [row for row in expected if row[0] == key]


def test_a_folder_that_takes_nothing_is_an_error(tmp_path: Path) -> None:
    with (
        patch.object(tempfile, "tempdir", str(tmp_path / "gone")),
        patch.object(parted_rows, "MOST_BYTES", 0),
        PartedRows("id", "rows") as rows,
        pytest.raises(FileNotFoundError),
    ):
        rows.add("rows", pl.DataFrame({"id": [1]}))
