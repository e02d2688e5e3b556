"""`trace_view.json` of torch_npu and MindSpore: markers, steps and counters.

The file is a bare JSON array of Chrome trace events (or an object with one), hundreds of MB for a large step; of each
piece only the events are kept that mean something here. `ts` is a text of unix µs with three decimals, because a float
would lose the last of them. Other versions and scripts write a number, or count from the first event of the rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import polars as pl
from msgspec.structs import astuple

from trace_export.model import COUNTERS, INT, TEXT, TIME, Note, Schema, conform, empty
from trace_export.sources.ascend.marker_blocks import MARKS, STEPS
from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.ranges.notes import unmatched
from trace_export.sources.shared import chrome_json
from trace_export.sources.shared.chrome_json import Events, JsonTrace
from trace_export.units import EPOCH_NS

_COUNTED = {
    "KB": "KB", "MHz": "MHz", "Read(MB/s)": "MB/s", "Write(MB/s)": "MB/s", "Throughput(MB/s)": "MB/s",
    "Hit Rate(%)": "%",
}  # fmt: skip
"""The counters that are kept: the value in `args` → unit."""
_Arguments = chrome_json.arguments("name", *_COUNTED)
"""The name of a process or thread, and the values of `_COUNTED`."""


class _Event(chrome_json.Event, gc=False):
    """An event as it is written, with its arguments."""

    args: _Arguments | None = None  # type: ignore[valid-type]


_NO_ARGUMENTS = _Arguments()
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
        """The trace with `offset_ns` added to all times."""
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
    """The content of the file at `path`. Raises SourceError when it is not a trace."""
    with JsonTrace(path, Events(_Event, partial(_of_use, dialects))) as trace:
        events = pl.concat([empty(KEPT), *map(_columns, trace.pieces())])
    notes = [*trace.losses()]
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


def _of_use(dialects: Dialects, events: Sequence[_Event]) -> list[_Event]:
    """Those of `events` that are of use: counters, names of processes and threads, and ranges whose names `dialects`
    may know; of a trace whose times are no unix times everything that lasts."""
    first = next((time for event in events if (time := _microseconds(event)) is not None), None)
    relative = first is not None and first * 1000 < EPOCH_NS
    names = pl.DataFrame(
        {"name": list({e.name for e in events if e.ph == "X" and isinstance(e.name, str)})}, {"name": TEXT}
    )
    named = frozenset(names.filter(dialects.may_know("name"))["name"])

    def is_of_use(event: _Event) -> bool:
        if event.ph == "X":
            return relative or event.name in named
        if event.ph == "M":
            return event.name in ("process_name", "thread_name")
        return event.ph == "C" and event.args is not None and any(v is not None for v in astuple(event.args)[1:])

    return list(filter(is_of_use, events))


def _microseconds(event: _Event) -> float | None:
    with suppress(ValueError):
        return float(bytes(event.ts).strip(b'"'))
    return None


def _columns(events: Sequence[_Event]) -> pl.DataFrame:
    """`events` as `KEPT`."""
    columns = chrome_json.texts_of(events, "ph", "name", "pid", "tid")
    titles, *counted = chrome_json.argument_columns(events, _NO_ARGUMENTS)
    columns.append(chrome_json.texts("title", titles))
    times = chrome_json.times(events)
    values = [pl.col(name) for name in _COUNTED]
    unit = pl.coalesce(pl.when(v.is_not_null()).then(pl.lit(u)) for v, u in zip(values, _COUNTED.values(), strict=True))
    samples = pl.DataFrame(
        [chrome_json.numbers(name, column, pl.Float64) for name, column in zip(_COUNTED, counted, strict=True)]
    ).select(value=pl.coalesce(values), unit=unit)
    return conform(pl.DataFrame([*columns, *times.rename({"start": "start_ns", "end": "end_ns"}), *samples]), KEPT)


AGREE_NS = 1_000
"""The differences of kernels that are the same agree within this; those of others do by chance only."""
PAIRS = 100_000
"""This many pairs of a row in the trace and one in the table are looked at, those of the rarest lengths first."""
LEAST_IN_TRACE = 0.5
"""At least this part of the rows looked at in the table must be in the trace."""


def clock_offset(tasks: pl.DataFrame, rows: pl.DataFrame) -> int | None:
    """What to add to the times of the `tasks` of a trace to get those of the `rows` of a table; None where the same
    work is not in both. Both have start_ns and end_ns.

    Names differ between versions, lengths do not: the rows are compared with the tasks that are as long.
    """
    lengths = [part.select("start_ns", length=pl.col("end_ns") - pl.col("start_ns")) for part in (tasks, rows)]
    counts = [part.group_by("length").agg(n=pl.len().cast(TIME)) for part in lengths]
    rare = counts[1].join(counts[0], on="length", suffix="_in_trace").sort(pl.col("n") * pl.col("n_in_trace"), "length")
    rare = rare.filter((pl.col("n") * pl.col("n_in_trace")).cum_sum() <= PAIRS)
    asked = lengths[1].join(rare, on="length")
    both = asked.join(lengths[0], on="length", suffix="_in_trace")
    apart = both.select(apart=pl.col("start_ns") - pl.col("start_ns_in_trace"))["apart"].sort()
    if apart.is_empty():
        return None
    near = apart.search_sorted(apart + AGREE_NS, side="right").cast(TIME) - pl.int_range(len(apart), eager=True)
    first, most = near.arg_max(), near.max()
    if first is None or not isinstance(most, int) or most < LEAST_IN_TRACE * asked.height:
        return None
    return apart[first + most // 2]  # type: ignore[no-any-return]
