"""The registry: every row names what is there."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from trace_export.sources import formats
from trace_export.sources.folders import Found, walk
from trace_export.sources.formats import FORMATS, Format
from trace_export.sources.input_files import releases_gil, seconds
from trace_export.sources.source import Source

ROWS = pytest.mark.parametrize("row", FORMATS, ids=lambda row: row.kind)


@ROWS
def test_a_row_names_functions_that_are_there(row: Format, tmp_path: Path) -> None:
    assert row.load_detector()(tmp_path, walk(tmp_path)[0]) == Found(())
    assert callable(row.load_reader().read)
    assert hasattr(row.load_reader(), "read_tasks") == row.has_device_tasks


@ROWS
def test_the_guide_of_a_row_exists(row: Format) -> None:
    """Where it has one: a row without is complete."""
    if row.guide is not None:
        assert files("trace_export").joinpath("docs", "collect", f"{row.guide}.md").is_file()


def test_kinds_are_unique_and_formats_of_one_profiler_share_a_command() -> None:
    assert len({row.kind for row in FORMATS}) == len(FORMATS)
    assert [row.kind for row in formats.of_command("paddle")] == ["paddle", "paddle_dygraph"]
    assert formats.of_command(None) == FORMATS
    assert formats.of_command("Paddle") == ()


def test_the_cost_of_a_source_follows_its_size(tmp_path: Path) -> None:
    file, folder = tmp_path / "file", tmp_path / "folder"
    folder.mkdir()
    for path in (file, folder / "part"):
        with path.open("wb") as opened:
            opened.truncate(300_000_000)
    export, database, text = Source("nsys", file, ""), Source("ascend", file, ""), Source("ascend", folder, "")
    assert seconds(export) == pytest.approx(2.0, abs=0.1)
    assert seconds(export, device_tasks=True) == pytest.approx(3.0, abs=0.1)
    assert seconds(text) == pytest.approx(5.0, abs=0.1)
    assert 0 < seconds(Source("paddle", tmp_path / "absent", "")) < 0.1
    assert [releases_gil(s) for s in (database, text)] == [True, False]
