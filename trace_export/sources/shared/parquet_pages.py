"""Whether the pages of a Parquet file have possible sizes.

Polars believes the number of values that a page states, and a process that asks for 2^61 bytes is ended by Rust's
allocator, without an error that could be caught. The headers are few, one for about a megabyte.

Format: parquet.thrift of apache/parquet-format (FileMetaData, ColumnMetaData, PageHeader), in Thrift's compact
protocol.
"""

from __future__ import annotations

import os
from io import BufferedReader
from typing import Any

import polars as pl

MAGIC = b"PAR1"
MOST_HEADER_BYTES = 1 << 20
"""A header may hold the least and the largest value of its page."""
ROW_GROUPS, COLUMNS, COLUMN_METADATA = 4, 1, 3
VALUES, LENGTH, DATA, DICTIONARY = 5, 7, 9, 11
UNCOMPRESSED, COMPRESSED, PAGES = 2, 3, (5, 7, 8)
"""Numbers of fields: of FileMetaData, RowGroup and ColumnChunk; of ColumnMetaData; of PageHeader, where PAGES are the
headers of its kinds, each with the number of its values first."""


def checked(file: BufferedReader) -> BufferedReader:
    """`file`, at its beginning, whose pages have possible sizes. Raises ComputeError, as Polars does for what it cannot
    read."""
    try:
        _check(file)
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError, OSError) as error:  # any damage
        raise pl.exceptions.ComputeError(f"parquet: damaged pages ({type(error).__name__})") from error
    file.seek(0)
    return file


def _check(file: BufferedReader) -> None:
    size = file.seek(0, os.SEEK_END)
    file.seek(size - 8)
    length, magic = int.from_bytes(file.read(4), "little"), file.read(4)
    if magic != MAGIC or length > size - 8:
        raise ValueError
    file.seek(size - 8 - length)
    for group in _Thrift(file.read(length)).struct()[ROW_GROUPS]:
        for column in group[COLUMNS]:
            chunk = column[COLUMN_METADATA]
            begin = min(at for at in (chunk[DATA], chunk.get(DICTIONARY)) if at)
            _check_pages(file, begin, min(begin + chunk[LENGTH], size), chunk[VALUES])


def _check_pages(file: BufferedReader, at: int, end: int, most: int) -> None:
    """Raises ValueError where a page has more than `most` values, or a negative size."""
    while at < end:
        file.seek(at)
        text = _Thrift(file.read(min(MOST_HEADER_BYTES, end - at)))
        header = text.struct()
        values = [header[kind].get(1, 0) for kind in PAGES if kind in header]
        if min(header[COMPRESSED], header[UNCOMPRESSED], *values) < 0 or max(values, default=0) > most:
            raise ValueError
        at += text.at + header[COMPRESSED]


class _Thrift:
    """Values that stand one after the other; `at`: the first byte that was not read."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def struct(self) -> dict[int, Any]:
        """Its fields by number."""
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._integer()
            kind = head & 15
            fields[number] = kind == 1 if kind in (1, 2) else self._value(kind)
        return fields

    def _value(self, kind: int) -> Any:
        """A value, of texts and of numbers with a point None."""
        if kind in (4, 5, 6):
            return self._integer()
        if kind in (9, 10):
            return self._list()
        if kind == 12:
            return self.struct()
        if kind in (1, 2, 3):
            return self._byte()
        if kind not in (7, 8):
            raise ValueError
        length = 8 if kind == 7 else self._varint()
        self.at += length
        return None

    def _list(self) -> list[Any]:
        head = self._byte()
        count = self._varint() if head >> 4 == 15 else head >> 4
        if count > len(self.data):
            raise ValueError
        return [self._value(head & 15) for _ in range(count)]

    def _integer(self) -> int:
        """A signed number in zigzag."""
        number = self._varint()
        return (number >> 1) ^ -(number & 1)

    def _varint(self) -> int:
        number = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
        raise ValueError

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]
