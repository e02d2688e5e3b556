"""`trace_view.json` of torch_npu and MindSpore: markers, steps and counters, read in pieces.

The file is a bare JSON array of Chrome trace events (or an object with one), hundreds of MB for a large step. It is
split between events into pieces of some MB, which Polars reads as lines of JSON; of each piece only the rows are kept
that mean something here. `ts` is a text of unix µs with three decimals, because a float would lose the last of them.
Other versions and scripts write a number, or count from the first event of the rank.
"""

from __future__ import annotations

import codecs
import io
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec
import polars as pl

from trace_export.errors import SourceError
from trace_export.files import Unpacked
from trace_export.model import COUNTERS, INT, TEXT, TIME, Note, Schema, conform, empty
from trace_export.sources.ascend.marker_blocks import MARKS, STEPS
from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.ranges.notes import unmatched
from trace_export.units import EPOCH_NS, thousandths

PIECE_BYTES = 8 << 20
MAX_EVENT_BYTES = 16 << 20
"""No event is as long as this; a file without the end of one is no trace."""

MOST_EVENTS = 1 << 16
"""In one piece, because an event takes some 200 bytes as a row, be it eight in the file."""

MOST_INSIDE = 1000
"""So many ends of events at the end of a piece are tried. An event has some dozens inside."""

_BETWEEN = re.compile(rb'\}\s*,\s*\{(?=\s*")')
"""The end of an event and the start of the next. Inside a JSON string the quote would be escaped."""

_LIST = re.compile(rb'(?:\{(?:[^\[\]{}]*,)?\s*"traceEvents"\s*:\s*)?\[')
"""What the events follow: the profilers write a bare list, scripts an object around it, perhaps with plain fields."""
_TIME = re.compile(rb'(?<!\\)"ts"\s*:\s*("?)(-?\d+(?:\.\d+)?)')
"""A time: its quote, which a number does not have, and its digits."""

_UNITS = {"KB": "KB", "MHz": "MHz", "Read(MB/s)": "MB/s", "Write(MB/s)": "MB/s", "Throughput(MB/s)": "MB/s",
          "Hit Rate(%)": "%"}  # fmt: skip
"""The counters that are kept: key of the value in `args` → unit."""

_EVENTS = msgspec.json.Decoder(list[msgspec.Raw])
_EVENT = {
    "ph": TEXT, "name": TEXT, "pid": TEXT, "tid": TEXT, "ts": TEXT, "dur": pl.Float64(),
    "args": pl.Struct({"name": TEXT, **dict.fromkeys(_UNITS, pl.Float64())}),
}  # fmt: skip
KEPT: Schema = {
    "ph": TEXT, "name": TEXT, "pid": TEXT, "tid": TEXT, "start_ns": TIME, "end_ns": TIME,
    "value": pl.Float64(), "unit": TEXT, "title": TEXT,
}  # fmt: skip
"""An event that was kept; `title` is the name that a metadata event gives to its process or thread."""

HARDWARE = "Ascend Hardware"
STEP_NAME = r"^ProfilerStep#(\d{1,9})$"


@dataclass(frozen=True)
class TraceView:
    """`marks` and `steps` as in marker_blocks, `counters` as in model.COUNTERS but for the rank. Where their times are
    no unix times, `tasks` has the start_ns and end_ns of all events that last."""

    marks: pl.DataFrame
    steps: pl.DataFrame
    counters: pl.DataFrame
    notes: tuple[Note, ...]
    tasks: pl.DataFrame | None = None

    def moved(self, offset_ns: int) -> TraceView:
        """With so much added to all times."""
        marks, steps = (
            frame.with_columns(pl.col(times) + offset_ns)
            for frame, times in (
                (self.marks, ["start_ns", "end_ns", "host_start_ns", "host_end_ns"]),
                (self.steps, ["start_ns", "end_ns"]),
            )
        )
        counters = self.counters.with_columns(pl.col("ts_ns") + offset_ns)
        return TraceView(marks, steps, counters, self.notes)


NOTHING = TraceView(empty(MARKS), empty(STEPS), empty(COUNTERS), ())


def read(path: Path, dialects: Dialects) -> TraceView:
    """What is in the file at `path`. Raises SourceError when it is not a trace."""
    notes: list[Note] = []
    try:
        events = pl.concat([empty(KEPT), *(_read(piece, dialects) for piece in _pieces(path, notes))])
    except pl.exceptions.ComputeError as error:
        raise SourceError(path, "is not valid JSON", "collect or copy it again") from error
    processes = events.filter(pl.col("name") == "process_name").unique("pid").select("pid", process="title")
    threads = events.filter(pl.col("name") == "thread_name").unique(["pid", "tid"]).select("pid", "tid", thread="title")
    ranges = events.filter(pl.col("ph") == "X").join(processes, on="pid", how="left")
    ranges = ranges.join(threads, on=["pid", "tid"], how="left")
    roles = dialects.parse(ranges["name"]).names.select("role", name="text")
    ranges = ranges.join(roles, on="name", how="left", maintain_order="left")
    notes += unmatched(path.parent, dialects.unmatched(ranges["name"]))
    steps = ranges.filter(pl.col("name").str.contains(STEP_NAME)).with_columns(
        step=pl.col("name").str.extract(STEP_NAME).cast(INT)
    )
    samples = events.filter(pl.col("ph") == "C").with_columns(ts_ns="start_ns")
    timed = events.filter(pl.col("ph") == "X", pl.col("end_ns").is_not_null())
    relative = timed.select((pl.col("start_ns").max() < EPOCH_NS).fill_null(False)).item()
    return TraceView(
        _marks(ranges.filter(pl.col("role") == "block")),
        conform(steps, STEPS).sort("start_ns"),
        conform(samples, COUNTERS),
        tuple(notes),
        timed.select("start_ns", "end_ns") if relative else None,
    )


def _marks(ranges: pl.DataFrame) -> pl.DataFrame:
    """The marker ranges as `MARKS`: the device's with the correlated host ranges, or if there are none, the host's.

    The k-th range of a name on the device is the k-th on the host, if there are as many.
    """
    ranges = ranges.sort("start_ns").with_columns(
        text="name",
        stream=pl.coalesce(pl.col("thread").str.extract(r"^Stream (\d+)$"), "tid").cast(TIME, strict=False),
    )
    device = ranges.filter(pl.col("process") == HARDWARE)
    host = ranges.filter((pl.col("process") != HARDWARE).fill_null(True))
    if device.is_empty():
        return conform(host.with_columns(origin=pl.lit("host")), MARKS)
    nth, many = pl.int_range(pl.len()).over("text"), pl.len().over("text")
    on_host = host.select("text", nth=nth, many=many, host_start_ns="start_ns", host_end_ns="end_ns")
    both = device.with_columns(nth=nth, many=many).join(on_host, on=["text", "nth", "many"], how="left")
    return conform(both.with_columns(origin=pl.lit("device")), MARKS)


def _read(piece: bytes, dialects: Dialects) -> pl.DataFrame:
    """The events of `piece`, separated by commas, that are of use. They are split at `_BETWEEN`; where that lies inside
    an event, too, so that a part is not JSON, each event is looked at by itself, which takes several times as long."""
    try:
        return pl.concat([_kept(lines, dialects) for lines in _lines(piece)])
    except pl.exceptions.ComputeError:
        try:
            events = _EVENTS.decode(b"[" + piece + b"]")
        except msgspec.DecodeError:
            events = []
        if not events:
            raise
    lines = [bytes(event).replace(b"\n", b" ") for event in events]
    parts = range(0, len(lines), MOST_EVENTS)
    return pl.concat([_kept(b"\n".join(lines[at : at + MOST_EVENTS]), dialects) for at in parts])


def _kept(piece: bytes, dialects: Dialects) -> pl.DataFrame:
    """The events of `piece` (one a line) that are of use."""
    first = _TIME.search(piece)
    if first and not first[1]:  # which Polars would read as floats
        piece = _TIME.sub(lambda time: time[0] if time[1] else b'"ts": "%b"' % time[2], piece)
    events = pl.read_ndjson(io.BytesIO(piece), schema=_EVENT)
    args = events.unnest("args", separator=".")
    values = [pl.col(f"args.{key}") for key in _UNITS]
    unit = pl.coalesce(pl.when(v.is_not_null()).then(pl.lit(u)) for v, u in zip(values, _UNITS.values(), strict=True))
    named = (pl.col("ph") == "X") & dialects.may_know("name")
    title = (pl.col("ph") == "M") & pl.col("name").is_in(["process_name", "thread_name"])
    relative = (pl.col("ph") == "X") & pl.lit(first is not None and float(first[2]) * 1000 < EPOCH_NS)
    useful = named | title | pl.col("unit").is_not_null() | relative
    return conform(
        args.with_columns(unit=pl.when(pl.col("ph") == "C").then(unit), value=pl.coalesce(values), title="args.name")
        .filter(useful)
        .with_columns(start_ns=thousandths(pl.col("ts")))
        .with_columns(end_ns=pl.col("start_ns") + (pl.col("dur") * 1000).round().cast(TIME, strict=False)),
        KEPT,
    )


def _pieces(path: Path, notes: list[Note]) -> Iterator[bytes]:
    """The events of the file, some MB at a time, separated by commas. Appends a note when the file ends inside an
    event."""
    with Unpacked(path) as file:
        rest = file.read(PIECE_BYTES).removeprefix(codecs.BOM_UTF8).lstrip()
        if (begin := _LIST.match(rest)) is None:
            raise SourceError(path, "is not a list of trace events", "collect or copy it again")
        rest = rest[begin.end() :]
        while chunk := file.read(PIECE_BYTES):
            rest += chunk
            if cut := _last_end(rest):
                yield rest[:cut]
                rest = rest[cut:].lstrip(b" \r\n\t,")
            elif len(rest) > MAX_EVENT_BYTES:
                raise SourceError(path, "is not a list of trace events", "collect or copy it again")
    whole = rest.rstrip()
    if begin[0].startswith(b"{") and whole.endswith(b"}"):
        whole = whole[: whole.rfind(b"]") + 1]
    if whole.endswith(b"]") and not file.damaged:
        whole = whole[:-1].rstrip()
    else:
        notes.append(Note("trace-truncated", "warning", "truncated trace; its last events are missing", str(path)))
        whole = whole[: _last_end(whole, final=True)]
    if whole:
        yield whole


def _last_end(data: bytes, *, final: bool = False) -> int:
    """Just behind the last event of `data` that another one follows; 0 if there is none. What looks like that inside an
    event lies behind more braces that open than braces that close. Where a text holds a single brace, so does all that
    follows: then, if no more data come (`final`) or there are more than an event may have, the last place is taken."""
    for start in (max(len(data) - (1 << 20), 0), 0):
        ends = [match.start() + 1 for match in deque(_BETWEEN.finditer(data, start), maxlen=MOST_INSIDE)]
        opened, at = 0, 0
        balanced = 0
        for end in ends:
            opened += data.count(b"{", at, end) - data.count(b"}", at, end)
            at = end
            balanced = end if not opened else balanced
        if ends:
            return balanced or (ends[-1] if final or len(data) > MAX_EVENT_BYTES else 0)
    return 0


def _lines(events: bytes) -> Iterator[bytes]:
    """The events one a line, so many at a time."""
    for batch in _batches(events):
        yield _BETWEEN.sub(b"}\n{", batch.replace(b"\n", b" "))


def _batches(events: bytes) -> Iterator[bytes]:
    """The events in parts of at most MOST_EVENTS."""
    start = 0
    if events.count(b"{") > MOST_EVENTS:
        for match in islice(_BETWEEN.finditer(events), MOST_EVENTS - 1, None, MOST_EVENTS):
            yield events[start : match.start() + 1]
            start = match.end() - 1
    yield events[start:]
