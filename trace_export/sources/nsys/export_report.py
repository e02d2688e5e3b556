"""Exports reports (`.nsys-rep`) to SQLite by `nsys`, where it is installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trace_export.errors import SourceError
from trace_export.model import Note
from trace_export.scratch import scratch_folder

SUFFIX = ".nsys-rep"


def export_notes(path: Path) -> tuple[Note, ...]:
    """Says that `nsys export` ran to read `path`; nothing where it did not."""
    if path.suffix != SUFFIX:
        return ()
    return (Note("report-exported", "note", "nsys export turned this report into a temporary SQLite file", str(path)),)


@contextmanager
def exported(path: Path) -> Iterator[Path]:
    """The SQLite file to read for `path`: itself, or for a report its export in a folder that is gone afterwards.

    Raises SourceError when there is no `nsys` on the PATH or it fails. What it prints is not passed on: it may name
    anything that ran on the machine.
    """
    if path.suffix != SUFFIX:
        yield path
        return
    by_hand = f"nsys export --type sqlite {path.name}"
    program = shutil.which("nsys")
    if program is None:
        raise SourceError(path, "is a report that only nsys can read, and nsys is not installed", f"run {by_hand}")
    with scratch_folder() as folder:
        target = folder / f"{path.stem}.sqlite"
        command = [program, "export", "--type", "sqlite", "--output", str(target), str(path.absolute())]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if done.returncode or not target.exists():
            raise SourceError(path, f"nsys export failed with exit code {done.returncode}", f"run {by_hand} to see why")
        try:
            yield target
        except SourceError as error:  # what is wrong with the export is wrong with the report
            raise SourceError(path, *error.args[1:]) from error
