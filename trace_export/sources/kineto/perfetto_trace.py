"""Reader of torch.profiler's Perfetto traces: the same frames of events as of its JSON.

PyTorch since 2.14 writes one where `export_chrome_trace` is given a name with `.pftrace`. What happens on the CPU are
TrackEvents on threads, whose arguments are debug annotations; device tasks are GpuRenderStageEvents on the stream that
is their hardware queue, with their arguments as extra data. Names are interned. The slices of one kind come together,
first the begins of all, then their ends in the same order. The first packet says that BOOTTIME, the clock of all times,
equals REALTIME: they are unix nanoseconds. It does not say the rank. Written by torch/csrc/profiler/cupti in
pytorch/pytorch; the schema is that of the perfetto package, which decodes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from trace_export.errors import SourceError
from trace_export.model import Schema
from trace_export.sources.kineto.json_events import FRAME, NUMBERS, SCHEMA, TEXTS, THREAD_NAME, Wanted
from trace_export.sources.shared.chrome_json import TraceFile

if TYPE_CHECKING:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
        GpuRenderStageEvent,
        InternedData,
        TracePacket,
        TrackEvent,
    )

READ_BYTES = 1 << 20
MAX_PACKET = 64 << 20
"""The packet of interned names, the largest."""
LEAST_PACKET = 10
"""Bytes of a packet with its length, on average. The smallest that PyTorch writes, the end of a slice, has 20."""

_PACKET: Final = 0x0A
_BEGIN, _END = 1, 2
_REALTIME, _BOOTTIME = 1, 6
_ALL_BITS: Final = (1 << 64) - 1

_HOST = ("user_annotation", "cuda_runtime", "cuda_driver")
_STAGES = {"Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset"}
_KEYS = {"stream id": "stream", "device id": "device", "name": "args name"}
"""Extra data that the columns of events call otherwise."""
_FIELDS = (*NUMBERS, *TEXTS)
"""Arguments that are read; threads have their names elsewhere."""
_ROW: Schema = {
    **dict.fromkeys(("cat", "name", "tid"), pl.String()),
    **dict.fromkeys(("start", "end"), pl.Int64()),
    **dict.fromkeys(_FIELDS, pl.String()),
}
_PLACE = {name: place for place, name in enumerate(_ROW)}
_Row = list[Any]


class PerfettoTrace(TraceFile):
    """As `trace.KinetoTrace`: one trace, to be read once."""

    header: dict[str, Any]
    offset_ns: Final = 0

    def __init__(self, path: Path, wanted: Wanted) -> None:
        """Of operators and of frames of Python those are read that are `wanted`. Raises SourceError."""
        super().__init__(path)
        self._operators = wanted.common("cpu_op") is not None
        self._host = _HOST if wanted.common(FRAME) is None else (*_HOST, FRAME)
        self.header = {"baseTimeNanoseconds": 0}
        self._names: dict[int, str] = {}
        self._categories: dict[int, str] = {}
        self._specifications: dict[int, str] = {}
        self._threads: dict[int, tuple[str, str]] = {}
        self._begun: deque[tuple[int, _Row | None]] = deque()  # track and event of each slice without an end so far
        self._ending = False  # whether the last was an end

    def events(self) -> Iterator[pl.DataFrame]:
        """The events that readers look at, as `trace.KinetoTrace.events` gives them.

        Raises SourceError when the file is no Perfetto trace, has packets that hold nothing, or its slices do not end
        in the order they begin.
        """
        rest = b""
        while data := self._read(READ_BYTES):
            rest += data
            bounds = self._packets(rest)
            if len(bounds) > max(len(rest), READ_BYTES) // LEAST_PACKET:
                raise SourceError(self.path, "holds only empty packets", "collect or copy it again")
            if bounds:
                yield _frame([row for packet in self._parsed(rest, bounds) if (row := self._taken(packet)) is not None])
                rest = rest[bounds[-1][1] :]
            elif len(rest) > MAX_PACKET:
                raise SourceError(self.path, "has a packet that is too large for a trace", "collect or copy it again")
        self.truncated = bool(rest) or bool(self._begun)
        yield self._thread_names()

    def _packets(self, data: bytes) -> list[tuple[int, int]]:
        """Where the content of each whole packet begins and stops. One after the other: where a packet begins is known
        only from the one before it."""
        bounds: list[tuple[int, int]] = []
        at, size = 0, len(data)
        while at + 6 <= size:
            if data[at] != _PACKET:
                raise SourceError(self.path, "is not a Perfetto trace", "collect or copy it again")
            length, after, shift = data[at + 1], at + 2, 7
            if length & 0x80:
                length &= 0x7F
                while shift < 35:
                    length |= (data[after] & 0x7F) << shift
                    after, shift = after + 1, shift + 7
                    if data[after - 1] < 0x80:
                        break
            if after + length > size:
                break
            bounds.append((after, after + length))
            at = after + length
        return bounds

    def _parsed(self, data: bytes, bounds: Sequence[tuple[int, int]]) -> Iterator[TracePacket]:
        """The packets; those that are no valid protobuf are counted and left out."""
        from google.protobuf.message import DecodeError
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

        try:
            yield from Trace.FromString(data[: bounds[-1][1]]).packet
        except DecodeError:
            for begin, stop in bounds:
                if (packet := _packet(data[begin:stop])) is None:
                    self.malformed += 1
                else:
                    yield packet

    def _taken(self, packet: TracePacket) -> _Row | None:
        """The event that is whole with this packet; None where there is none that readers look at."""
        if packet.HasField("interned_data"):
            self._learn(packet.interned_data)
        if packet.track_descriptor.HasField("thread"):
            thread = packet.track_descriptor.thread
            self._threads[packet.track_descriptor.uuid] = str(thread.tid), _text(thread.thread_name)
        if packet.HasField("track_event"):
            return self._slice(packet.track_event, _signed(packet.timestamp))
        if packet.HasField("gpu_render_stage_event"):
            return self._task(packet.gpu_render_stage_event, _signed(packet.timestamp))
        return None

    def _learn(self, data: InternedData) -> None:
        self._names |= {entry.iid: _text(entry.name) for entry in data.event_names}
        self._categories |= {entry.iid: _text(entry.name) for entry in data.event_categories}
        self._specifications |= {entry.iid: _text(entry.name) for entry in data.gpu_specifications}

    def _slice(self, event: TrackEvent, time: int) -> _Row | None:
        """The slice that ends with the event. Raises SourceError where an end is not that of the first begin without
        one, or a slice begins after some ends of those before it and before the others.

        Example: `begin begin end end begin end` is in order, `begin begin end begin end end` is not.
        """
        if event.type == _BEGIN:
            if self._ending and self._begun:
                raise self._disorder()
            self._ending = False
            self._begun.append((event.track_uuid, self._begin(event, time)))
        elif event.type == _END:
            track, row = self._begun.popleft() if self._begun else (None, None)
            if track != event.track_uuid:
                raise self._disorder()
            self._ending = True
            if row is not None:
                row[_PLACE["tid"]] = self._threads.get(event.track_uuid, (None, None))[0]
                row[_PLACE["end"]] = time
                return row
        return None

    def _begin(self, event: TrackEvent, start: int) -> _Row | None:
        """An event without an end so far, if readers look at it: annotations, calls of CUDA, and the marks of
        trace_export.instrument, which PyTorch files among its operators."""
        category = self._categories.get(event.category_iids[-1]) if event.category_iids else None
        name = self._names.get(event.name_iid, "")
        marked = category == "cpu_op" and (self._operators or name.startswith("te:"))
        if category not in self._host and not marked:
            return None
        row = _row(category, name, start)
        for argument in event.debug_annotations:
            if (column := _PLACE.get(argument.name)) is not None and argument.name in _FIELDS:
                of_text = argument.HasField("string_value")
                row[column] = _text(argument.string_value) if of_text else str(argument.int_value)
        return row

    def _task(self, event: GpuRenderStageEvent, start: int) -> _Row | None:
        """A device task. A stage without a name of its own has that of its kind; one that was never named is counted,
        and those of other names are no tasks."""
        stage = self._specifications.get(event.stage_iid)
        if stage is None:
            self.malformed += 1
            return None
        if stage not in _STAGES:
            return None
        row = _row(_STAGES[stage], self._names.get(event.name_iid, stage), start)
        row[_PLACE["end"]] = _signed(start + event.duration & _ALL_BITS)
        row[_PLACE["device"]] = str(event.gpu_id)
        for extra in event.extra_data:
            key = _KEYS.get(extra.name, extra.name)
            if key in _FIELDS:
                row[_PLACE[key]] = _text(extra.value)
        queue = self._specifications.get(event.hw_queue_iid, "")
        lane = queue.rpartition("stream ")[2]
        row[_PLACE["tid"]] = lane if "stream " in queue and lane.isdecimal() else row[_PLACE["stream"]]
        return row

    def _thread_names(self) -> pl.DataFrame:
        """The threads as events that name them."""
        rows = []
        for tid, name in self._threads.values():
            rows.append(row := _row(THREAD_NAME, THREAD_NAME, 0))
            row[_PLACE["tid"]], row[_PLACE["end"]], row[_PLACE["args name"]] = tid, 0, name
        return _frame(rows)

    def _disorder(self) -> SourceError:
        what = "its slices do not end in the order they begin, as torch.profiler writes them"
        return SourceError(self.path, what, "export the trace as .json")


def is_trace(start: bytes) -> bool:
    """Whether a Perfetto trace that begins with `start` is one of torch.profiler: its first packet sets BOOTTIME equal
    to REALTIME."""
    if not start or start[0] != _PACKET or len(start) < 2 or start[1] & 0x80:
        return False
    content = _packet(start[2 : 2 + start[1]])
    clocks = {c.clock_id: c.timestamp for c in content.clock_snapshot.clocks} if content else {}
    return _REALTIME in clocks and clocks.get(_BOOTTIME) == clocks[_REALTIME]


def _packet(content: bytes) -> TracePacket | None:
    from google.protobuf.message import DecodeError
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket

    try:
        return TracePacket.FromString(content)
    except DecodeError:
        return None


def _row(category: str | None, name: str, start: int) -> _Row:
    return [category, name, None, start, *[None] * (len(_ROW) - 4)]


def _frame(rows: list[_Row]) -> pl.DataFrame:
    """Rows as events: the columns of `json_events.SCHEMA`."""
    frame = pl.DataFrame(rows, _ROW, orient="row").with_columns(pid=pl.lit(None, pl.String))
    return frame.select(pl.col(name).cast(kind, strict=False) for name, kind in SCHEMA.items())


def _text(value: str | bytes) -> str:
    """A string of a message; the protobuf package gives one that is not UTF-8 as bytes."""
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def _signed(number: int) -> int:
    """An unsigned 64-bit number as the signed one of the same bits, which columns hold."""
    return number - (1 << 64) if number >> 63 else number
