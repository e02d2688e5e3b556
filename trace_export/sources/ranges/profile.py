"""The tables of a profile from pipeline ranges and the GPU work launched in them (profiler-independent)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from trace_export.errors import path_text
from trace_export.model import HOSTS, RANKS, TEXT, Declared, Note, Schema, conform
from trace_export.sources.ranges import notes as range_notes
from trace_export.sources.ranges.attribution import GpuActivity
from trace_export.sources.ranges.blocks import declared
from trace_export.sources.ranges.ranges import Ranges
from trace_export.sources.source import Source

if TYPE_CHECKING:
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


def with_activity(ranges: Ranges, activity: GpuActivity | None) -> pl.DataFrame:
    """The ranges with the columns of `GpuActivity.frame`; no GPU work in any of them where there is no `activity`."""
    by_range = activity or GpuActivity.none(ranges.frame)
    return ranges.frame.join(by_range.frame(), on="id", maintain_order="left")


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


class Described(NamedTuple):
    """The `ranks` of a source (process, rank, rank_origin, stage, stage_origin, device), its host, and by process the
    share of its work `outside` all blocks, as far as that is known."""

    source: Source
    host: Host
    ranks: pl.DataFrame
    outside: Mapping[int, float]


def described(every: Sequence[Described]) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
    """HOSTS and RANKS of each of several sources of one format."""
    sources, keys, frames, _ = zip(*every, strict=True)
    rows = [(host.key, source.machine, host.label, host.epoch) for source, host, *_ in every]
    hosts = pl.DataFrame(rows, HOSTS, orient="row")
    heights = list(map(len, frames))
    texts = {
        "host": [host.key for host in keys],
        "source": [path_text(source.path) for source in sources],
        "kind": [source.kind for source in sources],
    }
    whole = pl.concat(frames, how="vertical_relaxed").with_columns(
        *(pl.Series(name, np.repeat(np.array(values, object), heights), TEXT) for name, values in texts.items()),
        pl.Series("outside", [one.outside.get(p) for one in every for p in one.ranks["process"]], pl.Float64),
    )
    ranks, first = conform(whole, RANKS), 0
    for number, height in enumerate(heights):
        yield hosts.slice(number, 1), ranks.slice(first, height)
        first += height


def in_unix_time(rows: pl.DataFrame, ranks: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    """Rows of processes in session time → rows of ranks in unix time, by start: `schema`, and `process`. `ranks`:
    process, rank, offset_ns."""
    placed = (
        rows.drop("rank", strict=False)
        .join(ranks, on="process", maintain_order="left")
        .with_columns(start_ns=pl.col("start") + pl.col("offset_ns"), end_ns=pl.col("end") + pl.col("offset_ns"))
        .sort("start_ns", "rank", maintain_order=True)
    )
    return conform(placed, schema).with_columns(placed["process"])
