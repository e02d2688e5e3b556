"""A folder for temporary files that is gone when the block that uses it ends."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trace_export.errors import TraceExportError

REMEDY = "set TMPDIR to a folder with space"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder in TMPDIR, removed at the end of the block, also where an error or Ctrl-C ends it (and SIGTERM and
    SIGHUP in the command line). Raises TraceExportError when the folder cannot be made."""
    try:
        parent = tempfile.gettempdir()
    except FileNotFoundError as error:  # it has tried them all
        raise TraceExportError("no folder for temporary files can be written to", REMEDY) from error
    try:
        made = tempfile.TemporaryDirectory(prefix="trace_export_", dir=parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise TraceExportError(f"{parent} takes no temporary files ({error.strerror})", REMEDY) from error
    with made as folder:
        yield Path(folder)
