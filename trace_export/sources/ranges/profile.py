"""The tables of a profile from pipeline ranges and the GPU work launched in them (profiler-independent)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from trace_export.model import Declared, Note, Schema, conform
from trace_export.sources.ranges import notes as range_notes
from trace_export.sources.ranges.blocks import declared
from trace_export.sources.ranges.devices import Attributed


@dataclass(frozen=True)
class Content:
    """The content of a source, or of some of its processes: `blocks`, `p2p` and `collectives` have process, start and
    end in session time, and otherwise columns of SPANS, P2P and COLLECTIVES. `outside`: by process, as far as that is
    known, see `outside` in model.RANKS."""

    blocks: pl.DataFrame
    p2p: pl.DataFrame
    collectives: pl.DataFrame
    declared: Declared
    notes: tuple[Note, ...]
    outside: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Host:
    """The clock domain of a source: its `key` and its `label`. Session times and `offset_ns` are unix times, or times
    since its `epoch` (see model.HOSTS)."""

    key: str
    label: str
    offset_ns: int = 0
    epoch: str | None = None


def marked(path: Path, work: Attributed, passes: pl.DataFrame, p2p: pl.DataFrame, collectives: pl.DataFrame) -> Content:
    """The content of the processes whose passes are named: the blocks `passes`, transfers and collectives, by the
    `work` in their ranges. Raises SourceError when no GPU work was launched in a block."""
    ranges, activity = work.ranges, work.activity
    if passes.is_empty():
        raise range_notes.no_work(path, activity)
    worked = ranges.frame if activity is None else work.worked
    notes = (*range_notes.of_ranges(path, ranges, worked, activity), *range_notes.of_transfers(path, p2p))
    moved = p2p.filter(~pl.col("exchange").fill_null(False)) if p2p["exchange"].any() else p2p
    shares = {} if activity is None else activity.outside_shares()
    return Content(passes.drop("id"), moved, collectives, declared(ranges, passes), notes, shares)


def in_unix_time(rows: pl.DataFrame, ranks: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    """Rows of processes in session time → rows of ranks in unix time (`schema`), by start. `ranks`: process, rank,
    offset_ns."""
    placed = (
        rows.drop("rank", strict=False)
        .join(ranks, on="process", maintain_order="left")
        .with_columns(start_ns=pl.col("start") + pl.col("offset_ns"), end_ns=pl.col("end") + pl.col("offset_ns"))
        .sort("start_ns", "rank", maintain_order=True)
    )
    return conform(placed, schema)
