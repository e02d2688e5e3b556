"""A file is whole or absent: written where nobody sees it, then given its name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trace_export.errors import OutputError


@contextmanager
def whole(path: Path, named: bool = False) -> Iterator[Path]:
    """A temporary path for what becomes the file at `path` (its folder is made if need be) when the block ends well.

    Where the system can (Linux, most local file systems) it leads to a file without a name, of which nothing is left
    however the process ends. Else, and where `named` asks for it, it is a hidden file beside `path`; that one is
    removed when the block fails, but not when the process is killed. Raises OutputError when the file cannot be written
    (folder read-only, disk full, ...).
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if path.is_dir():
            raise IsADirectoryError("it is a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = None if named else _unnamed(path.parent)
        if descriptor is None:
            yield beside
        else:
            with os.fdopen(descriptor, "rb"):  # closes it at the end
                yield _opened(descriptor)
                os.link(_opened(descriptor), beside, src_dir_fd=descriptor)  # with a folder given, links are followed
        beside.replace(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(path, f"cannot be written: {reason}", "name another place with --out") from error
    finally:
        with suppress(OSError):
            beside.unlink()


def _unnamed(folder: Path) -> int | None:
    """A new file in `folder` that has no name, or None where there is no such thing."""
    if not hasattr(os, "O_TMPFILE"):
        return None
    try:
        descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o666)
    except OSError:  # not on this file system; or there is an obstacle that a file with a name will meet too
        return None
    if os.access(_opened(descriptor), os.W_OK):
        return descriptor
    os.close(descriptor)
    return None


def _opened(descriptor: int) -> Path:
    """The path at which this process can open the file again."""
    return Path(f"/proc/self/fd/{descriptor}")
