"""Columns → JSON records of fixed width, without a Python object per event.

A record is a template in which numbers stand right-aligned behind blanks and texts are followed by blanks, both of
which JSON allows. Numbers come from tables of four digits each, texts from the distinct ones of a batch.

Why not orjson on a dict per event: it takes about eight times the processor time (this file encodes some 3.5 million
slices with three arguments a second on one core), and the dicts take memory that grows with the trace
(tests/benchmarks/bench_encoder.py, 2026-11).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import orjson
import polars as pl
from numpy.typing import NDArray

from trace_export.writers.traces.packing import TILE_ROWS, Rows, Shapes, Words, distinct, filled, is_text

Present = NDArray[np.bool_] | None

_TILE_BYTES: Final = 1 << 21
"""A tile of records takes no more, however long the texts in it are."""
_CACHED_BYTES: Final = 1 << 19
"""Records that are filled column by column, so that they stay in the processor's cache meanwhile."""

_NUMBERS: Final = np.arange(10_000).astype("S4")
_ZEROS: Final = np.char.zfill(_NUMBERS, 4).view("<u4")
_GROUPS: Final = np.concatenate([np.char.rjust(_NUMBERS, 4).view("<u4"), _ZEROS, np.frombuffer(b"    ", "<u4")])
"""Four digits of 0 … 9999 with blanks in front; the same with zeros in front, for groups that follow others; blanks."""
_FOLLOWS, _NOTHING = 10_000, 20_000


@dataclass(frozen=True)
class Number:
    """Whole numbers ≥ 0 in `groups` groups of four digits; `fraction`: the value in thousandths, written `q.rrr`."""

    values: NDArray[np.int64]
    groups: int
    present: Present = None
    fraction: bool = False

    @staticmethod
    def of(values: NDArray[np.generic], present: Present = None, fraction: bool = False) -> Number:
        numbers = values.astype(np.int64, copy=False)
        digits = len(str(int(numbers.max(initial=0)) // (1000 if fraction else 1)))
        return Number(numbers, -(-digits // 4), present, fraction)

    @property
    def width(self) -> int:
        return 4 * self.groups + (4 if self.fraction else 0)

    def width_at(self, row: int) -> int:
        return self.width

    def put(self, out: NDArray[np.uint8], at: int, rows: NDArray[np.intp], width: int) -> None:
        """Writes the digits of `rows` into the columns of `out` from `at` on."""
        whole = self.values[rows]
        if self.fraction:
            whole, rest = _divided(whole, 1000)
            _words(out, at + 4 * self.groups)[:] = _ZEROS[rest] - np.uint32(ord("0") - ord("."))  # "0rrr" → ".rrr"
        for group in reversed(range(self.groups)):
            higher, digits = _divided(whole, 10_000)
            if group > 0:
                digits += (higher > 0) * _FOLLOWS
            if group < self.groups - 1:
                digits[whole == 0] = _NOTHING
            _words(out, at + 4 * group)[:] = _GROUPS[digits]
            whole = higher


@dataclass(frozen=True)
class Text:
    """JSON values of any kind: each row's place among the distinct ones of the batch, and the width it is given.

    Widths come in few sizes, so that one long text does not widen all records, and records have few shapes.
    """

    codes: NDArray[np.intp]
    values: list[bytes]
    widths: NDArray[np.int64]
    present: Present = None
    _tables: dict[int, tuple[NDArray[np.bytes_], NDArray[np.intp]]] = field(default_factory=dict)

    @staticmethod
    def of(series: pl.Series) -> Text:
        if is_text(series):
            code, place, found = distinct(series)
            codes = place[code]
        else:
            found = series.drop_nulls().unique(maintain_order=True).to_list()
            codes = series.replace_strict(found, range(len(found)), default=0, return_dtype=pl.Int64).to_numpy()
        values = [dumps(v) for v in found]
        widths = np.array([_slot_width(len(v)) for v in values] or [8])
        return Text(codes, values, widths, present(series))

    def width_at(self, row: int) -> int:
        return int(self.widths[self.codes[row]])

    def put(self, out: NDArray[np.uint8], at: int, rows: NDArray[np.intp], width: int) -> None:
        """Writes the values of `rows`, all of `width`, into the columns of `out` from `at` on."""
        table, place = self._table(width)
        _view(out, at, table.dtype)[:] = table[place[self.codes[rows]]]

    def _table(self, width: int) -> tuple[NDArray[np.bytes_], NDArray[np.intp]]:
        """The values of that width, and where among them each value is."""
        if width not in self._tables:
            same = self.widths == width
            fitting = [v.ljust(width) for v, fits in zip(self.values, same.tolist(), strict=True) if fits]
            self._tables[width] = np.array(fitting), np.cumsum(same) - 1
        return self._tables[width]


Value = Number | Text

_CLOSING_BACKSLASH: Final = re.compile(rb'(?<!\\)((?:\\\\)*)\\\\"')


def dumps(value: object) -> bytes:
    """`value` as JSON. A backslash that ends a text is written by its number: the trace processor v52 takes a quote
    after two backslashes for an escaped one, and then reads nothing of the file.

    The text is copied, because what orjson returns keeps the 4 kB buffer that it was written in."""
    return bytes(memoryview(_CLOSING_BACKSLASH.sub(rb'\1\\u005c"', orjson.dumps(value))))


def value(series: pl.Series) -> Value:
    """The column as JSON values; null and, as JSON has none, NaN and infinity are left out."""
    if series.dtype.is_integer():
        numbers = series.cast(pl.Int64, strict=False)
        if numbers.null_count() == series.null_count() and (numbers >= 0).all():
            return Number.of(filled(numbers), present(series))
    if series.dtype.is_float():
        series = series.set(~series.is_finite(), None)
    return Text.of(series)


def present(series: pl.Series) -> Present:
    return series.is_not_null().to_numpy() if series.null_count() else None


Parts = list["bytes | Value"]


def _slot_width(length: int) -> int:
    """The least of 8, 16, 24, 32, 48, 64, 96, 128, … that is not below `length`."""
    if length <= 32:
        return max(8, -(-length // 8) * 8)
    power = 1 << (length - 1).bit_length()
    return power * 3 // 4 if length <= power * 3 // 4 else power


def _divided(values: NDArray[np.int64], by: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Quotients and remainders. For one divisor NumPy multiplies instead in `//`, but not in `divmod`."""
    quotients = values // by
    return quotients, values - quotients * by


def _view(out: NDArray[np.uint8], at: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The columns of `out` from `at` on as one item of `dtype` per row."""
    return np.ndarray(len(out), dtype, out, at, out.strides[:1])


def _words(out: NDArray[np.uint8], at: int) -> NDArray[np.uint32]:
    return _view(out, at, np.dtype("<u4"))


def records(rows: int, head: Parts, optional: list[tuple[bytes, Value]], tail: bytes) -> Iterator[Words]:
    """One record per row, in tiles: `head` (constants and values that all rows have), then of the `optional` values
    those that the row has, each after its key and parted by commas, then `tail`; blanks fill it up to whole words."""
    values = [part for part in head if not isinstance(part, bytes)] + [item for _, item in optional]
    widest = sum(int(v.widths.max()) if isinstance(v, Text) else v.width for v in values)
    at_once = max(1, min(TILE_ROWS, _TILE_BYTES // (widest + 1)))
    for at in range(0, rows, at_once):  # threads for it would each keep memory of their own
        yield _tile(np.arange(at, min(at + at_once, rows)), head, optional, tail)


def _tile(rows: NDArray[np.intp], head: Parts, optional: list[tuple[bytes, Value]], tail: bytes) -> Words:
    shapes = Shapes(len(rows))
    for item in [part for part in head if not isinstance(part, bytes)] + [item for _, item in optional]:
        if isinstance(item, Text) and len(sizes := np.unique(item.widths)) > 1:
            shapes.add(np.searchsorted(sizes, item.widths)[item.codes[rows]], len(sizes))
        if item.present is not None:
            shapes.add(item.present[rows], 2)

    def build(rows_of_shape: Rows, example: int) -> Words:
        parts = list(head)
        comma = b""
        for key, item in optional:
            if item.present is None or item.present[rows[example]]:
                parts += [comma + key, item]
                comma = b","
        return _fill([*parts, tail], rows[rows_of_shape])

    return shapes.interleave(build)


def _fill(parts: Parts, rows: NDArray[np.intp]) -> Words:
    """The records of `rows`, which are all of one shape."""
    template = b""
    places: list[tuple[int, Value, int]] = []
    for part in parts:
        if isinstance(part, bytes):
            template += part
        else:
            width = part.width_at(int(rows[0]))
            places.append((len(template), part, width))
            template += b" " * width
    template += b" " * (-len(template) % 8)
    out = np.empty((len(rows), len(template)), np.uint8)
    at_once = max(1, _CACHED_BYTES // len(template))
    for first in range(0, len(rows), at_once):
        piece = slice(first, first + at_once)
        out[piece] = np.frombuffer(template, np.uint8)
        for at, item, width in places:
            item.put(out[piece], at, rows[piece], width)
    return out.view(np.uint64)
