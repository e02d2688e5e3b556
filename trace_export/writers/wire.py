"""Columns → TrackEvent packets of the Perfetto trace format, without a Python object per event.

A varint may be padded with continuation bytes to a fixed width. With one width per column and chunk all lengths and
keys become constants, and a slice is a record of constant size: a row of 64-bit words that are put together with
shifts and ORs of whole columns. Rows that lack a value or carry flows are records of another shape; all shapes go into
the file in the order of their rows, because the trace processor breaks ties in time by file order.

Field numbers are those of protos/perfetto/trace (trace_packet.proto, track_event/*.proto, interned_data.proto).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trace_export.writers.records import CHUNK, Rows, Shapes, Words, blocks, distinct, encoded, raw
from trace_export.writers.sink import Write

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
    """One value per row in a slot of fixed width: a padded varint of `width` bytes, or eight raw bytes if `raw`."""

    values: Words
    width: int
    raw: bool = False

    @staticmethod
    def varints(values: NDArray[np.generic]) -> Column:
        numbers = values.astype(np.int64, copy=False).view(np.uint64) if values.dtype.kind == "i" else values
        numbers = numbers.astype(np.uint64, copy=False)
        bits = int(numbers.max(initial=0)).bit_length()
        return Column(numbers, -(-bits // 7) or 1 if bits <= 56 else 10)

    def take(self, rows: Rows) -> Column:
        return Column(self.values[rows], self.width, self.raw)

    @staticmethod
    def raw64(values: NDArray[np.generic]) -> Column:
        return Column(np.ascontiguousarray(values).view(np.uint64), 8, raw=True)


Parts = list["bytes | Column"]


@dataclass(frozen=True)
class Slot:
    """A field of the event: its constant bytes, its column, and the rows that have it (None: all)."""

    head: bytes
    column: Column
    present: NDArray[np.bool_] | None = None

    def cut(self, rows: slice) -> Slot:
        """The same for some of the rows."""
        return Slot(self.head, self.column.take(rows), None if self.present is None else self.present[rows])


def _size(parts: Parts) -> int:
    return sum(len(p) if isinstance(p, bytes) else p.width for p in parts)


def _message(number: int, parts: Parts, room: int = 0) -> Parts:
    """`parts` as a sub-message; its length is as wide as if there were `room` more bytes."""
    size = _size(parts)
    return [varint(number << 3 | _BYTES) + varint(size, len(varint(size + room))), *parts]


def _spread(values: Words, width: int) -> Words:
    """The low 7 · `width` bits of each value, 7 to a byte (width ≤ 8), by halving steps on the whole word."""
    v = values
    if width == 1:
        return v
    if width > 4:
        v = (v & np.uint64(0x00FFFFFFF0000000)) << np.uint64(4) | v & np.uint64(0x000000000FFFFFFF)
    if width > 2:
        v = (v & np.uint64(0x0FFFC0000FFFC000)) << np.uint64(2) | v & np.uint64(0x00003FFF00003FFF)
    return (v & np.uint64(0x3F803F803F803F80)) << np.uint64(1) | v & np.uint64(0x007F007F007F007F)


def _pack(parts: Parts, rows: int) -> Words:
    """The records of `rows` rows as an array (rows, words); the size of `parts` is a multiple of eight."""
    template = bytearray()
    places: list[tuple[int, Words]] = []
    for part in parts:
        at = len(template)
        if isinstance(part, bytes):
            template += part
        elif part.raw:
            template += bytes(8)
            places.append((at, part.values))
        else:
            template += b"\x80" * (part.width - 1) + b"\0"
            places.append((at, _spread(part.values & np.uint64((1 << 56) - 1), min(part.width, 8))))
            if part.width > 8:
                places.append((at + 8, _spread(part.values >> np.uint64(56), 2)))
    constants = np.frombuffer(bytes(template), np.uint64)
    words = np.repeat(constants, rows).reshape(len(constants), rows)
    for at, values in places:
        word, shift = divmod(at * 8, 64)
        words[word] |= values << np.uint64(shift)
        if shift and word + 1 < len(words):
            words[word + 1] |= values >> np.uint64(64 - shift)
    return np.ascontiguousarray(words.T)


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
        self._new = b""
        write(packet(field(10, _SEQUENCE) + field(13, 1)))

    def slices(self, frame: pl.DataFrame, arguments: Sequence[str] = ()) -> None:
        """Slices with `start_ns`, `end_ns` and the columns `arguments`. Rows of a track must come in the order of start
        and, where slices are nested, the outer one first; a slice must not cross another on its track."""
        for block in blocks(frame):
            track, name, *more = self._slots(block, arguments)
            begin = (_SLICE_BEGIN, self._time(block["start_ns"]), [track, name, *more])
            self._put(len(block), [begin, (_SLICE_END, self._time(block["end_ns"]), [track, name])])

    def instants(self, frame: pl.DataFrame, arguments: Sequence[str] = ()) -> None:
        """Marks at `ts_ns`."""
        for block in blocks(frame):
            self._put(len(block), [(_INSTANT, self._time(block["ts_ns"]), self._slots(block, arguments))])

    def counters(self, frame: pl.DataFrame) -> None:
        """Samples `value` (real) at `ts_ns`."""
        for block in blocks(frame):
            value = Slot(varint(44 << 3 | _FIXED64), Column.raw64(block["value"].cast(pl.Float64).to_numpy()))
            self._put(len(block), [(_COUNTER, self._time(block["ts_ns"]), [_track(block), value])])

    def _time(self, series: pl.Series) -> Column:
        return Column.varints(series.to_numpy() - self._origin)

    def _slots(self, block: pl.DataFrame, arguments: Sequence[str]) -> list[Slot]:
        """Track, name, and whatever else the rows have."""
        name = self._text(block["name"], b"", 10, _NAMES)
        return [_track(block), name, *self._common(block), *self._arguments(block, arguments)]

    def _common(self, block: pl.DataFrame) -> Iterator[Slot]:
        if "category" in block.columns:
            yield self._text(block["category"], b"", 3, _CATEGORIES)
        if "seed" in block.columns:
            yield self._text(block["seed"], b"", 54, _SEEDS)
        for column, number in (("flow_out", 47), ("flow_in", 48)):
            if column in block.columns:
                flows = block[column]
                for place in range(int(flows.list.len().max() or 0)):  # type: ignore[arg-type]
                    ids = flows.list.get(place, null_on_oob=True)
                    column_of_ids = Column.raw64(ids.fill_null(0).cast(pl.UInt64).to_numpy())
                    yield Slot(varint(number << 3 | _FIXED64), column_of_ids, _present(ids))

    def _arguments(self, block: pl.DataFrame, names: Sequence[str]) -> Iterator[Slot]:
        """Each column as a DebugAnnotation; its length is constant, as all widths are."""
        for name in names:
            series = block[name]
            iid = field(1, self._iid(_ARGUMENTS, name))
            if series.dtype in (pl.String, pl.Categorical, pl.Enum):
                slot = self._text(series, iid, 17, _ARGUMENT_TEXTS)
            elif series.dtype.is_float():
                series = series.cast(pl.Float64).fill_nan(None)
                values = Column.raw64(series.fill_null(0.0).to_numpy())
                slot = Slot(iid + varint(5 << 3 | _FIXED64), values, _present(series))
            else:
                key = varint((2 if series.dtype == pl.Boolean else 4) << 3 | _VARINT)
                values = Column.varints(series.cast(_wide(series.dtype)).fill_null(0).to_numpy())
                slot = Slot(iid + key, values, _present(series))
            length = len(slot.head) + slot.column.width
            yield Slot(varint(4 << 3 | _BYTES) + varint(length) + slot.head, slot.column, slot.present)

    def _text(self, series: pl.Series, head: bytes, number: int, table: int) -> Slot:
        """A field with the interned id of each text."""
        places, found = distinct(series)
        iids = np.array([self._iid(table, text) for text in found] or [0], np.uint64)
        return Slot(head + varint(number << 3 | _VARINT), Column.varints(iids[places]), _present(series))

    def _iid(self, table: int, text: str) -> int:
        known = self._iids[table]
        iid = known.get(text)
        if iid is None:
            iid = known[text] = len(known) + 1
            self._new += field(table, field(1, iid) + field(2, text))
        return iid

    def _put(self, rows: int, events: list[Event]) -> None:
        """Writes what was newly interned, then for each row its `events`, one packet each."""
        if self._new:
            self._write(packet(field(10, _SEQUENCE) + field(13, 2) + field(12, self._new)))
            self._new = b""

        def encode(piece: slice) -> Words:
            cut = [(kind, time.take(piece), [slot.cut(piece) for slot in slots]) for kind, time, slots in events]
            return _encode(piece.stop - piece.start, cut)

        for words in encoded(rows, CHUNK, encode):
            self._write(raw(words))


def _encode(rows: int, events: list[Event]) -> Words:
    """The packets of all rows; the fields that a row may lack are those of its first event."""
    shapes = Shapes(rows)
    for slot in events[0][2]:
        if slot.present is not None:
            shapes.add(slot.present, 2)

    def build(rows_of_shape: Rows, example: int) -> Words:
        packets = [_event(event, rows_of_shape, example) for event in events]
        slack = -sum(map(_size, packets)) % 8
        packets[0] = _event(events[0], rows_of_shape, example, slack)
        count = rows if isinstance(rows_of_shape, slice) else len(rows_of_shape)
        return _pack([part for parts in packets for part in parts], count)

    return shapes.interleave(build)


def _event(event: Event, rows: Rows, example: int, slack: int = 0) -> Parts:
    """The packet of one event for `rows`, which all have the fields that row `example` has.

    It is `slack` (at most 7) bytes longer than need be: the sequence id is padded, and the length has room for that.
    """
    kind, time, slots = event
    inner: Parts = [field(9, kind)]
    for slot in slots:
        if slot.present is None or slot.present[example]:
            inner += [slot.head, slot.column.take(rows)]
    sequence = varint(10 << 3) + varint(_SEQUENCE, 1 + slack)
    body = [varint(8 << 3), time.take(rows), sequence, field(13, 2), *_message(11, inner)]
    return _message(1, body, room=7 - slack)


def _track(block: pl.DataFrame) -> Slot:
    return Slot(varint(11 << 3), Column.varints(block["track"].to_numpy()))


def _present(series: pl.Series) -> NDArray[np.bool_] | None:
    return series.is_not_null().to_numpy() if series.null_count() else None


def _wide(dtype: pl.DataType) -> pl.DataType:
    return pl.UInt64() if dtype.is_unsigned_integer() else pl.Int64()
