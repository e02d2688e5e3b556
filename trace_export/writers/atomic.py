"""Atomic file writes: a file appears whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from trace_export.errors import OutputError

PREFIX = ".trace-export-"
"""Prefix of hidden names. The rest of the name is random; existing files are neither opened nor replaced."""


@contextmanager
def replacing(path: Path, check: Callable[[Path], None], named: bool = False) -> Iterator[Path]:
    """A temporary path for what becomes the file at `path` (its folder is made if need be) when the block ends well.

    Where the system can (Linux, most local file systems) it leads to a file without a name; nothing of it is left
    however the process ends. Else, and where `named` asks for it, it lies in a hidden folder beside `path`, which
    nobody else may enter; that one is removed when the block fails, but not when the process is killed. Right before
    the file gets its name, `check(path)` is called and may raise; again where a file came there in the meantime.
    (One that takes the place of a file of ours in the microseconds after that is replaced. The system could exchange
    the two, so that a look at the other were possible afterwards, but a process killed in between would leave a file of
    somebody else under a hidden name.)
    Raises OutputError when the file cannot be written (folder read-only, disk full, ...).
    """
    with blamed(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = None if named else unnamed(path.parent)
        if descriptor is None:
            with TemporaryDirectory(prefix=PREFIX, dir=path.parent) as folder:
                temporary = Path(folder, path.name)
                yield temporary
                check(path)
                _named(temporary, path, check)
        else:
            with os.fdopen(descriptor, "rb"):  # closes it at the end
                yield _opened(descriptor)
                check(path)
                _name(descriptor, path, check)


@contextmanager
def blamed(path: Path) -> Iterator[None]:
    """Raises OutputError, which names `path`, for an OSError of the block."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(path, f"cannot be written: {reason}", "name another place with `path`") from error


def unnamed(folder: Path) -> int | None:
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


def _name(descriptor: int, path: Path, check: Callable[[Path], None]) -> None:
    """Gives the file the name `path`. A link replaces nothing, so where there is a file the new one first gets a random
    name; one that came since the last check is checked, too."""
    try:
        os.link(_opened(descriptor), path, src_dir_fd=descriptor)
        return
    except FileExistsError:
        check(path)
    temporary = path.with_name(PREFIX + secrets.token_hex(8))
    os.link(_opened(descriptor), temporary, src_dir_fd=descriptor)  # with a folder given, links are followed
    try:
        temporary.replace(path)
    except BaseException:
        temporary.unlink()
        raise


def _named(temporary: Path, path: Path, check: Callable[[Path], None]) -> None:
    """The same for a file that has a name."""
    try:
        path.hardlink_to(temporary)
    except OSError as error:  # there is a file, or the file system has no such links
        if error.errno == errno.EEXIST:
            check(path)
        temporary.replace(path)
