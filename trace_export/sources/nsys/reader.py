"""Nsight Systems: `nsys export --type sqlite` files → the time that each pipeline block spent on the GPU.

A block is an NVTX range on a CPU thread; its time is that of the GPU work launched while it was open, from the first
kernel's start to the last one's end. What counts as work: kernels and CUDA graphs, but not NCCL's kernels, which wait
for their partners, nor copies, which run beside the block.
"""

from __future__ import annotations

from functools import partial

from trace_export.errors import SourceError
from trace_export.model import KernelFile, Profile
from trace_export.sources.nsys import nccl, nvtx
from trace_export.sources.nsys.cupti import GRAPH_TABLE, KERNEL_TABLE, LAUNCH_TABLE, attribute, devices_of
from trace_export.sources.nsys.device_tasks import write_tasks
from trace_export.sources.nsys.export_report import export_notes, exported
from trace_export.sources.nsys.ranks import read_ranks
from trace_export.sources.nsys.session import is_export, read_session
from trace_export.sources.ranges import notes as range_notes
from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.ranges.profile import profile, with_activity
from trace_export.sources.ranges.ranges import Ranges
from trace_export.sources.ranges.transfers import transfers
from trace_export.sources.shared.sqlite import Database
from trace_export.sources.source import ReadOptions, Source, TaskRequest

MOST_PROCESSES = 1024
"""Each process is gone through by itself; a session is of one machine."""


def read(source: Source, options: ReadOptions) -> Profile:
    """All ranks of one export, or of one report (`.nsys-rep`) when `nsys` is there to export it.

    Raises SourceError when the file is no export, has no pipeline range, or no GPU work for any (unless
    `options.host_ranges` asks for the ranges themselves).
    """
    with exported(source.path) as path, Database(path) as db:
        if not is_export(db.tables()):
            raise SourceError(source.path, "is an SQLite database, but not an Nsight Systems export")
        session = read_session(db, source.path)
        ranges = _pipeline_ranges(db, options)
        activity, devices = (None, devices_of(db)) if options.host_ranges else attribute(db, ranges.frame)
        ranks, notes = read_ranks(db, ranges, source, devices)
        worked = with_activity(ranges, activity)
        return profile(
            source,
            ranges,
            worked,
            activity,
            ranks=ranks if options.ranks is None else ranks.filter(options.ranks.holds("rank")),
            host=session.host or source.host,
            label=session.label or source.host,
            offset_ns=session.offset_ns,
            p2p=transfers(ranges, worked, partial(nccl.last_copies, db, ranges)),
            collectives=nccl.collectives(worked),
            notes=(*export_notes(source.path), *session.notes, *notes),
        )


def read_tasks(request: TaskRequest) -> tuple[KernelFile, ...]:
    """The device tasks of an export's ranks. Raises SourceError when the file cannot be read."""
    with exported(request.path) as path, Database(path) as db:
        return write_tasks(db, read_session(db, request.path).offset_ns, request)


def _pipeline_ranges(db: Database, options: ReadOptions) -> Ranges:
    """The ranges that the dialects know. Raises SourceError when there are none, or no GPU work beside them."""
    ranges = nvtx.read_ranges(db, Dialects.of(options.markers))
    if ranges.of("block").is_empty():
        raise range_notes.no_times(db.path) if ranges.untimed else _no_names(db)
    if (processes := ranges.frame["process"].n_unique()) > MOST_PROCESSES:
        raise SourceError(db.path, f"pipeline ranges of {processes} processes, more than a machine has GPUs")
    if options.host_ranges:
        return ranges
    if not (db.has(KERNEL_TABLE) or db.has(GRAPH_TABLE)):
        raise SourceError(
            db.path,
            "no GPU work in the file: it was captured without CUDA, or the profiler is too old for the driver",
            f"capture with -t cuda,nvtx and a current nsys, or {range_notes.HOST}",
        )
    if not db.has(LAUNCH_TABLE):
        raise SourceError(
            db.path,
            "no CUDA calls in the file, so its GPU work cannot be attributed to ranges",
            f"capture with -t cuda,nvtx, or {range_notes.HOST}",
        )
    return ranges


def _no_names(db: Database) -> SourceError:
    """Why none of the file's ranges is a block."""
    counts = nvtx.counted_names(db)
    if not counts.total:
        return SourceError(
            db.path,
            "no NVTX ranges in the file: it was captured without NVTX, or the program has no ranges",
            "capture with nsys profile -t cuda,nvtx and the passes marked by trace-export run",
        )
    return range_notes.no_names(
        db.path,
        "NVTX range",
        counts,
        "capture again with the passes marked by trace-export run, or in torch.cuda.nvtx.range(f'F{microbatch}.0.0')",
    )
