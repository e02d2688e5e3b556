"""Exports reports (`.nsys-rep`, `.qdrep`) to SQLite by `nsys`, where it is installed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

from trace_export.errors import SourceError
from trace_export.model import Note
from trace_export.scratch import scratch_folder
from trace_export.sources.nsys.table_folder import TableFolder
from trace_export.sources.shared.sqlite import Database

SUFFIX = ".nsys-rep"
OLD_SUFFIX = ".qdrep"
"""Reports before 2021.4, which newer versions of nsys export as well."""
SUFFIXES = (SUFFIX, OLD_SUFFIX)

TIMEOUT_S = 600.0
TIMEOUT_S_PER_MB = 2.0
"""How long `nsys export` may take, and how much longer for each megabyte of the report."""


def export_notes(path: Path) -> tuple[Note, ...]:
    """A note that `nsys export` ran to read `path`; none if it did not."""
    if path.suffix not in SUFFIXES:
        return ()
    return (
        Note("report-exported", "detail", "nsys export turned this report into a temporary SQLite file", str(path)),
    )


@contextmanager
def opened(path: Path, beginning: int = 0) -> Iterator[Database]:
    """The tables of an export, with `beginning` as for `Database`; a report is exported into a folder that is gone
    afterwards. Raises SourceError as `exported` and `Database` do."""
    if path.is_dir():
        with _as_wrong_with(path), TableFolder(path, beginning) as db:
            yield db
    else:
        with _exported(path) as file, Database(file, beginning) as db:
            yield db


@contextmanager
def _exported(path: Path) -> Iterator[Path]:
    """The SQLite file to read for `path`: itself, or the export of a report.

    Raises SourceError when there is no `nsys` on the PATH, or it fails or does not end. Its output is not passed on: it
    may name anything that ran on the machine.
    """
    if path.suffix not in SUFFIXES:
        yield path
        return
    by_hand = f"nsys export --type sqlite {quote(str(path))}"
    program = shutil.which("nsys")
    if program is None:
        raise SourceError(path, "is a report that only nsys can read, and nsys is not installed", f"run {by_hand}")
    with scratch_folder() as folder:
        target = folder / f"{path.stem}.sqlite"
        command = [program, "export", "--type", "sqlite", "--output", str(target), str(path.absolute())]
        code = _run(command, timeout_s := TIMEOUT_S + TIMEOUT_S_PER_MB * path.stat().st_size / 1e6)
        if code is None:
            what = f"nsys export did not finish in {timeout_s / 60:.0f} minutes"
            raise SourceError(path, what, f"run {by_hand} to see why")
        if code or not target.exists():
            raise SourceError(path, f"nsys export failed with exit code {code}", f"run {by_hand} to see why")
        with _as_wrong_with(path):
            yield target


@contextmanager
def _as_wrong_with(path: Path) -> Iterator[None]:
    """Errors of the temporary export are errors of the report from which it was made."""
    try:
        yield
    except SourceError as error:
        raise SourceError(path, *error.args[1:]) from error


def _run(command: Sequence[str], timeout_s: float) -> int | None:
    """The exit code of the command, which prints nothing here; None where it was ended, with all that it had started,
    because it did not end by itself."""
    silent = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=silent, stdout=silent, stderr=silent, start_new_session=True)
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
