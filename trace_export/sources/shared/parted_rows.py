"""Rows of several tables that are to be joined by a number when all are known, in bounded memory.

Beyond `MOST_BYTES` they go to a temporary file, in parts by that number, which are then joined one after the other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from io import BytesIO
from tempfile import TemporaryFile
from typing import IO, Self

import polars as pl

MOST_BYTES = 8 << 20
"""Of rows in memory, those of some 300,000 launches or kernels."""
PARTS = 32
NEIGHBOURS = 12
"""Numbers that differ only in so many of the last bits are of one part: what was launched together stays together."""


class PartedRows:
    """The rows of `tables`, which have the column `key`, an integer; `count` is how many each has."""

    def __init__(self, key: str, *tables: str) -> None:
        self.count = dict.fromkeys(tables, 0)
        self._key = key
        self._rows: dict[str, list[pl.DataFrame]] = {table: [] for table in tables}
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._places: dict[tuple[str, int], list[tuple[int, int]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, table: str, rows: pl.DataFrame) -> None:
        """Raises OSError where the folder for temporary files takes no more."""
        if rows.is_empty():
            return
        self.count[table] += rows.height
        self._rows[table].append(rows)
        self._bytes += int(rows.estimated_size())
        if self._bytes > MOST_BYTES:
            self._write()

    def parts(self) -> Iterator[dict[str, list[pl.DataFrame]]]:
        """All rows of each table, in pieces; those with equal keys are in the same part."""
        if self._file is None:
            yield self._rows
            return
        self._write()
        for part in range(PARTS):
            yield {table: [self._read(*place) for place in self._places.get((table, part), ())] for table in self.count}

    def _write(self) -> None:
        """Puts what is in memory into the file."""
        if self._file is None:
            self._file = TemporaryFile()  # noqa: SIM115  __exit__ closes it
        self._file.seek(0, os.SEEK_END)
        for table, rows in self._rows.items():
            if not rows:
                continue
            parted = pl.concat(rows).with_columns(part=(pl.col(self._key) // (1 << NEIGHBOURS)) & (PARTS - 1))
            for (part,), piece in parted.partition_by("part", include_key=False, as_dict=True).items():
                content = BytesIO()
                piece.write_ipc(content)
                self._places.setdefault((table, part), []).append((self._file.tell(), content.tell()))
                self._file.write(content.getbuffer())
        self._rows, self._bytes = {table: [] for table in self.count}, 0

    def _read(self, begin: int, size: int) -> pl.DataFrame:
        assert self._file is not None
        self._file.seek(begin)
        return pl.read_ipc(self._file.read(size))


def append(pieces: list[pl.DataFrame], rows: pl.DataFrame) -> None:
    """Appends `rows` where there are any, and once in any case for their columns: a frame without rows takes 3 KB, and
    a large file has many thousands of pieces."""
    if rows.height or not pieces:
        pieces.append(rows)
