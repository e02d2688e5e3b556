"""Opening files that a user or a folder names: regular ones only, for a pipe or a device may never end.

What cannot be opened, a pipe or a device among it, raises OSError, whose `strerror` completes "cannot be read (…)".
"""

from __future__ import annotations

import errno
import gzip
import os
import stat
import zlib
from io import BufferedReader
from pathlib import Path

GZIP = b"\x1f\x8b"
"""What a gzipped file begins with."""


def open_file(path: Path) -> BufferedReader:
    """The regular file at `path`, or that a link there leads to, for reading.

    Its kind is asked for before it is opened, because a program that writes into a pipe goes on once the pipe is open
    for reading, and again afterwards, because the name may mean something else by then.
    """
    _check(path, path.stat())
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check(path, os.fstat(descriptor))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_file(path: Path, most: int) -> bytes:
    """The content of a regular file of at most `most` bytes."""
    with open_file(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"more than {most:,} bytes", str(path))
    return content


def end_of(path: Path, begin: int, size: int) -> bytes:
    """The content of a regular file from the byte `begin` on, of more than `size` bytes the last. What is packed is
    unpacked for it from begin to end."""
    with Unpacked(path) as file:
        file.skip(begin, size)
        end = b""
        while part := file.read(size):
            end = (end + part)[-size:]
        return end


class Unpacked:
    """The content of a regular file, unpacked where it is gzipped: of all members, and of damaged ones as far as it
    goes. `damaged` says whether that is less than was packed."""

    def __init__(self, path: Path) -> None:
        self.damaged = False
        self._file = open_file(path)
        try:
            packed = self._file.peek(2).startswith(GZIP)
            self._stream = gzip.GzipFile(fileobj=self._file) if packed else self._file
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Unpacked:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def skip(self, begin: int, size: int) -> None:
        """Goes to the byte `begin`, and where nothing must be unpacked for that on to the last `size` bytes."""
        if self._stream is self._file:
            length = self._file.seek(0, os.SEEK_END)
            self._file.seek(max(begin, length - size))
        else:
            self.read(begin)

    def read(self, size: int) -> bytes:
        """The next `size` bytes, fewer at the end."""
        parts: list[bytes] = []
        missing = size
        while missing and not self.damaged:
            try:
                part = self._stream.read1(missing)  # not read: that loses what precedes the damage
            except (EOFError, zlib.error, gzip.BadGzipFile):
                self.damaged = True
                break
            if not part:
                break
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)


def _check(path: Path, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "a folder, not a file", str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
