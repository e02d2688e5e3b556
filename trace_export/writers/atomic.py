"""Atomic file writes: a file appears whole or not at all."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from trace_export.errors import OutputError

PREFIX = ".trace-export-"
"""Prefix of hidden folders. The rest of the name is random; existing files are neither opened nor replaced."""


@contextmanager
def replacing(path: Path, check: Callable[[Path], None]) -> Iterator[Path]:
    """A temporary path for what becomes the file at `path` (its folder is made if need be) when the block ends well.

    It lies in a hidden folder beside `path`, which nobody else may enter; that one is removed when the block ends, but
    not when the process is killed. Right before the file gets its name, `check(path)` is called and may raise; again
    where a file came there in the meantime. (One that takes the place of a file of ours in the microseconds after that
    is replaced.)
    Raises OutputError when the file cannot be written (folder read-only, disk full, ...).
    """
    with blamed(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=PREFIX, dir=path.parent) as folder:
            temporary = Path(folder, path.name)
            yield temporary
            check(path)
            try:
                path.hardlink_to(temporary)  # a link replaces nothing
            except OSError as error:  # there is a file, or the file system has no such links
                if error.errno == errno.EEXIST:
                    check(path)
                temporary.replace(path)


@contextmanager
def blamed(path: Path) -> Iterator[None]:
    """Raises OutputError, which names `path`, for an OSError of the block."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(path, f"cannot be written: {reason}", "name another place with `path`") from error
