"""A small run of a command stays on one processor; a larger one, and what others run, has them all."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from tests.conftest import ROOT
from tests.support.wait import HANGS_S
from trace_export import one_processor
from trace_export.sources.shared.sqlite import AHEAD_ROWS
from trace_export.workers.sizing import cores

pytestmark = pytest.mark.skipif(cores() < 2 or sys.platform != "linux", reason="needs two processors and Linux")

THREADS = """
import os, sys
from pathlib import Path
def processors():
    return {len(os.sched_getaffinity(int(thread.name))) for thread in Path("/proc/self/task").iterdir()}
"""


def processors(code: str, *arguments: object) -> set[int]:
    """How many processors each thread of a process may use after the code has run."""
    words = [sys.executable, "-c", f"{THREADS}{code}\nprint(*processors())", *map(str, arguments)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=HANGS_S, check=True)
    return set(map(int, done.stdout.splitlines()[-1].split()))


COMMAND = """
from contextlib import suppress
from trace_export.cli import main
import polars as pl
with suppress(SystemExit):
    main(sys.argv[1:])
pl.DataFrame({"a": [1]}).select(pl.col("a") + 1)  # on a thread of Polars
"""


def test_a_small_export_stays(samples: Path, tmp_path: Path) -> None:
    assert processors(COMMAND, samples / "nsys", "--out", tmp_path, "--quiet") == {1}


def table(folder: Path, rows: int) -> Path:
    """A span table of so many blocks: one source, for which no worker starts."""
    path = folder / "a.spans.parquet"
    pl.select(
        rank=pl.repeat(0, rows), stage=pl.repeat(0, rows), kind=pl.repeat(pl.lit("F"), rows),
        microbatch=pl.int_range(rows), start_ns=pl.int_range(rows) * 10, end_ns=pl.int_range(rows) * 10 + 9,
    ).write_parquet(path)  # fmt: skip
    return path


def test_many_blocks_in_a_small_table_have_all_processors(tmp_path: Path) -> None:
    for rows, expected in ((2 * one_processor.SMALL_BLOCKS, cores()), (10, 1)):
        options = ("--out", tmp_path / f"{rows}.csv", "--quiet")
        assert processors(COMMAND, table(tmp_path, rows), *options) == {expected}, rows


def test_who_asks_for_workers_gets_them(tmp_path: Path) -> None:
    few = table(tmp_path, 10)
    assert processors(COMMAND, few, "--out", tmp_path / "a.csv", "--quiet", "--jobs", 2) == {cores()}
    assert processors(COMMAND, "inspect", few, "--jobs", 2) == {cores()}


def test_the_library_leaves_the_threads_of_others_alone(samples: Path, tmp_path: Path) -> None:
    code = "import trace_export; trace_export.load(sys.argv[1]).align().write(sys.argv[2])"
    assert processors(code, samples / "nsys", tmp_path) == {cores()}


def test_threads_that_are_there_stay_too() -> None:
    code = """
import threading
from trace_export import one_processor
ended = threading.Event()
thread = threading.Thread(target=ended.wait)
thread.start()
before = processors()
one_processor.allow()
one_processor.stay()
after = processors()
ended.set()
thread.join()
assert (before, after) == ({int(sys.argv[1])}, {1}), (before, after)
"""
    assert processors(code, cores()) == {1}


def test_threads_that_read_a_large_table_have_all_processors(tmp_path: Path) -> None:
    path = tmp_path / "large.db"
    with closing(sqlite3.connect(path)) as db:
        numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {2 * AHEAD_ROWS})"
        db.execute(f"CREATE TABLE events AS {numbers} SELECT i FROM n")
        db.commit()
    code = """
from trace_export import one_processor
from trace_export.sources.shared import sqlite
used = []
class Watched(sqlite.Database):
    def _frame(self, *arguments, **named):
        used.append(len(os.sched_getaffinity(0)))
        return super()._frame(*arguments, **named)
one_processor.allow()
one_processor.stay()
with Watched(Path(sys.argv[1])) as db:
    assert sum(frame.height for frame in db.frames("events", "SELECT i FROM events WHERE {where}")) == int(sys.argv[2])
one_processor.stay()  # Polars' threads, too, which the readers may have been the first to need
assert used and set(used) == {int(sys.argv[3])}, used
"""
    assert processors(code, path, 2 * AHEAD_ROWS, cores()) == {1}


def test_files_are_small_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stays: list[None] = []
    monkeypatch.setattr(one_processor, "stay", lambda: stays.append(None))
    monkeypatch.setattr(one_processor, "_may_stay", True)

    def is_small(most: int, *files: Path) -> bool:
        monkeypatch.setattr(one_processor, "SMALL_BYTES", most)
        stays.clear()
        one_processor.stay_with(files)
        return bool(stays)

    files = [tmp_path / name for name in "ab"]
    for file in files:
        file.write_bytes(bytes(10))
    for most, small in ((20, True), (19, False)):
        assert is_small(most, *files, tmp_path / "absent") is small
    files[0] = files[0].rename(tmp_path / "a.parquet")
    for most, small in ((1010, True), (1009, False)):
        assert is_small(most, *files) is small
    monkeypatch.setattr(one_processor, "_may_stay", False)
    assert not is_small(20)
