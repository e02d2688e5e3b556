"""Nsight Systems: `nsys export --type sqlite` files → the time that each pipeline block spent on the GPU.

A block is an NVTX range on a CPU thread; its time is that of the GPU work launched while it was open, from the first
kernel's start to the last one's end. What counts as work: kernels and CUDA graphs, but not NCCL's kernels, which wait
for their partners, nor copies, which run beside the block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import polars as pl

from trace_export.errors import SourceError
from trace_export.model import MEMBERS, KernelFile, Profile, conform
from trace_export.sources.launches import content as launches
from trace_export.sources.nsys import nvtx
from trace_export.sources.nsys.copies import last_copies
from trace_export.sources.nsys.cupti import (
    GRAPH_TABLE,
    KERNEL_TABLE,
    LAUNCH_TABLE,
    attribute,
    devices_of,
    is_named,
)
from trace_export.sources.nsys.device_tasks import write_tasks
from trace_export.sources.nsys.export_report import export_notes, opened
from trace_export.sources.nsys.ranks import read_ranks
from trace_export.sources.nsys.session import is_export, read_session
from trace_export.sources.nsys.threads import autograd_threads
from trace_export.sources.ranges import notes as range_notes
from trace_export.sources.ranges.devices import Attributed, attributed
from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.ranges.lost_kernels import KERNELS
from trace_export.sources.ranges.profile import Content, marked, of_beginning, profile
from trace_export.sources.ranges.ranges import Ranges
from trace_export.sources.ranges.transfers import collectives, transfers
from trace_export.sources.shared.batch import Result, each
from trace_export.sources.shared.sqlite import PIECE_ROWS, Database
from trace_export.sources.source import ReadOptions, Source, TaskRequest

if TYPE_CHECKING:
    from trace_export.sources.launches.process import Inferred

REMEDY = "capture again with the passes marked by trace-export run, or in torch.cuda.nvtx.range(f'F{microbatch}.0.0')"
EVENTS = (nvtx.TABLE, LAUNCH_TABLE, KERNEL_TABLE, GRAPH_TABLE)
"""What blocks are made of."""
MOST_PROCESSES = 1024
"""Each process is gone through by itself; a session is of one machine."""


def read(sources: Sequence[Source], options: ReadOptions) -> list[Result]:
    """What `read_one` gives for each of the sources."""
    return each(read_one, sources, options)


def read_one(source: Source, options: ReadOptions) -> Profile:
    """All ranks of one export, or of one report (`.nsys-rep`) when `nsys` is there to export it.

    Processes without named passes have the blocks that are found from their launches, unless `options.infer` says no.
    Raises SourceError when the file is no export, or has no blocks with GPU work (unless `options.host_ranges` asks for
    the ranges themselves).
    """
    with opened(source.path, options.beginning * PIECE_ROWS) as db:
        if not is_export(db.tables()):
            raise SourceError(source.path, "is an SQLite database, but not an Nsight Systems export")
        session = read_session(db, source.path)
        named = nvtx.read_ranges(db, Dialects.of(options.markers))
        ranges = Ranges.none() if options.infer == "only" else named.pipeline()
        found = _inferred(db, named, ranges, options)
        _check(db, ranges, found, options.host_ranges)
        short = not db.shortened.isdisjoint(table.lower() for table in EVENTS)
        contents, devices, work = _contents(db, source, ranges, found, options.host_ranges or short)
        inferred = {process for process, one in found.items() if not one.impossible}
        members = named.calls.members()
        trained = sorted({*inferred, *ranges.marked, *(p for p, one in found.items() if one.device is not None)})
        ranks, notes = read_ranks(db, ranges, trained, source, devices, members, session.begun_ns)
        ranks, ranges = work.devices.ranks(ranks, work.ranges), work.ranges
        ranks = ranks.filter(pl.col("process").is_in(sorted(inferred | ranges.marked)))
        made = profile(
            source,
            contents,
            ranks=ranks if options.ranks is None else ranks.filter(options.ranks.holds("rank")),
            host=session.host or source.host,
            label=session.label or source.host,
            offset_ns=session.offset_ns,
            notes=(
                *export_notes(source.path),
                *session.notes,
                *notes,
                *range_notes.unmatched(source.path, ranges.unmatched),
            ),
        )
        made = work.devices.restored(made, source.path)
        of_ranks = members.join(made.ranks.select("rank", "process"), on="process").rename({"own": "member"})
        made = replace(made, members=conform(of_ranks.sort("rank", "group"), MEMBERS))
        if not short:
            return made
        return of_beginning(made, source, db.last(LAUNCH_TABLE if found else nvtx.TABLE, "start"), session.offset_ns)


def read_tasks(request: TaskRequest) -> tuple[KernelFile, ...]:
    """The device tasks of an export's ranks. Raises SourceError when the file cannot be read."""
    with opened(request.path) as db:
        return write_tasks(db, read_session(db, request.path).offset_ns, request)


def _inferred(db: Database, named: nvtx.Named, ranges: Ranges, options: ReadOptions) -> dict[int, Inferred]:
    """What is found in the processes without named passes: all of them, or beside processes with named ones those that
    have a thread of the autograd engine; and in those whose names say only some of their passes."""
    if options.infer == "off" or options.host_ranges or not has_work(db):
        return {}
    named_in_part = frozenset[int]() if db.shortened else ranges.partial
    wanted = (autograd_threads(db).keys() - ranges.marked) | named_in_part if ranges.marked else None
    if wanted is not None and not wanted:
        return {}
    from trace_export.sources.launches.process import find_blocks  # with what it needs 30 ms
    from trace_export.sources.nsys.unmarked import read_processes

    beside = named.beside(only=options.infer == "only")
    operators = nvtx.read_operators(db) if named.operators else {}
    return {process: find_blocks(one) for process, one in read_processes(db, beside, operators, wanted)}


def _contents(
    db: Database, source: Source, ranges: Ranges, found: dict[int, Inferred], host_ranges: bool
) -> tuple[list[Content], dict[int, int], Attributed]:
    """The content of the processes with named passes and that of those without; the GPU of each process; and the work
    in the ranges."""
    contents = []
    unnamed, in_part = launches.by_names(found, ranges)
    if any(not one.impossible for one in unnamed.values()):
        contents.append(launches.content(source.path, unnamed))
    devices = {process: one.device for process, one in found.items() if one.device is not None}
    work = Attributed.none(ranges)
    if not ranges.marked:
        return contents, devices, work
    if host_ranges:
        devices |= devices_of(db)
    else:
        work = attributed(source.path, ranges, lambda frame, parts: attribute(db, frame, parts=parts))
        devices |= work.gpus
    copies = None if db.shortened or work.devices.parts else partial(last_copies, db, ranges)
    p2p = transfers(work.ranges, work.worked, copies)
    content = marked(source, work, p2p=p2p, collectives=collectives(work.worked))
    contents.append(launches.completed(source.path, content, in_part))
    return contents, devices, work


def has_work(db: Database) -> bool:
    """Whether there is GPU work that can be attributed to launches."""
    return (db.has(KERNEL_TABLE) or db.has(GRAPH_TABLE)) and db.has(LAUNCH_TABLE)


def launches_kernels(db: Database) -> bool:
    """Whether there is a call that launches a kernel."""
    if not db.has(LAUNCH_TABLE):
        return False
    sql = f"SELECT start FROM {LAUNCH_TABLE} WHERE {{where}} AND {is_named(db, 'nameId', f'cu{KERNELS}')}"
    return any(chunk.height for chunk in db.frames(LAUNCH_TABLE, sql))


def _check(db: Database, ranges: Ranges, found: dict[int, Inferred], host_ranges: bool) -> None:
    """Raises SourceError when there is no block, or no GPU work for any."""
    processes = len(ranges.marked | found.keys())
    if processes > MOST_PROCESSES:
        raise SourceError(db.path, f"pipeline ranges of {processes} processes, more than a machine has GPUs")
    if any(not one.impossible for one in found.values()):
        return
    if not ranges.marked:
        if ranges.untimed:
            raise range_notes.no_times(db.path)
        if found:
            why = launches.most_frequent_reason(found.values())
            counts = nvtx.counted_names(db)
            raise range_notes.no_names(db.path, "NVTX range", counts, REMEDY, launches=why, rules=ranges.unmatched)
        raise _no_names(db, ranges)
    if host_ranges:
        return
    if not (db.has(KERNEL_TABLE) or db.has(GRAPH_TABLE)):
        without = "captured without CUDA, or the profiler is too old for the driver"
        remedy = "capture with -t cuda,nvtx and a current nsys"
        raise range_notes.no_kernels(db.path, without, remedy, launched=launches_kernels(db))
    if not db.has(LAUNCH_TABLE):
        raise SourceError(
            db.path,
            "no CUDA calls in the file, so its GPU work cannot be attributed to ranges",
            f"capture with -t cuda,nvtx, or {range_notes.HOST}",
        )


def _no_names(db: Database, ranges: Ranges) -> SourceError:
    """Why none of the file's ranges is a block."""
    counts = nvtx.counted_names(db)
    if not counts.total:
        return SourceError(
            db.path,
            "no NVTX ranges in the file: it was captured without NVTX, or the program has no ranges",
            "capture with nsys profile -t cuda,nvtx and the passes marked by trace-export run",
        )
    return range_notes.no_names(db.path, "NVTX range", counts, REMEDY, rules=ranges.unmatched)
