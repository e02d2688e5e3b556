"""torch.profiler traces (JSON or Perfetto's protobuf, gzipped or not; one a rank) → the GPU time of every block.

As for Nsight Systems: a block is a range on a CPU thread (an annotation), its time that of the GPU work launched while
it was open, launch and work joined by their correlation id.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from trace_export.errors import SourceError
from trace_export.model import TEXT, TIME, Note
from trace_export.sources.kineto.device_tasks import DEVICE_CATEGORIES, TIMED, KeptTasks, read_tasks
from trace_export.sources.kineto.gpu_work import CALLERS, IS_CALL, KERNEL, append, calls_of_nccl, launches_in
from trace_export.sources.kineto.json_events import FRAME, Event, Wanted, columns_of, thread, whole_number
from trace_export.sources.kineto.perfetto_trace import PerfettoTrace
from trace_export.sources.kineto.trace import Trace, open_trace
from trace_export.sources.ranges import notes as range_notes
from trace_export.sources.ranges import reader
from trace_export.sources.ranges.by_launch import GRAPH_LAUNCHES, KERNEL_LAUNCHES, Piece
from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.ranges.named import NameCounts, Named
from trace_export.sources.ranges.ranges import Ranges
from trace_export.sources.ranges.ranks import ByProcess, assigned, from_names, from_stages
from trace_export.sources.ranges.transfers import KERNELS
from trace_export.sources.shared.batch import Result
from trace_export.sources.shared.names import LONGEST_NAME, is_host, job_of
from trace_export.sources.source import ReadOptions, Source

if TYPE_CHECKING:
    from trace_export.inference.process import Process

__all__ = ["read", "read_tasks"]

WANTED = Wanted(rf"user_annotation|Operator|\w+_runtime|Runtime|\w+_driver|{DEVICE_CATEGORIES}", marks="te:")
"""Events that are read. PyTorch files the marks of trace_export.instrument (te:…) among its operators."""

REMEDY = "record again with the passes marked by `import trace_export.instrument as ti; ti.auto()`"
WITHOUT_GRAPHS = "and without CUDA graphs, whose replays run no code that could name a pass"
YEAR_2000_NS = 946_684_800 * 10**9
"""No trace is older; torch.profiler is of 2020."""
YEAR_NS = 31_556_952 * 10**9
_MARKS = pl.col("name").str.starts_with("te:")
PROCESS = pl.lit(0, pl.Int64).alias("process")
"""A trace is one process."""
DEVICE = pl.col("device").cast(pl.Int32, strict=False)
"""Of kernels, as `_PIDS` and `_DEVICES`."""
_PIDS, _DEVICES = (pl.col(name).drop_nulls().unique() for name in ("pid", "device"))
JOB = ("PT_PROFILER_JOB_NAME", "PT_PROFILER_JOB_VERSION", "PT_PROFILER_JOB_ATTEMPT_INDEX")
"""The environment's names of the job and its start (libkineto/src/EnvMetadata.h); since 2026."""
_NO_CALLS = pl.DataFrame(schema=KERNELS)


def read(sources: Sequence[Source], options: ReadOptions) -> list[Result]:
    """The rank that each trace holds."""
    return reader.read(sources, options, _open, _take_together)


def _open(source: Source, options: ReadOptions, stack: ExitStack) -> list[_Events]:
    """Reads the trace, which does not stay open."""
    dialects = Dialects.of(options.markers)
    with open_trace(source.path, _wanted(dialects), beginning=options.beginning) as trace:
        recorded = _job(trace, "rank")
        if recorded is not None and options.ranks is not None and recorded not in options.ranks:
            return []
        events = _Events(source, trace)
        tasks = KeptTasks(options.keep_tasks, source.path, trace.offset_ns)
        if options.beginning and not isinstance(trace, PerfettoTrace):
            events.pending = list(chain.from_iterable(trace.pieces()))
            if trace.shortened:
                events.short = True
                return [events]
            pieces = iter([columns_of(events.pending)])
            events.pending = []
        else:
            pieces = trace.events()
        for piece in pieces:
            events.take(piece, dialects)
            tasks.add(piece)
        tasks.close()
        return [events]


def _take_together(opened: Sequence[_Events], dialects: Dialects) -> None:
    """Takes the pending events of beginnings, for which the calls of the table library take longer than their rows.
    The work of the GPU is not looked at."""
    traces = [trace for trace in opened if trace.pending]
    if not traces:
        return
    rows = [trace.pending for trace in traces]
    process = pl.Series(np.arange(len(rows)).repeat(list(map(len, rows))), dtype=pl.Int64)
    events = columns_of(list(chain.from_iterable(rows))).with_columns(process.alias("process"))
    kernels = events.filter(pl.col("cat") == "kernel")
    ranges, calls = _cpu_ranges(events, dialects), calls_of_nccl(kernels.filter(TIMED))
    of_trace = events.group_by("process").agg(
        callers=CALLERS, end=pl.col("end").max(), works=(IS_CALL | (pl.col("cat") == "kernel")).any()
    )
    facts = {number: others for number, *others in of_trace.iter_rows()}
    of_kernels = kernels.group_by("process").agg(pid=_PIDS, devices=_DEVICES, device=DEVICE.first())
    on_device = {number: others for number, *others in of_kernels.iter_rows()}
    named = ranges.filter(dialects.may_know("text")).partition_by("process", as_dict=True)
    of_nccl = calls.partition_by("process", as_dict=True)
    for number, trace in enumerate(traces):
        callers, trace._end, trace._works = facts[number]
        trace._callers.update(callers)
        pids, devices, trace._device = on_device.get(number, ((), (), None))
        trace._pids.update(pids)
        trace._devices.update(devices)
        for pieces, by_trace in ((trace._ranges, named), (trace._calls, of_nccl)):
            if (number,) in by_trace:
                pieces.append(by_trace[number,].with_columns(PROCESS))
        trace._every = partial(_texts_of, ranges, number)
        trace.pending = []


def _texts_of(ranges: pl.DataFrame, process: int) -> pl.Series:
    return ranges.filter(pl.col("process") == process)["text"]


class _Events(reader.Opened):
    """The content of a trace: see ranges.reader.Opened. `pending`: events of a beginning that are no columns yet."""

    what = "annotation"
    launching = None

    def __init__(self, source: Source, trace: Trace) -> None:
        name = trace.header.get("host_name")
        key = str(name)[:LONGEST_NAME] if isinstance(name, str) and is_host(name) else source.host
        self.source = source
        self.host = reader.Host(key, key, trace.offset_ns)
        self.world = _job(trace, "world_size") or None
        self.pending: list[Event] = []
        self._trace = trace
        self._ranges: list[pl.DataFrame] = []
        self._rows = 0
        self._counts = NameCounts()
        self._every: Callable[[], pl.Series] | None = None
        """The names of all ranges that are not counted yet."""
        self._launches: list[pl.DataFrame] = []
        self._kernels: list[pl.DataFrame] = []
        self._works = False
        """Whether a beginning has launches or kernels."""
        self._calls = [_NO_CALLS]
        self._callers: set[str] = set()
        self._pids: set[str] = set()
        self._devices: set[str] = set()
        """Of kernels: Kineto files those of a device under a process of its number."""
        self._device: int | None = None
        self._end: int | None = None

    def take(self, events: pl.DataFrame, dialects: Dialects) -> None:
        """Takes a piece of the trace."""
        self._callers.update(events.select(CALLERS).to_series())
        if len(self._callers) > 1:
            raise self._of_several_processes(self._callers)
        self._end = max((end for end in (self._end, events["end"].max()) if isinstance(end, int)), default=None)
        events = events.with_columns(PROCESS)
        ranges = _cpu_ranges(events, dialects, self._rows)
        self._rows += ranges.height
        append(self._ranges, ranges.filter(dialects.may_know("text")))
        self._counts.add(ranges["text"])
        append(self._launches, launches_in(events))
        kernels = events.filter(pl.col("cat") == "kernel")
        self._pids.update(kernels.select(_PIDS).to_series())
        self._devices.update(kernels.select(_DEVICES).to_series())
        append(self._kernels, kernels.select(*KERNEL))
        append(self._calls, calls_of_nccl(kernels.filter(TIMED)))
        if self._device is None and kernels.height:
            self._device = kernels.select(DEVICE).item(0, 0)

    def named(self, dialects: Dialects) -> Named:
        if len(self._callers) > 1:
            raise self._of_several_processes(self._callers)
        if len(self._pids) > 1 and not self._pids <= self._devices:
            raise self._of_several_processes(self._pids)
        return Named(dialects, self._ranges)

    @property
    def remedy(self) -> str:
        return f"{REMEDY}, {WITHOUT_GRAPHS}" if self._called(GRAPH_LAUNCHES) else REMEDY

    def counted_names(self) -> NameCounts:
        if self._every is not None:
            self._counts.add(self._every())
            self._every = None
        return self._counts

    def without_passes(self, ranges: Ranges) -> Collection[int]:
        if self.short or not self._has_kernels:
            return ()
        return (0,) if not ranges.marked or 0 in ranges.partial else ()

    def launches(
        self, processes: Collection[int] | None, operators: Mapping[int, pl.DataFrame]
    ) -> Iterator[tuple[int, Process]]:
        from trace_export.sources.kineto.unmarked import read_process  # takes as long as reading 5 MB

        yield 0, read_process(self.source.path)

    def no_ranges(self, counts: NameCounts) -> SourceError | None:
        error = SourceError(self.source.path, "no pass is named", "look at all of it with `full`")
        return error if self.short else None

    def no_work(self) -> SourceError | None:
        if self._has_kernels or not self._trace.has_end or self._works:
            return None
        without, launched = "recorded without ProfilerActivity.CUDA", self._called(KERNEL_LAUNCHES)
        return range_notes.no_kernels(self.source.path, without, "record with it", launched=launched)

    def calls(self, pattern: str | None, processes: list[int]) -> Iterator[Piece]:
        for calls in self._launches:
            matching = calls if pattern is None else calls.filter(pl.col("call") == pattern)
            yield 0, {column: matching[column].to_numpy() for column in ("start", "thread", "correlation")}

    def tasks(self, processes: list[int]) -> Iterator[Piece]:
        return ((0, {column.name: column.to_numpy() for column in kernels}) for kernels in self._kernels)

    def kernels_of_nccl(self) -> pl.DataFrame:
        if len(self._calls) > 1:
            self._calls = [pl.concat(self._calls)]
        return self._calls[0]

    def ranks(self, ranges: Ranges, processes: list[int], devices: ByProcess) -> tuple[pl.DataFrame, list[Note]]:
        """The number of the one rank is that of distributedInfo, our marks, the file's name or the stages. Raises
        SourceError where the marks are of several ranks."""
        recorded, source = _job(self._trace, "rank"), self.source
        evidence = (
            ("recorded", lambda: {} if recorded is None else {0: recorded}),
            ("recorded", lambda: from_names(ranges)),
            (source.rank_origin, lambda: {} if source.rank is None else {0: source.rank}),
            ("assumed", lambda: from_stages(ranges.stages)),
            ("assumed", lambda: {0: 0}),
        )
        device = {} if self._device is None else {0: self._device}
        ranks, notes = assigned(ranges, processes, source, evidence, device, recorded=recorded)
        number, job = whole_number(next(iter(self._callers), None)), job_of(map(self._trace.header.get, JOB))
        pid = number if number is not None and number < 1 << 31 else None
        return ranks.with_columns(pid=pl.lit(pid, TIME), job=pl.lit(job, TEXT)), notes

    def notes(self, first: int) -> list[Note]:
        return [*_clock_notes(self._trace, self._trace.offset_ns + first), *self._trace.losses()]

    def end(self, *, inferred: bool) -> int | None:
        return self._end if self._trace.has_end else None

    @property
    def _has_kernels(self) -> bool:
        return any(piece.height for piece in self._kernels)

    def _called(self, call: str) -> bool:
        """Whether one of the launches is such a call, one of `CALLS`."""
        return any((piece["call"] == call).any() for piece in self._launches)

    def _of_several_processes(self, processes: Collection[str]) -> SourceError:
        pids = " and ".join(sorted(processes))
        what = f"holds the work of several processes (pid {pids}), whose numbers are the same"
        return SourceError(self.source.path, what, "draw the traces that were merged, one of each rank")


def _wanted(dialects: Dialects) -> Wanted:
    """The events that are read: with rules of the user also the frames of Python."""
    return Wanted(f"{WANTED.categories}|{FRAME}", WANTED.marks) if dialects.of_user.rules else WANTED


def _cpu_ranges(events: pl.DataFrame, dialects: Dialects, first: int = 0) -> pl.DataFrame:
    """The ranges on the CPU among `events` and their process: row, numbered from `first`, process, thread, start, end,
    text. Of the frames of Python those that rules of the user name."""
    kind = pl.col("cat")
    counts = (kind == "user_annotation") | ((kind == "cpu_op") & _MARKS)
    if dialects.of_user.rules:
        counts |= (kind == FRAME) & dialects.of_user.may_know("name")
    ranges = events.filter(counts)
    number = pl.int_range(first, first + pl.len(), dtype=pl.Int64).alias("row")
    return ranges.select(number, "process", thread(), "start", "end", text=pl.col("name"))


def _clock_notes(trace: Trace, first_ns: int) -> list[Note]:
    """A warning where the base in the trace is not a date of our time. Raises SourceError where it has none but needs
    one: `first_ns`, the unix time of its first block, is long ago."""
    if first_ns >= YEAR_2000_NS:
        return []
    if "baseTimeNanoseconds" in trace.header:
        text = "baseTimeNanoseconds is not a time after the year 2000; times start at 0"
        return [Note("start-time-unknown", "warning", text, str(trace.path))]
    year = f"in the year {1970 + max(first_ns, 0) // YEAR_NS}"
    raise SourceError(
        trace.path,
        f"has no baseTimeNanoseconds, and without one its times are {year}",
        "copy it again if it is truncated, or take the field from the file that the profiler wrote; "
        'to draw it without a date add "baseTimeNanoseconds": 0',
    )


def _job(trace: Trace, name: str) -> int | None:
    """A number of distributedInfo: `rank`, or `world_size`."""
    job = trace.header.get("distributedInfo")
    number = whole_number(job.get(name)) if isinstance(job, dict) else None
    return number if number is not None and 0 <= number < 1 << 31 else None
