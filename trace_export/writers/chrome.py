"""A chart as Chrome's JSON trace events.

All tracks are threads of one process, which is what opens expanded in the Perfetto UI. A thread's id is its track's,
never that of the process (1), which would make it the main thread. Names are padded with zeros because the UI v52 sorts
by name. Times are microseconds with three decimals, exact to the
nanosecond since they count from the first event.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import polars as pl

from trace_export.chart.chart import Chart, Track, arguments
from trace_export.writers.json_text import Number, Parts, Text, dumps, records, value
from trace_export.writers.records import raw
from trace_export.writers.sink import opened
from trace_export.writers.wire import Write

_PROCESS: Final = 1
_CHUNK: Final = 1 << 14
_CHUNK_BYTES: Final = 1 << 25


def write(chart: Chart, path: Path, gzip: bool = False) -> None:
    """Writes `chart` to `path`, in memory that does not grow with its device tasks. Raises OSError as `open` does."""
    facts = dumps(chart.attributes)
    process = {"ph": "M", "name": "process_name", "pid": _PROCESS, "args": {"name": chart.title}}
    digits = _digits(chart.main.tracks)
    with opened(path, gzip) as sink:
        sink(b'{"displayTimeUnit":"ns","metadata":%b,"otherData":%b,"traceEvents":[\n' % (facts, facts))
        sink(dumps(process))
        tracks: dict[int, Track] = {}
        for part in chart.parts():
            tracks |= {t.id: t for t in part.tracks}
            _write_tracks(part.tracks, digits, sink)
            _write_slices(part.slices, chart.origin_ns, sink)
            _write_flows(part.slices, chart.origin_ns, sink)
            _write_instants(part.instants, chart.origin_ns, sink)
            _write_counters(part.samples, tracks, chart.origin_ns, sink)
        sink(b"\n]}\n")


def _write_tracks(tracks: tuple[Track, ...], digits: int, sink: Write) -> None:
    for track in tracks:
        if track.kind == "slices":
            name = re.sub(r"\d+", lambda number: number[0].zfill(digits), track.flat or track.name)
            name += f" ({track.lane + 1})" if track.lane else ""
            event = {"ph": "M", "name": "thread_name", "pid": _PROCESS, "tid": track.id, "args": {"name": name}}
            order = event | {"name": "thread_sort_index", "args": {"sort_index": track.id}}
            sink(b",\n" + dumps(event) + b",\n" + dumps(order))


def _digits(tracks: tuple[Track, ...]) -> int:
    """The most digits of a number in a track's name."""
    numbers = (n for t in tracks if t.kind == "slices" for n in re.findall(r"\d+", t.flat or t.name))
    return max(map(len, numbers), default=1)


def _write_slices(slices: pl.DataFrame, origin_ns: int, sink: Write) -> None:
    for chunk in _chunks(slices):
        head = [*_event(b'"X"', chunk, "start_ns", origin_ns), b',"dur":', _time(chunk["end_ns"] - chunk["start_ns"])]
        head += [b',"cat":', Text.of(chunk["category"].fill_null("slice")), b',"name":', Text.of(chunk["name"])]
        more = [(dumps(name) + b":", value(chunk[name])) for name in arguments(slices)]
        sink(raw(records(len(chunk), [*head, b',"args":{'], more, b"}}")))


def _write_flows(slices: pl.DataFrame, origin_ns: int, sink: Write) -> None:
    """Arrows: they start in the last nanosecond of the slice they leave, and end at the start of the other."""
    inside = pl.max_horizontal("start_ns", pl.col("end_ns") - 1)
    ends = {"flow_out": (inside, b'"s"'), "flow_in": (pl.col("start_ns"), b'"f","bp":"e"')}
    for column, (when, phase) in ends.items():
        if column in slices.columns:
            having = slices.filter(pl.col(column).list.len() > 0)
            for chunk in _chunks(having.select("track", when.alias("ts_ns"), id=column).explode("id")):
                head = [*_event(phase, chunk, "ts_ns", origin_ns), b',"cat":"flow","name":"next","id":']
                sink(raw(records(len(chunk), [*head, value(chunk["id"])], [], b"}")))


def _write_instants(instants: pl.DataFrame, origin_ns: int, sink: Write) -> None:
    for chunk in _chunks(instants):
        head = [*_event(b'"i","s":"t"', chunk, "ts_ns", origin_ns), b',"name":', Text.of(chunk["name"])]
        sink(raw(records(len(chunk), head, [], b"}")))


def _write_counters(samples: pl.DataFrame, tracks: dict[int, Track], origin_ns: int, sink: Write) -> None:
    for (track,), of_track in samples.filter(pl.col("value").is_finite()).group_by("track", maintain_order=True):
        whole = tracks[int(track)].name
        # The UI shows the name and the key, parted by a blank.
        name, key = whole.rsplit(" ", 1) if " " in whole else (whole, "value")
        names = b',"name":%b,"args":{%b:' % (dumps(name), dumps(key))
        for chunk in _chunks(of_track):
            head = [*_event(b'"C"', chunk, "ts_ns", origin_ns), names, Text.of(chunk["value"])]
            sink(raw(records(len(chunk), head, [], b"}}")))


def _event(phase: bytes, chunk: pl.DataFrame, time: str, origin_ns: int) -> Parts:
    """The begin of each event: its phase, thread and time."""
    threads = Number.of(chunk["track"].to_numpy())
    return [b',\n{"ph":%b,"pid":%d,"tid":' % (phase, _PROCESS), threads, b',"ts":', _time(chunk[time] - origin_ns)]


def _time(series: pl.Series) -> Number:
    return Number.of(series.to_numpy(), fraction=True)


def _chunks(frame: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """`frame` piece by piece; the pieces are shorter where texts are long, for each record holds its own copy."""
    texts = [pl.col(c).cast(pl.String).str.len_bytes().max() for c, t in frame.schema.items() if t == pl.String]
    longest = max((n or 0 for n in frame.select(texts).row(0)), default=0) if texts and len(frame) else 0
    rows = max(1, min(_CHUNK, _CHUNK_BYTES // (longest + 1)))
    for at in range(0, len(frame), rows):
        yield frame.slice(at, rows)
