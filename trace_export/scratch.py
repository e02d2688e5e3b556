"""A folder for temporary files that is gone when its user is, however that ends."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trace_export.errors import TraceExportError

REMEDY = "set TMPDIR to a folder with space"

# The pipe is at its end when no process holds its other side any more. What this process started may still write for a
# moment, so that a folder may not be empty at once.
_REMOVE = 'trap "" HUP INT TERM; read -r _; i=0; until rm -rf -- "$0" || [ $((i += 1)) = 50 ]; do sleep 0.1; done'


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder in TMPDIR, removed at the end of the block, or when this process ends in any other way.

    For the latter, a shell waits for the end of this process. It has a session of its own, so that neither Ctrl-C nor
    the end of the terminal reaches it; the folder stays only where the shell is killed as well (SIGKILL to a whole
    control group). Raises TraceExportError when the folder cannot be made.
    """
    try:
        folder = Path(tempfile.gettempdir()) / f"trace_export_{secrets.token_hex(8)}"
    except FileNotFoundError as error:  # it has tried them all
        raise TraceExportError("no folder for temporary files can be written to", REMEDY) from error
    with _removed_after_us(folder):
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            what = f"{folder.parent}: takes no temporary files ({error.strerror})"
            raise TraceExportError(what, REMEDY) from error
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _removed_after_us(folder: Path) -> Iterator[None]:
    try:
        shell = subprocess.Popen(
            ["/bin/sh", "-c", _REMOVE, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:  # no shell, or no more processes: then only the end of the block removes the folder
        yield
        return
    try:
        yield
    finally:
        shell.communicate()
