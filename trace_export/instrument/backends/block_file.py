"""Appends lines to the file of a rank, whole ones only, and keeps the newest of them within a limit.

docs/collect/recorder.md has the format.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

EARLIER = ".earlier"


class BlockFile:
    """`path`, and once that holds half of `limit` bytes also `path` + EARLIER, which it then becomes.

    `header` gives the line that each file begins with. What an earlier start of the rank left is kept as EARLIER.
    All methods raise OSError.
    """

    def __init__(self, path: Path, limit: int, header: Callable[[], str]) -> None:
        self._path, self._earlier = path, path.with_name(path.name + EARLIER)
        self._half, self._header = limit // 2, header
        self._left = self._empty = 0
        self._lock = threading.RLock()  # a signal handler may mark blocks too
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            path.replace(self._earlier)
        self._file = self._open()

    def _open(self) -> int:
        """A new file with its header, in which there is room for as much as a file may hold."""
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
        header = self._header().encode()
        self._write(file, header)
        self._left = self._empty = self._half - len(header)
        return file

    def append(self, lines: str) -> None:
        """Adds the lines in one call of the system, so that those of several threads need not wait for each other."""
        content = lines.encode()
        size = len(content)
        while size > self._left < self._empty:  # Python changes threads at calls and jumps back only: not below
            self._make_room(size)
        self._left -= size
        self._write(self._file, content)

    def _write(self, file: int, content: bytes) -> None:
        if os.write(file, content) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))

    def _make_room(self, size: int) -> None:
        with self._lock:
            if size > self._left < self._empty:
                self._turn()

    def _turn(self) -> None:
        """A new file; the old one becomes EARLIER. Where another process has taken the name, this one stops."""
        if not os.path.samestat(self._path.stat(), os.fstat(self._file)):
            raise OSError(errno.EEXIST, "another process records as the same rank", str(self._path))
        self._path.replace(self._earlier)
        file = self._open()
        os.dup2(file, self._file, inheritable=False)  # under the same number: another thread may be about to write
        os.close(file)
