"""Nsight Systems: `nsys export --type sqlite` files → the time that each pipeline block spent on the GPU.

A block is an NVTX range on a CPU thread; its time is that of the GPU work launched while it was open, from the first
kernel's start to the last one's end. What counts as work: kernels and CUDA graphs, but not NCCL's kernels, which wait
for their partners, nor copies, which run beside the block.
"""

from __future__ import annotations

from functools import partial

import polars as pl

from trace_export.errors import SourceError
from trace_export.model import COLLECTIVES, HOSTS, P2P, RANKS, SPANS, KernelFile, Profile, conform
from trace_export.sources.nsys import messages, nccl, nvtx
from trace_export.sources.nsys import ranks as nsys_ranks
from trace_export.sources.nsys.cupti import GRAPHS, KERNELS, LAUNCHES, attribute
from trace_export.sources.nsys.device_tasks import write_tasks
from trace_export.sources.nsys.export_report import exported
from trace_export.sources.nsys.session import is_export, read_session
from trace_export.sources.ranges import notes as range_notes
from trace_export.sources.ranges.attribution import GpuActivity
from trace_export.sources.ranges.blocks import blocks, chosen, declared, on_ranks, stages_of
from trace_export.sources.ranges.dialects import Dialects
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
            raise SourceError(source.path, "is an SQLite database, but no Nsight Systems export")
        session = read_session(db, source.path)
        ranges = _pipeline_ranges(db, options)
        ranks, notes = nsys_ranks.read_ranks(db, ranges, source)
        ranks = ranks.filter(chosen("rank", options.ranks))
        activity = None if options.host_ranges else attribute(db, ranges.frame)
        by_range = (activity or GpuActivity.none(ranges.frame.height)).frame()
        worked = ranges.frame.join(by_range, on="id", maintain_order="left")
        found = blocks(worked, ranges, host=options.host_ranges)
        if found.is_empty():
            raise range_notes.no_work(source.path, activity)
        moved = transfers(ranges, worked, partial(nccl.last_copies, db, ranges))
        host, label = session.host or source.host, session.label or source.host
        where = {"host": host, "source": str(source.path), "kind": source.kind}
        return Profile(
            hosts=conform(pl.DataFrame({"host": [host], "machine": [source.machine], "label": [label]}), HOSTS),
            ranks=conform(ranks.with_columns(pl.lit(v).alias(k) for k, v in where.items()), RANKS),
            spans=conform(on_ranks(found, ranks, session.offset_ns), SPANS),
            p2p=conform(on_ranks(moved, ranks, session.offset_ns), P2P),
            collectives=conform(on_ranks(nccl.collectives(worked), ranks, session.offset_ns), COLLECTIVES),
            declared=declared(stages_of(ranges)),
            notes=(
                *session.notes,
                *notes,
                *range_notes.of_ranges(source.path, ranges, worked, activity),
                *range_notes.of_transfers(source.path, moved),
            ),
        )


def read_tasks(request: TaskRequest) -> tuple[KernelFile, ...]:
    """The device tasks of an export's ranks. Raises SourceError when the file cannot be read."""
    with exported(request.path) as path, Database(path) as db:
        return write_tasks(db, read_session(db, request.path).offset_ns, request)


def _pipeline_ranges(db: Database, options: ReadOptions) -> Ranges:
    """The ranges that the dialects know. Raises SourceError when there are none, or no GPU work beside them."""
    ranges = nvtx.read_ranges(db, Dialects.of(options.markers))
    if ranges.of("block").is_empty() and ranges.untimed:
        raise range_notes.no_times(db.path)
    if ranges.of("block").is_empty():
        frequent = nvtx.most_frequent(db)
        raise messages.no_names(db.path, frequent) if frequent else messages.no_ranges(db.path)
    if (processes := ranges.frame["process"].n_unique()) > MOST_PROCESSES:
        raise SourceError(db.path, f"pipeline ranges of {processes} processes, more than a machine has GPUs")
    if not options.host_ranges and not {KERNELS, GRAPHS} & db.tables():
        raise messages.no_kernels(db.path)
    if not options.host_ranges and LAUNCHES not in db.tables():
        raise messages.no_calls(db.path)
    return ranges
