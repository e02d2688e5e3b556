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
from trace_export.writers.traces.json_text import dumps, micros, records, value
from trace_export.writers.traces.packing import TILE_ROWS
from trace_export.writers.traces.sink import Write, opened

_PROCESS: Final = 1


@contextmanager
def writing(chart: Chart, path: Path, gzip: bool = False) -> Iterator[Put]:
    """A function that appends a part of `chart` to the trace at `path`, in memory that does not grow with its device
    tasks. Raises OSError as `open` does."""
    facts = dumps(ATTRIBUTES | chart.attributes)
    process = {"ph": "M", "name": "process_name", "pid": _PROCESS, "args": {"name": chart.title}}
    digits = _digits(chart.main.tracks)
    with opened(path, gzip) as sink:
        head = f'{{"displayTimeUnit":"ns","metadata":{facts},"otherData":{facts},"traceEvents":[\n{dumps(process)}'
        sink(head.encode())
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
            sink(f",\n{dumps(event)},\n{dumps(order)}".encode())


def _digits(tracks: tuple[Track, ...]) -> int:
    """The most digits of a number in a track's name."""
    numbers = (n for t in tracks if t.kind == "slices" for n in re.findall(r"\d+", t.flat or t.name))
    return max(map(len, numbers), default=1)


def _write_slices(slices: pl.DataFrame, origin_ns: int, sink: Write) -> None:
    for batch in slices.iter_slices(TILE_ROWS):
        head = [*_event('"X"', batch, "start_ns", origin_ns), ',"dur":', *micros(batch["end_ns"] - batch["start_ns"])]
        if "category" in batch.columns:
            head += [',"cat":', value(batch["category"].fill_null("slice"))]
        head += [',"name":', value(batch["name"]), ',"args":{']
        given = (name for name in arguments(batch) if batch[name].null_count() < len(batch))
        sink(records(head, [(f"{dumps(name)}:", value(batch[name])) for name in given], "}}"))


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
    for phase, ends in (('"s"', both.with_columns(start_ns=begun)), ('"f","bp":"e"', coming)):
        for batch in ends.iter_slices(TILE_ROWS):
            head = [*_event(phase, batch, "start_ns", origin_ns), ',"cat":"flow","name":"next","id":']
            sink(records([*head, value(batch["id"])], [], "}"))


def _write_instants(instants: pl.DataFrame, origin_ns: int, sink: Write) -> None:
    for batch in instants.iter_slices(TILE_ROWS):
        head = [*_event('"i","s":"t"', batch, "ts_ns", origin_ns), ',"name":', value(batch["name"])]
        sink(records(head, [], "}"))


def _write_counters(samples: pl.DataFrame, tracks: dict[int, Track], origin_ns: int, sink: Write) -> None:
    for (track,), of_track in samples.group_by("track", maintain_order=True):
        whole = tracks[int(track)].name
        # The UI shows the name and the key, parted by a blank.
        name, key = whole.rsplit(" ", 1) if " " in whole else (whole, "value")
        names = f',"name":{dumps(name)},"args":{{{dumps(key)}:'
        for batch in of_track.iter_slices(TILE_ROWS):
            sink(records([*_event('"C"', batch, "ts_ns", origin_ns), names, value(batch["value"])], [], "}}"))


def _event(phase: str, batch: pl.DataFrame, time: str, origin_ns: int) -> list[str | pl.Series]:
    """The begin of each event: its phase, thread and time."""
    begin = f',\n{{"ph":{phase},"pid":{_PROCESS},"tid":'
    return [begin, value(batch["track"]), ',"ts":', *micros(batch[time] - origin_ns)]
