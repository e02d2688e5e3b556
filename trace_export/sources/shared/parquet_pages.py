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
    except (
        AttributeError,
        IndexError,
        KeyError,
        TypeError,
        ValueError,
        RecursionError,
        OSError,
    ) as error:  # any damage
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
    metadata, _ = _struct(file.read(length), 0)
    for group in metadata[ROW_GROUPS]:
        for column in group[COLUMNS]:
            chunk = column[COLUMN_METADATA]
            begin = min(at for at in (chunk[DATA], chunk.get(DICTIONARY)) if at)
            _check_pages(file, begin, min(begin + chunk[LENGTH], size), chunk[VALUES])


def _check_pages(file: BufferedReader, at: int, end: int, most: int) -> None:
    """Raises ValueError where a page has more than `most` values, or a negative size."""
    while at < end:
        file.seek(at)
        header, used = _struct(file.read(min(MOST_HEADER_BYTES, end - at)), 0)
        values = [header[kind].get(1, 0) for kind in PAGES if kind in header]
        if min(header[COMPRESSED], header[UNCOMPRESSED], *values) < 0 or max(values, default=0) > most:
            raise ValueError
        at += used + header[COMPRESSED]


def _struct(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    """The fields of a struct by number, and where it ends."""
    fields: dict[int, Any] = {}
    number = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _integer(data, at)
        fields[number], at = _value(head & 15, data, at)
    return fields, at + 1


def _value(kind: int, data: bytes, at: int) -> tuple[Any, int]:
    """A value, of texts and of numbers with a point None, and where it ends."""
    if kind in (1, 2):  # true and false
        return kind == 1, at
    if kind == 3:
        return data[at], at + 1
    if kind in (4, 5, 6):
        return _integer(data, at)
    if kind == 7:
        return None, at + 8
    if kind == 8:
        length, at = _varint(data, at)
        return None, at + length
    if kind in (9, 10):
        return _list(data, at)
    if kind == 12:
        return _struct(data, at)
    raise ValueError


def _list(data: bytes, at: int) -> tuple[list[Any], int]:
    count, kind = data[at] >> 4, data[at] & 15
    at += 1
    if count == 15:
        count, at = _varint(data, at)
    if count > len(data):
        raise ValueError
    values = []
    for _ in range(count):
        value, at = (data[at] == 1, at + 1) if kind in (1, 2) else _value(kind, data, at)
        values.append(value)
    return values, at


def _integer(data: bytes, at: int) -> tuple[int, int]:
    """A signed number in zigzag."""
    number, at = _varint(data, at)
    return (number >> 1) ^ -(number & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
    raise ValueError
