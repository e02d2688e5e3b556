"""torch.profiler traces (JSON or Perfetto's protobuf, gzipped or not; one a rank) → the GPU time of every block.

As for Nsight Systems: a block is a range on a CPU thread (an annotation), its time that of the GPU work launched while
it was open, launch and work joined by their correlation id.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from trace_export.errors import SourceError
from trace_export.model import Note, Profile
from trace_export.sources.kineto import nccl
from trace_export.sources.kineto.device_tasks import DEVICE_CATEGORIES, TIMED, KeptTasks, read_tasks
from trace_export.sources.kineto.event_stream import whole_number
from trace_export.sources.kineto.gpu_work import CALLERS, STREAM, GpuWork, append, task_id
from trace_export.sources.kineto.json_events import FRAME, Wanted, thread
from trace_export.sources.kineto.trace import Trace, open_trace
from trace_export.sources.ranges import notes as range_notes
from trace_export.sources.ranges.devices import Attributed, attributed
from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.ranges.frequent import NameCounts
from trace_export.sources.ranges.profile import Content, marked, of_beginning, profile
from trace_export.sources.ranges.ranges import Ranges, beside_passes, gather
from trace_export.sources.ranges.ranks import check_names
from trace_export.sources.ranges.transfers import transfers
from trace_export.sources.shared.batch import Result, each
from trace_export.sources.shared.names import LONGEST_NAME, is_host
from trace_export.sources.shared.timestamps import LONGEST_TASK_NS, UNTIMED
from trace_export.sources.source import ReadOptions, Source

if TYPE_CHECKING:
    from trace_export.sources.launches.process import Inferred

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
"""Of kernels."""


@dataclass
class _Content:
    """What a trace holds: the `work` of the GPU; in pieces the `named` ranges (see ranges.gather) and the `calls` of
    NCCL; the `end` of the last event, the device, and how often each annotation occurs."""

    work: GpuWork = field(default_factory=GpuWork)
    named: list[pl.DataFrame] = field(default_factory=list)
    calls: list[pl.DataFrame] = field(default_factory=lambda: [nccl.NONE])
    device: int | None = None
    pid: int | None = None
    end: int | None = None
    names: NameCounts = field(default_factory=NameCounts)

    @property
    def remedy(self) -> str:
        """How to record passes that are named."""
        return f"{REMEDY}, {WITHOUT_GRAPHS}" if self.work.replayed else REMEDY


def read(sources: Sequence[Source], options: ReadOptions) -> list[Result]:
    """What `read_one` gives for each of the sources."""
    return each(read_one, sources, options)


def read_one(source: Source, options: ReadOptions) -> Profile:
    """The rank that one trace holds. Without named passes it has the blocks that are found from its launches, unless
    `options.infer` says no.

    Raises SourceError when the file is no trace, or has no blocks with GPU work (unless `options.host_ranges` asks for
    the ranges themselves).
    """
    dialects = Dialects.of(options.markers)
    with open_trace(source.path, wanted(dialects), beginning=options.beginning) as trace:
        recorded = job(trace, "rank")
        if recorded is not None and options.ranks is not None and recorded not in options.ranks:
            return Profile()
        content = _Content()
        _gather(content, trace, dialects, KeptTasks(options.keep_tasks, source.path, trace.offset_ns))
        ranges = Ranges.none() if options.infer == "only" else gather(content.named, (), dialects)
        if trace.shortened and not ranges.marked:
            raise SourceError(source.path, "no pass is named", "look at all of it with --full")
        work = Attributed.none(ranges)
        if found := _inferred(source, options, ranges, content, dialects):
            blocks = _launched(source, found, content)
        else:
            unseen = not trace.has_end or (trace.shortened and content.work.launches > 0)
            _check(source, ranges, content, options.host_ranges or unseen)
            blocks, work = _marked(source, ranges, content, options.host_ranges or trace.shortened)
            if ranges.partial and not trace.shortened:
                blocks = _completed(source, options, blocks, content, dialects)
        host = host_of(trace, source)
        clock = clock_notes(trace, trace.offset_ns + int(blocks.blocks["start"].to_numpy().min()))
        profiled = profile(
            source,
            [blocks],
            ranks=work.devices.ranks(ranks_of(trace, source, ranges, content.device, content.pid), work.ranges),
            host=host,
            label=host,
            offset_ns=trace.offset_ns,
            notes=(*clock, *losses(trace), *range_notes.unmatched(source.path, ranges.unmatched)),
        )
        profiled = work.devices.restored(profiled, source.path)
        made = replace(profiled, declared=replace(profiled.declared, world=job(trace, "world_size") or None))
        if not trace.shortened:
            return made
        return of_beginning(made, source, content.end if trace.has_end else None, trace.offset_ns)


def _marked(source: Source, ranges: Ranges, content: _Content, host_ranges: bool) -> tuple[Content, Attributed]:
    """The content of a trace whose passes are named, and the work in its ranges."""
    work = Attributed.none(ranges) if host_ranges else attributed(source.path, ranges, content.work.activity)
    named, calls = transfers(work.ranges, work.worked), pl.concat(content.calls)
    begin, end = ranges.frame.select(pl.col("start").min(), pl.col("end").max()).row(0)
    kept = calls.filter(near(pl.col("start"), pl.lit(begin), pl.lit(end)))
    notes = []
    if far := calls.height - kept.height:
        text = f"sends, receives and collectives {UNTIMED}"
        notes = [Note("times-unusable", "warning", text, str(source.path), far)]
    calls = work.devices.placed(kept)
    p2p = named if named.height else nccl.transfers(calls)
    found = marked(source, work, p2p=p2p, collectives=nccl.collectives(calls))
    return replace(found, notes=(*found.notes, *notes)), work


def near(times: pl.Expr, begin: pl.Expr, end: pl.Expr) -> pl.Expr:
    """Whether each of the `times` lies within a day of the ranges, which last from `begin` to `end`, as NCCL's kernels
    do wherever they were launched."""
    return times.is_between(begin - LONGEST_TASK_NS, end + LONGEST_TASK_NS)


def _inferred(
    source: Source, options: ReadOptions, ranges: Ranges, content: _Content, dialects: Dialects
) -> Inferred | None:
    """What is found in a trace without named passes. Raises SourceError where it is nothing."""
    if ranges.marked or options.infer == "off" or options.host_ranges or not content.work.kernels:
        return None
    from trace_export.sources.kineto.unmarked import read_process  # takes as long as reading 5 MB
    from trace_export.sources.launches.process import find_blocks

    beside = beside_passes(content.named, dialects, only=options.infer == "only")
    found = find_blocks(read_process(source.path, beside))
    if found.impossible:
        raise range_notes.no_names(
            source.path, "annotation", content.names, content.remedy, launches=found.impossible, rules=ranges.unmatched
        )
    return found


def _completed(source: Source, options: ReadOptions, named: Content, content: _Content, dialects: Dialects) -> Content:
    """The content of a trace whose names say only some of its passes, with the others."""
    if options.infer == "off" or options.host_ranges or not content.work.kernels:
        return named
    from trace_export.sources.kineto.unmarked import read_process
    from trace_export.sources.launches import content as launches
    from trace_export.sources.launches.process import find_blocks

    beside = beside_passes(content.named, dialects, only=False)
    return launches.completed(source.path, named, {0: find_blocks(read_process(source.path, beside))})


def _launched(source: Source, found: Inferred, content: _Content) -> Content:
    """The content of a trace whose passes were found; transfers and collectives as PyTorch names them, if it does."""
    from trace_export.sources.launches import content as launches

    blocks, calls = launches.content(source.path, {0: found}), pl.concat(content.calls)
    named = nccl.transfers(calls)
    return replace(blocks, p2p=named if named.height else blocks.p2p, collectives=nccl.collectives(calls))


def clock_notes(trace: Trace, first_ns: int) -> list[Note]:
    """A warning where the base in the trace is no date of ours. Raises SourceError where it has none but needs one:
    `first_ns`, the unix time of its first block, is long ago."""
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


def _gather(content: _Content, trace: Trace, dialects: Dialects, tasks: KeptTasks) -> None:
    rows, callers = 0, set[str]()
    processes, devices = set[str](), set[str]()
    """Of kernels: Kineto files those of a device under a process of its number."""
    for events in trace.events():
        callers.update(events.select(CALLERS).to_series())
        if len(callers) > 1:
            raise _of_several_processes(trace.path, callers)
        content.pid = pid_of(callers)
        content.end = max((end for end in (content.end, events["end"].max()) if isinstance(end, int)), default=None)
        events = events.with_columns(PROCESS)
        ranges = cpu_ranges(events, dialects, rows)
        rows += ranges.height
        named = ranges.filter(dialects.may_know("text"))
        append(content.named, named)
        content.names.add(ranges["text"])
        content.work.add(events)
        kernels = events.filter(pl.col("cat") == "kernel")
        processes.update(kernels["pid"].drop_nulls().unique())
        devices.update(kernels["device"].drop_nulls().unique())
        content.work.add_kernels(kernels.select(task_id(), "start", "end", STREAM, nccl=nccl.IS_NCCL))
        append(content.calls, nccl.calls(kernels.filter(TIMED)))
        if content.device is None and kernels.height:
            content.device = kernels.select(DEVICE).item(0, 0)
        tasks.add(events)
    tasks.close()
    if len(processes) > 1 and not processes <= devices:
        raise _of_several_processes(trace.path, processes)


def pid_of(callers: Collection[str]) -> int | None:
    """The number of the process that launches, of `CALLERS`."""
    number = whole_number(next(iter(callers), None))
    return number if number is not None and number < 1 << 31 else None


def _of_several_processes(path: Path, processes: Collection[str]) -> SourceError:
    what = f"holds the work of several processes (pid {' and '.join(sorted(processes))}), whose numbers are the same"
    return SourceError(path, what, "draw the traces that were merged, one of each rank")


def wanted(dialects: Dialects) -> Wanted:
    """The events that are read: with rules of the user also the frames of Python."""
    return Wanted(f"{WANTED.categories}|{FRAME}", WANTED.marks) if dialects.of_user.rules else WANTED


def cpu_ranges(events: pl.DataFrame, dialects: Dialects, first: int = 0) -> pl.DataFrame:
    """The ranges on the CPU among `events` and their process: row, numbered from `first`, process, thread, start, end,
    text. Of the frames of Python those that rules of the user name."""
    kind = pl.col("cat")
    counts = (kind == "user_annotation") | ((kind == "cpu_op") & _MARKS)
    if dialects.of_user.rules:
        counts |= (kind == FRAME) & dialects.of_user.may_know("name")
    ranges = events.filter(counts)
    number = pl.int_range(first, first + pl.len(), dtype=pl.Int64).alias("row")
    return ranges.select(number, "process", thread(), "start", "end", text=pl.col("name"))


def _check(source: Source, ranges: Ranges, content: _Content, host: bool) -> None:
    """Raises SourceError when there is nothing to draw."""
    if not ranges.marked and ranges.untimed:
        raise range_notes.no_times(source.path)
    if not ranges.marked:
        raise range_notes.no_names(
            source.path,
            "annotation",
            content.names,
            content.remedy,
            rules=ranges.unmatched,
        )
    if not host and not content.work.kernels:
        without = "recorded without ProfilerActivity.CUDA"
        raise range_notes.no_kernels(source.path, without, "record with it", launched=content.work.launched)


def job(trace: Trace, name: str) -> int | None:
    """A number of distributedInfo: `rank`, or `world_size`."""
    job = trace.header.get("distributedInfo")
    number = whole_number(job.get(name)) if isinstance(job, dict) else None
    return number if number is not None and 0 <= number < 1 << 31 else None


def host_of(trace: Trace, source: Source) -> str:
    name = trace.header.get("host_name")
    return name[:LONGEST_NAME] if isinstance(name, str) and is_host(name) else source.host


def ranks_of(trace: Trace, source: Source, ranges: Ranges, device: int | None, pid: int | None) -> pl.DataFrame:
    """The one rank, as `ranges.profile` takes it. Its number is that of distributedInfo, our marks, the file's name or
    the stages. Raises SourceError where the marks are of several ranks."""
    check_names(source.path, ranges, job(trace, "rank"))
    names = {c: ranges.frame[c].drop_nulls() for c in ("rank", "place")}
    own = ranges.stages.get(0, [])
    rank, origin = next(
        (number, origin)
        for number, origin in (
            (job(trace, "rank"), "recorded"),
            (names["rank"].first(), "recorded"),
            (source.rank, source.rank_origin),
            (min(own, default=0), "assumed"),
        )
        if number is not None
    )
    stage = names["place"].first() if names["place"].len() else min(own, default=None)
    return pl.DataFrame(
        {
            "process": [0],
            "rank": [rank],
            "rank_origin": [origin],
            "stage": [stage],
            "stage_origin": ["recorded" if stage is not None else None],
            "device": [device],
            "pid": [pid],
        },
        schema_overrides={
            "process": pl.Int64,
            "pid": pl.Int64,
            "stage": pl.Int32,
            "stage_origin": pl.String,
            "device": pl.Int32,
        },
    )


def losses(trace: Trace) -> list[Note]:
    notes = []
    if trace.damaged and not trace.truncated:
        text = "its gzip data are damaged: events may be missing or wrong"
        notes.append(Note("trace-damaged", "warning", text, str(trace.path)))
    if trace.truncated:
        notes.append(
            Note("trace-truncated", "warning", "truncated trace; its last events are missing", str(trace.path))
        )
    if trace.malformed:
        notes.append(
            Note(
                "events-malformed",
                "warning",
                "events that cannot be read, left out",
                str(trace.path),
                trace.malformed,
            )
        )
    return notes
