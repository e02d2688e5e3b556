"""Columns → TrackEvent packets of the Perfetto trace format, without a Python object per event.

A varint may be padded with continuation bytes to a fixed width. With one width per column and batch all lengths and
keys become constants, and a slice is a record of constant size: a row of 64-bit words that are put together with
shifts and ORs of whole columns. Rows that lack a value or carry flows are records of another shape; all shapes go into
the file in the order of their rows, because the trace processor breaks ties in time by file order.

Why not the perfetto package's StreamingTraceProtoBuilder: it takes about a hundred times the processor time (this file
encodes some 13 million slices with three arguments a second on one core; tests/benchmarks/bench_encoder.py, 2026-11).

Field numbers are those of protos/perfetto/trace (trace_packet.proto, track_event/*.proto, interned_data.proto).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trace_export.writers.traces.packing import (
    TILE_ROWS,
    Rows,
    Shapes,
    Words,
    batches,
    distinct,
    filled,
    is_text,
    raw,
)
from trace_export.writers.traces.sink import Write

_VARINT, _FIXED64, _BYTES = 0, 1, 2
_SLICE_BEGIN, _SLICE_END, _INSTANT, _COUNTER = 1, 2, 3, 4
_CATEGORIES, _NAMES, _ARGUMENTS, _ARGUMENT_TEXTS, _SEEDS = 1, 2, 3, 29, 43  # tables of InternedData
_SEQUENCE: Final = 1


def varint(value: int, width: int = 1) -> bytes:
    """`value` as a varint of at least `width` bytes. Negative numbers take ten bytes, as int64 fields need."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80 or len(out) + 1 < width:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def field(number: int, value: int | float | str | bytes) -> bytes:
    """One field: an int as varint, a float as double, text and bytes (sub-messages too) with their length in front."""
    if isinstance(value, int):
        return varint(number << 3 | _VARINT) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | _FIXED64) + np.float64(value).tobytes()
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | _BYTES) + varint(len(data)) + data


def packet(body: bytes) -> bytes:
    """`body` as one packet of a Trace."""
    return field(1, body)


@dataclass(frozen=True)
class Column:
    """One value per row in a slot of fixed width: a padded varint of `width` bytes, or eight raw bytes if `raw`.

    The values are `values` less `origin`, or where there is a `table`, its entries at the places `values`.
    """

    values: NDArray[np.generic]
    width: int
    raw: bool = False
    origin: int = 0
    table: Words | None = None

    @staticmethod
    def varints(values: NDArray[np.generic], origin: int = 0) -> Column:
        return Column(values, _width(values, origin), origin=origin)

    @staticmethod
    def entries(table: Words, codes: NDArray[np.generic]) -> Column:
        return Column(codes, _width(table), table=table)

    @staticmethod
    def raw64(values: NDArray[np.generic]) -> Column:
        return Column(np.ascontiguousarray(values).view(np.uint64), 8, raw=True)

    def read(self, rows: Rows, out: Words) -> None:
        """Puts the values of `rows` into `out`, negative ones as their two's complement."""
        values = self.values[rows]
        if self.table is not None:
            np.copyto(out, self.table[values])
        elif self.origin:
            np.subtract(values, self.origin, out=out.view(np.int64))
        else:
            np.copyto(out, values, casting="unsafe")


def _width(values: NDArray[np.generic], origin: int = 0) -> int:
    """The bytes that a varint of any of `values` less `origin` fits into."""
    if not len(values):
        return 1
    if int(values.min()) < origin:
        return 10
    bits = (int(values.max()) - origin).bit_length()
    return -(-bits // 7) or 1 if bits <= 56 else 10


Parts = list["bytes | Column"]


@dataclass(frozen=True)
class Slot:
    """A field of the event: its constant bytes, its column, and the rows that have it (None: all)."""

    head: bytes
    column: Column
    present: NDArray[np.bool_] | None = None


def _size(parts: Parts) -> int:
    return sum(len(p) if isinstance(p, bytes) else p.width for p in parts)


def _message(number: int, parts: Parts, room: int = 0) -> Parts:
    """`parts` as a sub-message; its length is as wide as if there were `room` more bytes."""
    size = _size(parts)
    return [varint(number << 3 | _BYTES) + varint(size, len(varint(size + room))), *parts]


_SPREADING: Final = (
    (4, np.uint64(0x00FFFFFFF0000000), np.uint64(15)),
    (2, np.uint64(0x0FFFC0000FFFC000), np.uint64(3)),
    (1, np.uint64(0x3F803F803F803F80), np.uint64(1)),
)
"""Steps that halve the groups of bits which lie together, each for widths above this many bytes: the upper half of each
group is moved up by 4, 2, 1 bits, that is, 15, 3, 1 times its value is added."""


class Packer:
    """Makes records of columns, at most `TILE_ROWS` at a time.

    All arithmetic happens in place in arrays that are kept: to be given fresh memory costs more than to calculate.
    """

    def __init__(self) -> None:
        self._value = np.empty(TILE_ROWS, np.uint64)
        self._spare = np.empty(TILE_ROWS, np.uint64)
        self._words = np.empty(0, np.uint64)

    def pack(self, parts: Parts, rows: Rows, count: int) -> Words:
        """The records of `rows`, `count` of them, as an array (rows, words); the size of `parts` is a multiple of 8."""
        template, columns = _template(parts)
        constants = np.frombuffer(template, np.uint64)
        if self._words.size < constants.size * count:
            self._words = np.empty(constants.size * TILE_ROWS, np.uint64)
        words = self._words[: constants.size * count].reshape(constants.size, count)
        value = self._value[:count]
        untouched = dict(enumerate(constants))
        for column, at in columns:
            column.read(rows, value)
            if column.width > 8 and not column.raw:
                self._place(words, untouched, [a + 8 for a in at], self._spread(value >> np.uint64(56), 2), 2)
                value &= np.uint64((1 << 56) - 1)
            encoded = value if column.raw else self._spread(value, column.width)
            self._place(words, untouched, at, encoded, column.width)
        for word, constant in untouched.items():
            words[word] = constant
        return words.T.copy()

    def _spread(self, values: Words, width: int) -> Words:
        """`values`, changed: their low 7 · `width` bits (width ≤ 8, more count as 8), 7 to a byte."""
        spare = self._spare[: len(values)]
        for least, mask, factor in _SPREADING:
            if width > least:
                np.bitwise_and(values, mask, out=spare)
                if factor > 1:
                    np.multiply(spare, factor, out=spare)
                np.add(values, spare, out=values)
        return values

    def _place(self, words: Words, untouched: dict[int, np.uint64], at: list[int], values: Words, width: int) -> None:
        """Puts `values`, `width` bytes wide (more count as 8), into the records from each of the bytes `at` on.

        `words[w]` is the word w of all records. `untouched` maps the words that hold nothing yet to their constant
        bytes. The first value that goes into such a word is combined with its constant and the word is taken out of
        `untouched`; any other is combined with what the word holds. A value may reach into the next word.
        """
        spare = self._spare[: len(values)]

        def combine(word: int, moved: Words) -> None:
            np.bitwise_or(moved, untouched.pop(word, words[word]), out=words[word])

        for byte in at:
            word, shift = divmod(byte * 8, 64)
            combine(word, np.left_shift(values, np.uint64(shift), out=spare) if shift else values)
            if shift + 8 * min(width, 8) > 64:
                combine(word + 1, np.right_shift(values, np.uint64(64 - shift), out=spare))


def _template(parts: Parts) -> tuple[bytes, list[tuple[Column, list[int]]]]:
    """The constant bytes of a record, with the continuation bits of varints, and each column's places in it."""
    template = bytearray()
    columns: dict[int, tuple[Column, list[int]]] = {}
    for part in parts:
        if isinstance(part, bytes):
            template += part
        else:
            columns.setdefault(id(part), (part, []))[1].append(len(template))
            template += bytes(8) if part.raw else b"\x80" * (part.width - 1) + b"\0"
    return bytes(template), list(columns.values())


Event = tuple[int, Column, list[Slot]]
"""The type of an event, its time, and its further fields."""


class Encoder:
    """Writes events of one packet sequence to `write`, interning their texts as they come.

    Frames have the columns `track` (uuid ≥ 1), times in ns, `name`, and may have `category` and `seed` (the text of the
    correlation id), `flow_out` and `flow_in` (lists of flow ids). Null and NaN values are left out. Times are written
    as distances from `origin_ns`, which none is before.
    """

    def __init__(self, write: Write, origin_ns: int = 0) -> None:
        self._write = write
        self._origin = origin_ns
        self._iids: dict[int, dict[str, int]] = {
            t: {} for t in (_CATEGORIES, _NAMES, _ARGUMENTS, _ARGUMENT_TEXTS, _SEEDS)
        }
        self._new = bytearray()
        self._packer = Packer()
        write(packet(field(10, _SEQUENCE) + field(13, 1)))

    def slices(self, frame: pl.DataFrame, arguments: Sequence[str] = ()) -> None:
        """Slices with `start_ns`, `end_ns` and the columns `arguments`. Rows of a track must come in the order of start
        and, where slices are nested, the outer one first; a slice must not cross another on its track."""
        for batch in batches(frame):
            track, name, *more = self._slots(batch, arguments)
            begin = (_SLICE_BEGIN, self._time(batch["start_ns"]), [track, name, *more])
            self._put(len(batch), [begin, (_SLICE_END, self._time(batch["end_ns"]), [track, name])])

    def instants(self, frame: pl.DataFrame, arguments: Sequence[str] = ()) -> None:
        """Marks at `ts_ns`."""
        for batch in batches(frame):
            self._put(len(batch), [(_INSTANT, self._time(batch["ts_ns"]), self._slots(batch, arguments))])

    def counters(self, frame: pl.DataFrame) -> None:
        """Samples `value` (real) at `ts_ns`."""
        for batch in batches(frame):
            value = Slot(varint(44 << 3 | _FIXED64), Column.raw64(batch["value"].cast(pl.Float64).to_numpy()))
            self._put(len(batch), [(_COUNTER, self._time(batch["ts_ns"]), [_track(batch), value])])

    def _time(self, series: pl.Series) -> Column:
        return Column.varints(series.to_numpy(), self._origin)

    def _slots(self, batch: pl.DataFrame, arguments: Sequence[str]) -> list[Slot]:
        """Track, name, and whatever else the rows have."""
        name = self._text(batch["name"], b"", 10, _NAMES)
        return [_track(batch), name, *self._common(batch), *self._arguments(batch, arguments)]

    def _common(self, batch: pl.DataFrame) -> Iterator[Slot]:
        if "category" in batch.columns:
            yield self._text(batch["category"], b"", 3, _CATEGORIES)
        if "seed" in batch.columns:
            yield self._text(batch["seed"], b"", 54, _SEEDS)
        for column, number in (("flow_out", 47), ("flow_in", 48)):
            if column in batch.columns:
                flows = batch[column]
                for flow in range(int(flows.list.len().max() or 0)):  # type: ignore[arg-type]
                    ids = flows.list.get(flow, null_on_oob=True)
                    column_of_ids = Column.raw64(filled(ids.cast(pl.UInt64)))
                    yield Slot(varint(number << 3 | _FIXED64), column_of_ids, _present(ids))

    def _arguments(self, batch: pl.DataFrame, names: Sequence[str]) -> Iterator[Slot]:
        """Each column as a DebugAnnotation; its length is constant, as all widths are."""
        for name in names:
            series = batch[name]
            iid = field(1, self._iid(_ARGUMENTS, name))
            if series.null_count() == len(series):
                continue
            if is_text(series):
                slot = self._text(series, iid, 17, _ARGUMENT_TEXTS)
            elif series.dtype.is_float():
                series = series.cast(pl.Float64).fill_nan(None)
                values = Column.raw64(filled(series))
                slot = Slot(iid + varint(5 << 3 | _FIXED64), values, _present(series))
            else:
                key = varint((2 if series.dtype == pl.Boolean else 4) << 3 | _VARINT)
                values = Column.varints(filled(series.to_physical()))
                slot = Slot(iid + key, values, _present(series))
            length = len(slot.head) + slot.column.width
            yield Slot(varint(4 << 3 | _BYTES) + varint(length) + slot.head, slot.column, slot.present)

    def _text(self, series: pl.Series, head: bytes, number: int, table: int) -> Slot:
        """A field with the interned id of each text."""
        codes, index, words = distinct(series)
        iids = np.array([self._iid(table, text) for text in words] or [0], np.uint64)
        return Slot(head + varint(number << 3 | _VARINT), Column.entries(iids[index], codes), _present(series))

    def _iid(self, table: int, text: str) -> int:
        ids = self._iids[table]
        iid = ids.get(text)
        if iid is None:
            iid = ids[text] = len(ids) + 1
            self._new += field(table, field(1, iid) + field(2, text))
        return iid

    def _put(self, rows: int, events: list[Event]) -> None:
        """Writes what was newly interned, then for each row its `events`, one packet each."""
        if self._new:
            self._write(packet(field(10, _SEQUENCE) + field(13, 2) + field(12, bytes(self._new))))
            self._new = bytearray()

        for at in range(0, rows, TILE_ROWS):
            self._write(raw(self._encode(slice(at, min(at + TILE_ROWS, rows)), events)))

    def _encode(self, piece: slice, events: list[Event]) -> Words:
        """The packets of the rows in `piece`; the fields that a row may lack are those of its first event."""
        shapes = Shapes(piece.stop - piece.start)
        for slot in events[0][2]:
            if slot.present is not None:
                shapes.add(slot.present[piece], 2)

        def build(rows_of_shape: Rows, example: int) -> Words:
            packets = [_event(event, piece.start + example) for event in events]
            slack = -sum(map(_size, packets)) % 8
            packets[0] = _event(events[0], piece.start + example, slack)
            parts = [part for parts in packets for part in parts]
            if isinstance(rows_of_shape, slice):
                return self._packer.pack(parts, piece, piece.stop - piece.start)
            return self._packer.pack(parts, rows_of_shape + piece.start, len(rows_of_shape))

        return shapes.interleave(build)


def _event(event: Event, example: int, slack: int = 0) -> Parts:
    """The packet of one event for the rows that have the fields which row `example` has.

    It is `slack` (at most 7) bytes longer than need be: the sequence id is padded, and the length has room for that.
    """
    kind, time, slots = event
    inner: Parts = [field(9, kind)]
    for slot in slots:
        if slot.present is None or slot.present[example]:
            inner += [slot.head, slot.column]
    sequence = varint(10 << 3) + varint(_SEQUENCE, 1 + slack)
    body = [varint(8 << 3), time, sequence, field(13, 2), *_message(11, inner)]
    return _message(1, body, room=7 - slack)


def _track(batch: pl.DataFrame) -> Slot:
    return Slot(varint(11 << 3), Column.varints(batch["track"].to_numpy()))


def _present(series: pl.Series) -> NDArray[np.bool_] | None:
    return series.is_not_null().to_numpy() if series.null_count() else None
