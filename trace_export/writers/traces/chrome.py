"""A chart as Chrome's JSON trace events.

All tracks are threads of one process, which is what opens expanded in the Perfetto UI. A thread's id is its track's,
never that of the process (1), which would make it the main thread. Names are padded with zeros because the UI v52 sorts
by name. Times are microseconds with three decimals, exact to the
nanosecond since they count from the first event.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import polars as pl

from trace_export.chart.chart import Chart, Part, Put, Track, arguments
from trace_export.writers.mark import ATTRIBUTES
from trace_export.writers.traces.json_encoder import Number, Parts, Text, dumps, records, value
from trace_export.writers.traces.packing import Words, batches, raw
from trace_export.writers.traces.sink import Write, opened

_PROCESS: Final = 1


def write(chart: Chart, path: Path, gzip: bool = False) -> None:
    """Writes `chart` to `path`, in memory that does not grow with its device tasks. Raises OSError as `open` does."""
    chart.put(writing(chart, path, gzip))


@contextmanager
def writing(chart: Chart, path: Path, gzip: bool = False) -> Iterator[Put]:
    """A function that appends a part of `chart` to the trace at `path`. Raises OSError as `open` does."""
    facts = dumps(ATTRIBUTES | chart.attributes)
    process = {"ph": "M", "name": "process_name", "pid": _PROCESS, "args": {"name": chart.title}}
    digits = _digits(chart.main.tracks)
    with opened(path, gzip) as sink:
        sink(b'{"displayTimeUnit":"ns","metadata":%b,"otherData":%b,"traceEvents":[\n' % (facts, facts))
        sink(dumps(process))
        tracks: dict[int, Track] = {}

        def put(part: Part) -> None:
            tracks.update({t.id: t for t in part.tracks})
            _write_tracks(part.tracks, digits, sink)
            _write_slices(part.slices, chart.origin_ns, sink)
            _write_flows(part.slices, chart.origin_ns, sink)
            _write_instants(part.instants, chart.origin_ns, sink)
            _write_counters(part.samples, tracks, chart.origin_ns, sink)

        yield put
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
    for batch in batches(slices):
        head = [*_event(b'"X"', batch, "start_ns", origin_ns), b',"dur":', _time(batch["end_ns"] - batch["start_ns"])]
        if "category" in batch.columns:
            head += [b',"cat":', Text.of(batch["category"].fill_null("slice"))]
        head += [b',"name":', Text.of(batch["name"])]
        known = (name for name in arguments(batch) if batch[name].null_count() < len(batch))
        more = [(dumps(name) + b":", value(batch[name])) for name in known]
        _put(sink, records(len(batch), [*head, b',"args":{'], more, b"}}"))


def _write_flows(slices: pl.DataFrame, origin_ns: int, sink: Write) -> None:
    """Arrows: they start in the last nanosecond of the slice they leave, or right before they end, at the start of the
    other: one that ends before it starts is dropped by viewers."""
    if not {"flow_out", "flow_in"} <= set(slices.columns):
        return
    leaving, coming = (
        slices.select("track", "start_ns", "end_ns", id=column).filter(pl.col("id").list.len() > 0).explode("id")
        for column in ("flow_out", "flow_in")
    )
    both = leaving.join(coming.select("id", until="start_ns"), on="id", maintain_order="left")
    begun = pl.max_horizontal("start_ns", pl.min_horizontal("end_ns", "until") - 1)
    for phase, ends in ((b'"s"', both.with_columns(start_ns=begun)), (b'"f","bp":"e"', coming)):
        for batch in batches(ends):
            head = [*_event(phase, batch, "start_ns", origin_ns), b',"cat":"flow","name":"next","id":']
            _put(sink, records(len(batch), [*head, value(batch["id"])], [], b"}"))


def _write_instants(instants: pl.DataFrame, origin_ns: int, sink: Write) -> None:
    for batch in batches(instants):
        head = [*_event(b'"i","s":"t"', batch, "ts_ns", origin_ns), b',"name":', Text.of(batch["name"])]
        _put(sink, records(len(batch), head, [], b"}"))


def _write_counters(samples: pl.DataFrame, tracks: dict[int, Track], origin_ns: int, sink: Write) -> None:
    for (track,), of_track in samples.group_by("track", maintain_order=True):
        whole = tracks[int(track)].name
        # The UI shows the name and the key, parted by a blank.
        name, key = whole.rsplit(" ", 1) if " " in whole else (whole, "value")
        names = b',"name":%b,"args":{%b:' % (dumps(name), dumps(key))
        for batch in batches(of_track):
            head = [*_event(b'"C"', batch, "ts_ns", origin_ns), names, Text.of(batch["value"])]
            _put(sink, records(len(batch), head, [], b"}}"))


def _event(phase: bytes, batch: pl.DataFrame, time: str, origin_ns: int) -> Parts:
    """The begin of each event: its phase, thread and time."""
    threads = Number.of(batch["track"].to_numpy())
    return [b',\n{"ph":%b,"pid":%d,"tid":' % (phase, _PROCESS), threads, b',"ts":', _time(batch[time] - origin_ns)]


def _time(series: pl.Series) -> Number:
    return Number.of(series.to_numpy(), fraction=True)


def _put(sink: Write, tiles: Iterator[Words]) -> None:
    for words in tiles:
        sink(raw(words))
