"""The tables of a profile from pipeline ranges and the GPU work launched in them (profiler-independent)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING

import polars as pl

from trace_export.errors import path_text
from trace_export.model import COLLECTIVES, HOSTS, P2P, RANKS, SPANS, Declared, Note, Profile, conform
from trace_export.sources.ranges import notes as range_notes
from trace_export.sources.ranges.attribution import GpuActivity
from trace_export.sources.ranges.blocks import blocks, declared
from trace_export.sources.ranges.ranges import Ranges
from trace_export.sources.source import Source

if TYPE_CHECKING:
    from trace_export.sources.ranges.devices import Attributed


@dataclass(frozen=True)
class Content:
    """What is in a source, or in some of its processes: `blocks`, `p2p` and `collectives` have process, start and end
    in session time, and otherwise columns of SPANS, P2P and COLLECTIVES. `outside`: by process, as far as that is
    known, see `outside` in model.RANKS."""

    blocks: pl.DataFrame
    p2p: pl.DataFrame
    collectives: pl.DataFrame
    declared: Declared
    notes: tuple[Note, ...]
    outside: Mapping[int, float] = field(default_factory=dict)


def with_activity(ranges: Ranges, activity: GpuActivity | None) -> pl.DataFrame:
    """The ranges with the columns of `GpuActivity.frame`; no GPU work in any of them where there is no `activity`."""
    by_range = activity or GpuActivity.none(ranges.frame)
    return ranges.frame.join(by_range.frame(), on="id", maintain_order="left")


def marked(source: Source, work: Attributed, *, p2p: pl.DataFrame, collectives: pl.DataFrame) -> Content:
    """The content of the processes whose passes are named, by the `work` in their ranges; where that has no activity
    the ranges themselves are drawn. Raises SourceError when no GPU work was launched in a block."""
    ranges, activity = work.ranges, work.activity
    found = blocks(work.worked, ranges, host=activity is None)
    if found.is_empty():
        raise range_notes.no_work(source.path, activity)
    notes = (
        *range_notes.of_ranges(source.path, ranges, work.worked, activity),
        *range_notes.of_transfers(source.path, p2p),
    )
    moved = p2p.filter(~pl.col("exchange")) if "exchange" in p2p.columns else p2p
    shares = {} if activity is None else activity.outside_shares()
    return Content(found.drop("id"), moved, collectives, declared(ranges, found), notes, shares)


def profile(
    source: Source,
    contents: Sequence[Content],
    *,
    ranks: pl.DataFrame,
    host: str,
    label: str,
    offset_ns: int,
    notes: Iterable[Note],
    epoch: str | None = None,
) -> Profile:
    """The profile of one source with all `contents`.

    `ranks`: process, rank, rank_origin, stage, stage_origin, device. `host` and `label` are those of the one host,
    whose session time `offset_ns` turns into unix time, or into that of its `epoch` (see model.HOSTS).
    """
    outside = pl.DataFrame(
        [row for content in contents for row in content.outside.items()],
        {"process": pl.Int64, "outside": pl.Float64},
        orient="row",
    )
    ranks = ranks.join(outside, on="process", how="left", maintain_order="left")
    hosts, described_ranks = described(source, ranks, host, label, epoch)
    numbers = ranks.select("process", "rank", offset_ns=pl.lit(offset_ns, pl.Int64))
    found, p2p, collectives = (
        pl.concat([getattr(content, table) for content in contents], how="diagonal")
        for table in ("blocks", "p2p", "collectives")
    )
    return Profile(
        hosts=hosts,
        ranks=described_ranks,
        spans=conform(on_ranks(found, numbers), SPANS),
        p2p=conform(on_ranks(p2p, numbers), P2P),
        collectives=conform(on_ranks(collectives, numbers), COLLECTIVES),
        declared=reduce(Declared.or_else, (content.declared for content in contents)),
        notes=(*notes, *(note for content in contents for note in content.notes)),
    )


def of_beginning(found: Profile, source: Source, end: int | None, offset_ns: int = 0) -> Profile:
    """The profile of a source of which only the beginning was read; its recording ended at `end`, in session time."""
    until = None if end is None else end + offset_ns
    return replace(found, recorded_until={path_text(source.path): until})


def described(
    source: Source, ranks: pl.DataFrame, host: str, label: str, epoch: str | None = None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """HOSTS and RANKS of one source; the arguments are those of `profile`."""
    where = {"host": pl.lit(host), "source": pl.lit(path_text(source.path)), "kind": pl.lit(source.kind)}
    hosts = pl.DataFrame({"host": [host], "machine": [source.machine], "label": [label], "epoch": epoch})
    return conform(hosts, HOSTS), conform(ranks.with_columns(**where), RANKS)


def on_ranks(rows: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Rows of processes in session time → rows of ranks in unix time, by start. `ranks`: process, rank, offset_ns."""
    return (
        rows.drop("rank", strict=False)
        .join(ranks, on="process", maintain_order="left")
        .with_columns(start_ns=pl.col("start") + pl.col("offset_ns"), end_ns=pl.col("end") + pl.col("offset_ns"))
        .sort("start_ns", "rank", maintain_order=True)
    )
