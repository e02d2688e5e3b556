"""Streaming parser of torch.profiler's Perfetto traces: the same frames of events as of its JSON.

PyTorch since 2.14 writes one where `export_chrome_trace` is given a name with `.pftrace`. What happens on the CPU are
TrackEvents on threads, whose arguments are debug annotations; device tasks are GpuRenderStageEvents on the stream that
is their hardware queue, with their arguments as extra data. Names are interned. The slices of one kind come together,
first the begins of all, then their ends in the same order. The first packet says that BOOTTIME, the clock of all times,
equals REALTIME: they are unix nanoseconds. It does not say the rank. Written by torch/csrc/profiler/cupti in
pytorch/pytorch; the schema is that of the perfetto package.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from trace_export.errors import SourceError
from trace_export.sources.kineto import wire
from trace_export.sources.kineto.json_events import FRAME, NUMBERS, SCHEMA, TEXTS, THREAD_NAME
from trace_export.sources.kineto.slices import SliceEnds
from trace_export.sources.kineto.trace_file import TraceFile

if TYPE_CHECKING:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket

READ_BYTES = 1 << 20
MAX_PACKET = 64 << 20
"""The packet of interned names, the largest."""
LEAST_PACKET = 10
"""Bytes of a packet with its length, on average. The smallest that PyTorch writes, the end of a slice, has 20."""

_PACKET: Final = 0x0A
_TIMESTAMP, _TRACK_EVENT, _INTERNED, _GPU, _DESCRIPTOR, _CLOCKS = 8, 11, 12, 53, 60, 6
"""Fields of TracePacket."""
_ANNOTATIONS, _CATEGORY, _TYPE, _NAME, _TRACK = 4, 3, 9, 10, 11
"""Fields of TrackEvent."""
_KEY, _INTEGER, _STRING = 10, 4, 6
"""Fields of DebugAnnotation."""
_DURATION, _EXTRA, _DEVICE, _QUEUE, _STAGE, _GPU_NAME = 2, 6, 11, 13, 14, 20
"""Fields of GpuRenderStageEvent; _EXTRA has the key and the text as its fields 1 and 2."""
_BEGIN, _END = 1, 2

_HOST = ("user_annotation", "cuda_runtime", "cuda_driver")
_STAGES = {"Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset", "Annotation": "gpu_user_annotation"}
_KEYS = {"stream id": "stream", "device id": "device", "name": "args name"}
"""Extra data that the columns of events call otherwise."""
_REALTIME, _BOOTTIME = 1, 6
_FIELDS = (*NUMBERS, *TEXTS)
"""Arguments that are read; threads have their names elsewhere."""


class PerfettoTrace(TraceFile):
    """As `event_stream.Trace`: one trace, to be read once."""

    header: dict[str, Any]
    offset_ns: Final = 0

    def __init__(self, path: Path, *, operators: bool = False, frames: bool = False) -> None:
        """`operators`: whether all are wanted, not only our marks; `frames`: whether those of Python are. Raises
        SourceError."""
        super().__init__(path)
        self._operators = operators
        self._host = (*_HOST, FRAME) if frames else _HOST
        self.header = {"baseTimeNanoseconds": 0}
        self._names = pl.Series(dtype=pl.String)
        self._categories = pl.Series(dtype=pl.String)
        self._specifications: dict[int, str] = {}
        self._threads: dict[int, tuple[str, str]] = {}
        self._ends = SliceEnds(path)

    def events(self) -> Iterator[pl.DataFrame]:
        """The events that readers look at, as `event_stream.Trace.events` gives them.

        Raises SourceError when the file is no Perfetto trace, has packets that hold nothing, or its slices do not end
        in the order they begin.
        """
        rest = b""
        while data := self._read():
            rest += data
            begin, stop = self._packets(rest)
            if len(begin) > max(len(rest), READ_BYTES) // LEAST_PACKET:
                raise SourceError(self.path, "consists of packets that hold nothing", "collect or copy it again")
            if len(begin):
                yield from self._events(np.frombuffer(rest + bytes(wire.PADDING), np.uint8), begin, stop)
                rest = rest[int(stop[-1]) :]
            elif len(rest) > MAX_PACKET:
                raise SourceError(self.path, "has a packet that is too large for a trace", "collect or copy it again")
        self.truncated = bool(rest) or self._ends.pending
        yield from self._slices(self._ends.finished(last=True))
        yield self._thread_names()

    def _read(self) -> bytes:
        try:
            return self._file.read(READ_BYTES)
        except OSError as error:
            raise SourceError(self.path, f"cannot be read ({error.strerror})") from error

    def _packets(self, data: bytes) -> tuple[wire.Ints, wire.Ints]:
        """Where the content of each whole packet begins and stops. One after the other: where a packet begins is known
        only from the one before it."""
        bounds: list[int] = []
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
            bounds += (after, after + length)
            at = after + length
        pairs = np.array(bounds, np.int64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    def _events(self, buffer: wire.Bytes, begin: wire.Ints, stop: wire.Ints) -> Iterator[pl.DataFrame]:
        packets, whole = wire.fields(buffer, begin, stop)
        self.malformed += int(np.count_nonzero(~whole))
        learned = [packets.of(number, nested=True).message for number in (_INTERNED, _DESCRIPTOR)]
        self._learn(buffer[begin[packet] : stop[packet]].tobytes() for packet in np.concatenate(learned))
        times = packets.column(_TIMESTAMP, len(begin))
        self._take_slices(buffer, packets.of(_TRACK_EVENT, nested=True), times)
        yield from self._slices(self._ends.finished())
        gpu = packets.of(_GPU, nested=True)
        if len(gpu.message):
            yield self._tasks(buffer, gpu, times[gpu.message])

    def _learn(self, packets: Iterable[bytes]) -> None:
        """Takes in what packets say of names and tracks. Those that are no valid protobuf are left out."""
        names: list[tuple[int, str]] = []
        categories: list[tuple[int, str]] = []
        for packet in packets:
            content = _parsed(packet)
            if content is None:
                self.malformed += 1
                continue
            names += [(entry.iid, _text(entry.name)) for entry in content.interned_data.event_names]
            categories += [(entry.iid, _text(entry.name)) for entry in content.interned_data.event_categories]
            self._specifications |= {_signed(s.iid): _text(s.name) for s in content.interned_data.gpu_specifications}
            thread = content.track_descriptor.thread
            if content.track_descriptor.HasField("thread"):
                self._threads[_signed(content.track_descriptor.uuid)] = str(thread.tid), _text(thread.thread_name)
        self._names = _extended(self._names, names)  # at once, for it makes the whole table anew
        self._categories = _extended(self._categories, categories)

    def _take_slices(self, buffer: wire.Bytes, slices: wire.Fields, times: wire.Ints) -> None:
        """Takes in begins and ends, in their order; of the begins those that readers look at."""
        events, _ = wire.fields(buffer, slices.value, slices.stop)
        count = len(slices.message)
        kind, track = events.column(_TYPE, count), events.column(_TRACK, count)
        name, category = events.column(_NAME, count), events.column(_CATEGORY, count)
        wanted = self._wanted(name, category)
        frame = pl.DataFrame(
            {"name": name, "category": category, "track": track, "start": times[slices.message]}
        ).with_columns(_annotations(buffer, events, wanted, count))
        self._ends.add(kind, frame, wanted)

    def _wanted(self, name: wire.Ints, category: wire.Ints) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether a slice of that name and category, by their numbers, is one that readers look at: annotations, calls
        of CUDA, and the marks of trace_export.instrument, which PyTorch files among its operators."""
        host = np.flatnonzero(self._categories.is_in(self._host).to_numpy())
        operator = np.flatnonzero((self._categories == "cpu_op").to_numpy())
        marks = np.flatnonzero(self._names.str.starts_with("te:").fill_null(False).to_numpy())
        wanted: np.ndarray[Any, np.dtype[np.bool_]]
        wanted = np.isin(category, host) | (np.isin(category, operator) & (self._operators | np.isin(name, marks)))
        return wanted

    def _slices(self, finished: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
        """Slices with both ends as events."""
        threads = self._thread_table()
        for frame in finished:
            found = frame.join(threads.select("track", "tid"), on="track", how="left", maintain_order="left")
            yield found.select(
                _looked_up(self._categories, found["category"]).alias("cat"),
                _looked_up(self._names, found["name"]).fill_null("").alias("name"),
                *_present(found)[2:],
            )

    def _thread_table(self) -> pl.DataFrame:
        rows = [(track, *of_thread) for track, of_thread in self._threads.items()]
        return pl.DataFrame(rows, {"track": pl.Int64, "tid": pl.String, "args name": pl.String}, orient="row")

    def _thread_names(self) -> pl.DataFrame:
        """The threads as events that name them."""
        names = self._thread_table().with_columns(cat=pl.lit(THREAD_NAME), name=pl.lit(THREAD_NAME), start=0, end=0)
        return names.cast({"start": pl.Int64, "end": pl.Int64}).select(_present(names))

    def _tasks(self, buffer: wire.Bytes, gpu: wire.Fields, times: wire.Ints) -> pl.DataFrame:
        """Device tasks as events. A stage without a name of its own has that of its kind."""
        count = len(gpu.message)
        stages, whole = wire.fields(buffer, gpu.value, gpu.stop)
        self.malformed += int(np.count_nonzero(~whole))
        names = pl.DataFrame(list(self._specifications.items()), {"key": pl.Int64, "stage": pl.String}, orient="row")
        kind = pl.DataFrame({"key": stages.column(_STAGE, count)}).join(
            names, on="key", how="left", maintain_order="left"
        )
        queue = pl.DataFrame({"key": stages.column(_QUEUE, count)}).join(
            names, on="key", how="left", maintain_order="left"
        )
        frame = pl.DataFrame({"start": times, "end": times + stages.column(_DURATION, count)}).with_columns(
            _extra_data(buffer, stages, count)
        )
        lane = queue["stage"].str.extract(r"stream (\d+)$")
        device = pl.Series(stages.column(_DEVICE, count)).cast(pl.String)
        name = _looked_up(self._names, pl.Series(stages.column(_GPU_NAME, count)))
        tasks = frame.with_columns(
            cat=kind["stage"].replace_strict(_STAGES, default=None, return_dtype=pl.String),
            name=name.fill_null(kind["stage"]).fill_null(""),
            tid=pl.coalesce(lane, "stream"),
            device=pl.coalesce("device", device),
        )
        self.malformed += kind["stage"].null_count()  # a stage that was never named; stages of other names are no tasks
        return tasks.filter(pl.col("cat").is_not_null()).select(_present(tasks))


def _present(frame: pl.DataFrame) -> list[pl.Expr]:
    """The columns of events, null where the frame lacks them."""
    return [
        pl.col(c).cast(kind, strict=False) if c in frame.columns else pl.lit(None, kind).alias(c)
        for c, kind in SCHEMA.items()
    ]


def is_trace(start: bytes) -> bool:
    """Whether a Perfetto trace that begins with `start` is one of torch.profiler: its first packet sets BOOTTIME equal
    to REALTIME."""
    if not start or start[0] != _PACKET or len(start) < 2 or start[1] & 0x80:
        return False
    content = _parsed(start[2 : 2 + start[1]])
    clocks = {c.clock_id: c.timestamp for c in content.clock_snapshot.clocks} if content else {}
    return _REALTIME in clocks and clocks.get(_BOOTTIME) == clocks[_REALTIME]


def _parsed(packet: bytes) -> TracePacket | None:
    from google.protobuf.message import DecodeError
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket

    try:
        return TracePacket.FromString(packet)
    except DecodeError:
        return None


def _text(value: str | bytes) -> str:
    """A string of a message; the protobuf package gives one that is not UTF-8 as bytes."""
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def _signed(number: int) -> int:
    """An unsigned 64-bit number as the signed one of the same bits, which columns hold."""
    return number - (1 << 64) if number >> 63 else number


def _extended(table: pl.Series, entries: list[tuple[int, str]]) -> pl.Series:
    """A table of names by their number, with further entries; numbers that would waste memory are left out."""
    entries = [(iid, name) for iid, name in entries if 0 < iid < (1 << 22)]
    if not entries:
        return table
    names = [*table, *[None] * (max(iid for iid, _ in entries) + 1 - len(table))]
    for iid, name in entries:
        names[iid] = name
    return pl.Series(names, dtype=pl.String)


def _looked_up(table: pl.Series, numbers: pl.Series) -> pl.Series:
    inside = (numbers > 0) & (numbers < len(table))
    places = pl.select(pl.when(inside).then(numbers)).to_series()
    return table.gather(places) if len(table) else pl.Series([None] * len(numbers), dtype=pl.String)


def _annotations(
    buffer: wire.Bytes, events: wire.Fields, wanted: np.ndarray[Any, np.dtype[np.bool_]], count: int
) -> list[pl.Series]:
    """The debug annotations of the wanted events that are among `_FIELDS`, as text."""
    every = events.of(_ANNOTATIONS, nested=True)
    kept = wanted[every.message]
    owner, begin, stop = every.message[kept], every.value[kept], every.stop[kept]
    content, _ = wire.fields(buffer, begin, stop)
    keys, texts = content.of(_KEY, nested=True), content.of(_STRING, nested=True)
    value = pl.Series(content.column(_INTEGER, len(owner))).cast(pl.String)
    value = value.scatter(texts.message, wire.texts(buffer, texts.value, texts.stop))
    named = pl.DataFrame({"at": keys.message, "key": wire.texts(buffer, keys.value, keys.stop)})
    return _by_key(named, pl.Series(owner), value, count)


def _extra_data(buffer: wire.Bytes, stages: wire.Fields, count: int) -> list[pl.Series]:
    """The extra data that are among `_FIELDS`, as text."""
    every = stages.of(_EXTRA, nested=True)
    content, _ = wire.fields(buffer, every.value, every.stop)
    keys, values = content.of(1, nested=True), content.of(2, nested=True)
    key = wire.texts(buffer, keys.value, keys.stop).replace(_KEYS)
    text = pl.Series([None] * len(every.message), dtype=pl.String)
    text = text.scatter(values.message, wire.texts(buffer, values.value, values.stop))
    return _by_key(pl.DataFrame({"at": keys.message, "key": key}), pl.Series(every.message), text, count)


def _by_key(named: pl.DataFrame, owner: pl.Series, value: pl.Series, count: int) -> list[pl.Series]:
    """A column of `count` rows for each of `_FIELDS`. `named`: at (a place in `owner` and `value`), key."""
    nothing = pl.Series([None], dtype=pl.String).new_from_index(0, count)
    columns = []
    for field in _FIELDS:
        places = named.filter(pl.col("key") == field)["at"]
        columns.append(nothing.clone().scatter(owner.gather(places), value.gather(places)).alias(field))
    return columns
