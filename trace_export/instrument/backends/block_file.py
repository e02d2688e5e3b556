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
        self._open()

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
        self._left = self._empty = self._half
        self.append(self._header())
        self._empty = self._left

    def append(self, lines: str) -> None:
        content = lines.encode()
        with self._lock:
            if len(content) > self._left < self._empty:
                self._turn()
            written = os.write(self._file, content)
            self._left -= written
        if written < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))

    def _turn(self) -> None:
        """A new file; the old one becomes EARLIER. Where another process has taken the name, this one stops."""
        if not os.path.samestat(self._path.stat(), os.fstat(self._file)):
            raise OSError(errno.EEXIST, "another process records as the same rank", str(self._path))
        self._path.replace(self._earlier)
        os.close(self._file)
        self._open()
