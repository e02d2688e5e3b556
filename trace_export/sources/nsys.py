"""Nsight Systems: `nsys export --type sqlite` files → the time that each pipeline block spent on the GPU.

A block is an NVTX range on a CPU thread; its time is that of the GPU work launched while it was open, from the first
kernel's start to the last one's end. What counts as work: kernels and CUDA graphs, but not NCCL's kernels, which wait
for their partners, nor copies, which run beside the block.
"""

from __future__ import annotations

import polars as pl

from trace_export.errors import SourceError
from trace_export.model import COLLECTIVES, HOSTS, P2P, RANKS, SPANS, Profile, conform
from trace_export.selection import Numbers
from trace_export.sources import nsys_comm, nsys_notes, nsys_ranges, nsys_ranks
from trace_export.sources.markers import Dialects
from trace_export.sources.nsys_ranges import Ranges
from trace_export.sources.nsys_report import exported
from trace_export.sources.nsys_session import is_export, read_session
from trace_export.sources.nsys_tasks import write_tasks
from trace_export.sources.nsys_work import GRAPHS, KERNELS, Work, attribute
from trace_export.sources.source import ReadOptions, Source
from trace_export.sources.sqlite import Database


def read(source: Source, options: ReadOptions) -> Profile:
    """All ranks of one export, or of one report (`.nsys-rep`) when `nsys` is there to export it.

    Raises SourceError when the file is no export, has no pipeline range, or no GPU work for any (unless
    `options.host_ranges` asks for the ranges themselves).
    """
    with exported(source.path) as path, Database(path) as db:
        if not is_export(db.tables()):
            raise SourceError(source.path, "is an SQLite database, but no Nsight Systems export")
        session = read_session(db)
        ranges = _pipeline_ranges(db, options)
        ranks, notes = nsys_ranks.read_ranks(db, ranges, source)
        ranks = ranks.filter(_chosen("rank", options.ranks))
        work = None if options.host_ranges else attribute(db, ranges.frame)
        worked = ranges.frame.join((work or Work.none(ranges.frame.height)).frame(), on="id", maintain_order="left")
        blocks = _blocks(worked, ranges, host=options.host_ranges)
        if blocks.is_empty():
            raise nsys_notes.no_work(source.path)
        transfers = nsys_comm.transfers(db, ranges, worked)
        host = session.host or source.host
        where = {"host": host, "source": str(source.path), "kind": source.kind}
        return Profile(
            hosts=conform(pl.DataFrame({"host": [host], "machine": [source.machine], "label": [host]}), HOSTS),
            ranks=conform(ranks.with_columns(pl.lit(v).alias(k) for k, v in where.items()), RANKS),
            spans=conform(_on_ranks(blocks, ranks, session.offset_ns), SPANS),
            p2p=conform(_on_ranks(transfers, ranks, session.offset_ns), P2P),
            collectives=conform(_on_ranks(nsys_comm.collectives(worked), ranks, session.offset_ns), COLLECTIVES),
            kernels=write_tasks(db, ranks, session.offset_ns, options),
            declared=nsys_ranks.declared(nsys_ranks.stages_of(ranges)),
            notes=(*session.notes, *notes, *nsys_notes.of_ranges(source.path, ranges, worked, work)),
        )


def _pipeline_ranges(db: Database, options: ReadOptions) -> Ranges:
    """The ranges that the dialects know. Raises SourceError when there are none, or no GPU work beside them."""
    if nsys_ranges.TABLE not in db.tables():
        raise nsys_notes.no_ranges(db.path)
    ranges = nsys_ranges.read_ranges(db, Dialects.of(options.markers))
    if ranges.of("block").is_empty():
        raise nsys_notes.no_names(db.path, nsys_ranges.most_frequent(db))
    if not options.host_ranges and not {KERNELS, GRAPHS} & db.tables():
        raise nsys_notes.no_kernels(db.path)
    return ranges


def _blocks(worked: pl.DataFrame, ranges: Ranges, host: bool) -> pl.DataFrame:
    """The blocks with the columns of SPANS, but `process` for rank and session time: those with GPU work, or with
    `host` all, at the times of their ranges."""
    blocks = _with_steps(worked.filter(pl.col("role") == "block"), ranges.of("step"))
    blocks = _with_numbers(nsys_ranks.with_chunks(blocks, ranges))
    named = blocks.with_columns(run=0, marker=pl.col("text"), origin=pl.lit("host" if host else "device"))
    if host:
        return named
    ran = named.filter(pl.col("work_count") > 0, pl.col("work_end") >= pl.col("work_start"))
    return ran.with_columns(start="work_start", end="work_end")


def _with_steps(blocks: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Fills `step` where the name has none: that of the last step range which began before the block, and before the
    first one its number less one. Null where the process has no step ranges."""
    begun = steps.select("process", "start", within="step").sort("start")
    first = begun.group_by("process", maintain_order=True).agg(before=pl.col("within").first() - 1)
    found = blocks.sort("start").join_asof(begun, on="start", by="process", check_sortedness=False)
    found = found.join(first.filter(pl.col("before") >= 0), on="process", how="left", maintain_order="left")
    return found.with_columns(step=pl.coalesce("step", "within", "before")).sort("id")


def _with_numbers(blocks: pl.DataFrame) -> pl.DataFrame:
    """Zero-bubble's interleaved schedules call every forward F0.0.0: numbers that never change mean nothing."""
    alike = ["process", "step", "kind", "dialect"]
    same = (pl.col("microbatch").max().over(alike) == 0) & (pl.col("chunk").max().over(alike) == 0)
    empty = (pl.col("dialect") == "zero-bubble") & same & (pl.len().over(alike) > 1)
    return blocks.with_columns(pl.when(~empty.fill_null(False)).then(c).alias(c) for c in ("microbatch", "chunk"))


def _chosen(column: str, numbers: Numbers | None) -> pl.Expr:
    if numbers is None:
        return pl.lit(True)
    return pl.any_horizontal(pl.col(column).is_between(low, high) for low, high in numbers.ranges)


def _on_ranks(rows: pl.DataFrame, ranks: pl.DataFrame, offset_ns: int) -> pl.DataFrame:
    """Rows of processes in session time → rows of ranks in unix time, by start."""
    return (
        rows.drop("rank", strict=False)
        .join(ranks.select("process", "rank"), on="process", maintain_order="left")
        .with_columns(start_ns=pl.col("start") + offset_ns, end_ns=pl.col("end") + offset_ns)
        .sort("start_ns", "rank", maintain_order=True)
    )
