"""Opening files that a user or a folder names: regular ones only, for a pipe or a device may never end.

What cannot be opened, a pipe or a device among it, raises OSError, whose `strerror` completes "cannot be read (…)".
"""

from __future__ import annotations

import codecs
import errno
import gzip
import os
import stat
import zlib
from contextlib import suppress
from importlib import import_module
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

GENERATOR: Final = "trace-export"
"""The name by which files of this program say who wrote them."""

MOST_TOML_BYTES = 1 << 14
"""The size of a file of options, some 200 entries. A dotted key takes the square of its length in memory."""

GZIP = b"\x1f\x8b"
"""What a gzipped file begins with."""
_ZIP = b"PK\x03\x04"
_ZSTANDARD = b"\x28\xb5\x2f\xfd"
_BZIP2, _XZ = b"BZh", b"\xfd7zXZ"
PACKED = ("", ".gz", ".zip", ".zst", ".bz2", ".xz")
"""What a name may end with after that of a file that `Unpacked` reads."""
_UTF_16 = codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE
_SURE = 16
"""Bytes that show in which encoding a text is, or by what a file is packed."""
_ZSTANDARD_MODULES = "compression.zstd", "backports.zstd"
"""That of Python 3.14, and its copy for older ones, which need not be installed."""
_MOST_AT_ONCE = 1 << 24
"""Bytes; a buffer of the size that is asked for is made before anything is read."""
_SMALL, _LARGEST_RATIO = 64 << 20, 200
"""Bytes that a packed file may unpack to: this, and this many times its size. Traces are 10 to 40 times as large."""
_DAMAGES: tuple[type[Exception], ...] = (EOFError, zlib.error, gzip.BadGzipFile)
"""What is raised where packed data are damaged."""


def is_file(path: Path) -> bool:
    """Whether a regular file is at `path`; False where one may not look, or the name is too long for any."""
    try:
        return path.is_file()
    except OSError:
        return False


EMPTY: Final = "is empty; its export or copy did not finish"
"""What is said of a file without a byte."""


def is_empty(path: Path) -> bool:
    """Whether a regular file without a byte is at `path`."""
    try:
        return path.is_file() and not path.stat().st_size
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """The same for a folder."""
    try:
        return path.is_dir()
    except OSError:
        return False


def real_path(path: Path) -> Path:
    """`path` without links; as it is where they lead round in a circle."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # until Python 3.13 the latter
        return path.absolute()


def open_file(path: Path) -> BufferedReader:
    """The regular file at `path`, or that a link there leads to, for reading.

    Its kind is asked for before it is opened, because a program that writes into a pipe goes on once the pipe is open
    for reading, and again afterwards, because the name may mean something else by then.
    """
    _check(path, path.stat())
    return open(path, "rb", opener=_regular)


def open_text(path: Path) -> BufferedReader:
    """The same for a file of text; what is in UTF-16, as PowerShell writes where it redirects output, is read as
    UTF-8, and then only from its beginning to its end."""
    file = open_file(path)
    return BufferedReader(_Utf16(file)) if _is_utf_16(file.peek(_SURE)) else file


def _regular(path: str, _: int) -> int:
    """A descriptor of the regular file at `path`. It is closed here or by the file that is made of it, never by both,
    wherever a signal raises its exception."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check(Path(path), os.fstat(descriptor))
        return descriptor
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


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file of at most `MOST_TOML_BYTES`. Raises ValueError where it is not TOML."""
    import tomllib

    try:
        return tomllib.loads(read_file(path, MOST_TOML_BYTES).decode("utf-8"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


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
    """The content of a regular file, unpacked where it is gzipped, of all members, packed with Zstandard, bzip2 or xz,
    or a zip archive of one JSON file; and where these are damaged as far as it goes. `damaged` says whether that is
    less than was packed. Text in UTF-16 is read as `open_text` does."""

    def __init__(self, path: Path) -> None:
        self.damaged = False
        self._path = path
        self._file = open_file(path)
        self._length = 0
        try:
            self._stream, self._damages = _unpacking(self._file)
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

    def left(self) -> int | None:
        """How many bytes were not read yet; None where they are packed."""
        return os.fstat(self._file.fileno()).st_size - self._file.tell() if self._stream is self._file else None

    def read(self, size: int) -> bytes:
        """The next `size` bytes, fewer at the end. Raises OSError where a packed file has more than any trace."""
        parts: list[bytes] = []
        missing = size
        while missing and not self.damaged:
            try:
                part = self._stream.read1(min(missing, _MOST_AT_ONCE))  # not read: that loses what precedes the damage
            except self._damages:
                self.damaged = True
                break
            if not part:
                break
            parts.append(part)
            missing -= len(part)
            self._count(len(part))
        return b"".join(parts)

    def _count(self, length: int) -> None:
        """Raises OSError once the content is larger than that of a packed trace."""
        self._length += length
        if self._stream is self._file or self._length <= _SMALL:
            return
        if self._length > _LARGEST_RATIO * os.fstat(self._file.fileno()).st_size:
            what = (
                f"it unpacks to more than {_SMALL >> 20} MiB and {_LARGEST_RATIO} times its size, which no trace does"
            )
            raise OSError(errno.EFBIG, what, str(self._path))


class _Stream(Protocol):
    def read1(self, size: int, /) -> bytes: ...


def _unpacking(file: BufferedReader) -> tuple[_Stream, tuple[type[Exception], ...]]:
    """What unpacks the file, and what it raises where that is damaged."""
    start = file.peek(_SURE)
    if start.startswith(GZIP):
        return gzip.GzipFile(fileobj=file), _DAMAGES
    if start.startswith(_ZIP):
        return _only_json(file)
    if start.startswith(_ZSTANDARD):
        return _zstandard(file)
    if start.startswith(_BZIP2):
        import bz2  # and below, which few inputs need

        return bz2.BZ2File(file), (*_DAMAGES, OSError)
    if start.startswith(_XZ):
        import lzma

        return lzma.LZMAFile(file), (*_DAMAGES, lzma.LZMAError)
    if _is_utf_16(start):
        return BufferedReader(_Utf16(file)), ()
    return file, ()


def _is_utf_16(start: bytes) -> bool:
    """Whether a file begins as a text in UTF-16: with a byte order mark, or with characters of ASCII."""
    first, second = start[:_SURE:2], start[1:_SURE:2]
    return start.startswith(_UTF_16) or (len(second) == _SURE // 2 and not any(second) and all(first))


class _Utf16(RawIOBase):
    """A text in UTF-16 as UTF-8, without a byte order mark."""

    def __init__(self, file: BufferedReader) -> None:
        self._file = file
        big = file.peek(_SURE).startswith(codecs.BOM_UTF16_BE)
        self._decoder = codecs.getincrementaldecoder("utf-16-be" if big else "utf-16-le")("replace")
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        into = memoryview(buffer)
        while not self._left and (data := self._file.read1(len(into))):
            self._left = self._decoder.decode(data).encode().removeprefix(codecs.BOM_UTF8)
        part, self._left = self._left[: len(into)], self._left[len(into) :]
        into[: len(part)] = part
        return len(part)

    def close(self) -> None:
        self._file.close()
        super().close()


def _zstandard(file: BufferedReader) -> tuple[_Stream, tuple[type[Exception], ...]]:
    for name in _ZSTANDARD_MODULES:
        with suppress(ModuleNotFoundError):
            module = import_module(name)
            return module.ZstdFile(file), (*_DAMAGES, module.ZstdError)
    raise OSError(errno.EINVAL, "packed with Zstandard; unpack it with zstd -d, or install backports.zstd")


def _only_json(file: BufferedReader) -> tuple[_Stream, tuple[type[Exception], ...]]:
    """The JSON file in a zip archive that has no other, and what it raises where that is damaged."""
    import zipfile  # and compressors, which few inputs need

    try:
        archive = zipfile.ZipFile(file)
        members = [name for name in archive.namelist() if name.endswith(".json")]
        if len(members) != 1:
            raise OSError(errno.EINVAL, f"a zip archive of {len(members)} JSON files; unpack it with unzip")
        return cast("zipfile.ZipExtFile", archive.open(members[0])), (*_DAMAGES, zipfile.BadZipFile)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:  # the last: it is encrypted
        raise OSError(
            errno.EINVAL, "a zip archive that is damaged, encrypted or packed by an unknown method"
        ) from error


def _check(path: Path, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "a folder, not a file", str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
