"""Every file that is read belongs to a source, so that no output can take its place."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.inputs import INPUTS
from trace_export.read import LoadOptions, load_options, locate, option_files
from trace_export.run import AlignOptions, Request
from trace_export.sources.input_files import files_of
from trace_export.sources.source import Source

_opened: list[Path] | None = None


def _notice(event: str, arguments: tuple[object, ...]) -> None:
    if _opened is not None and event in ("open", "sqlite3.connect") and isinstance(arguments[0], str | bytes):
        _opened.append(Path(os.fsdecode(arguments[0])))


@contextmanager
def noticed() -> Iterator[list[Path]]:
    """The files that are opened meanwhile, by Python itself. (Hooks stay for ever, so it is one for all tests.)"""
    global _opened
    if "_installed" not in globals():
        sys.addaudithook(_notice)
        globals()["_installed"] = True
    _opened = []
    try:
        yield _opened
    finally:
        _opened = None


def check(folder: Path) -> set[Path]:
    """Reads what lies in the folder; returns the files that were opened; each counts as an input."""
    options = LoadOptions(folder, jobs=1)
    located = locate(options)
    with noticed() as opened:
        Request(options, located=located).read()
    files = {path for path in opened if path.is_relative_to(folder) and path.is_file()}
    assert files <= set(located.inputs)
    return files


@pytest.mark.parametrize("kind", INPUTS)
def test_each_file_that_a_reader_opens_is_an_input(kind: str, tmp_path: Path) -> None:
    INPUTS[kind].make(tmp_path)
    check(tmp_path)
    inputs = {path.name for path in locate(LoadOptions(tmp_path)).inputs}
    assert inputs >= set(INPUTS[kind].files)  # the detectors read those beside the source


def test_what_sqlite_keeps_beside_a_database_is_an_input(tmp_path: Path) -> None:
    source = Source("nsys", tmp_path / "a.sqlite", "machine0")
    names = [path.name for path in files_of([source])]
    assert names == ["a.sqlite", "a.sqlite-wal", "a.sqlite-shm", "a.sqlite-journal"]


def test_a_folder_is_an_input_with_all_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "node0_1_20251127120000000_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    folder.mkdir(parents=True)
    for path in (folder / "trace_view.json", folder / "any.csv", folder.parent / "profiler_info_0.json"):
        path.touch()
    (tmp_path / "notes.json").touch()
    files = set(files_of([Source("ascend", folder, "machine0")]))
    assert {path.name for path in files} == {"trace_view.json", "any.csv", "profiler_info_0.json"}


def test_files_that_options_name_are_inputs(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('[machines]\nnode1 = "/scratch"\n')
    given = {"markers": ("F=>F", str(tmp_path / "rules.toml")), "scheduler": "tcp://127.0.0.1:1"}
    options = load_options(None, given | {"at": ("node0:/scratch", str(plan))})
    assert option_files(options) == [tmp_path / "rules.toml", plan]
    assert option_files(LoadOptions(tmp_path)) == []
    (tmp_path / "align.json").touch()
    assert AlignOptions(tmp_path / "align.json").inputs == (tmp_path / "align.json",)
    assert AlignOptions().inputs == ()
