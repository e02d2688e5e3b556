"""Ranges of many small sources as one table (profiler-independent).

Where little is read of each source, most of the time goes into the calls of the table library and not into their rows.
So what is worked out process by process is worked out for the processes of all sources at once: their numbers, and
those of the rows, become distinct by the place of the source in their upper bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from trace_export.model import COLLECTIVES, P2P, SPANS, Note, Profile, conform
from trace_export.sources.ranges import notes as range_notes
from trace_export.sources.ranges.blocks import blocks, declared
from trace_export.sources.ranges.profile import described, on_ranks, with_activity
from trace_export.sources.ranges.ranges import Ranges
from trace_export.sources.ranges.transfers import collectives, transfers
from trace_export.sources.source import Source

_BITS = 40
_HALF = 1 << (_BITS - 1)
"""The number of a process has 40 bits, of which the first may be a sign."""


@dataclass(frozen=True)
class Part:
    """What is known of one source besides its ranges: see `profile.profile`, whose arguments these are."""

    source: Source
    ranks: pl.DataFrame
    host: str
    label: str
    offset_ns: int
    notes: Sequence[Note]
    epoch: str | None = None


def shift(place: int) -> int:
    """What is added to the numbers of the source at this place."""
    return place << _BITS


def moved(frame: pl.DataFrame, place: int) -> pl.DataFrame:
    """Rows of the source at this place among those of all, with other numbers of processes, rows and texts."""
    return frame.with_columns(pl.col(*({"process", "row", "textId"} & set(frame.columns))) + shift(place))


def split(ranges: Ranges, count: int) -> list[Ranges]:
    """The ranges of each of `count` sources with the numbers that its processes have there."""
    stages: list[dict[int, list[int]]] = [{} for _ in range(count)]
    marked: list[set[int]] = [set() for _ in range(count)]
    for process, own in ranges.stages.items():
        stages[_place(process)][process - shift(_place(process))] = own
    for process in ranges.marked:
        marked[_place(process)].add(process - shift(_place(process)))
    return [
        Ranges(moved(frame, -place), ranges.transfers, ranges.unclosed, ranges.unused, 0).knowing(
            own, frozenset(processes)
        )
        for place, (frame, own, processes) in enumerate(
            zip(_by_source(ranges.frame, count), stages, marked, strict=True)
        )
    ]


def is_plain(ranges: Ranges) -> bool:
    """Whether there is nothing to say of the ranges of any source: `notes.of_ranges` has no note."""
    left_out = ranges.untimed + ranges.unclosed.height + ranges.unused.height + len(ranges.unmatched)
    return not left_out and not ranges.frame["repaired"].any()


@dataclass(frozen=True)
class Calls:
    """What NCCL's kernels say: `p2p` of the processes without named transfers, and all `collectives`, see
    `profile.Content`."""

    p2p: pl.DataFrame
    collectives: pl.DataFrame


def profiles(
    ranges: Ranges, own: Sequence[Ranges], parts: Sequence[Part], calls: Calls | None = None
) -> list[Profile | None]:
    """The profile of each source from its named ranges themselves, as `profile.marked` and `profile.profile` make it;
    None where it has no block. `ranges`: those of all, for which `is_plain`; `own` what `split` made of them. Without
    `calls` collectives are ranges, too."""
    count, worked = len(parts), with_activity(ranges, None)
    found, p2p = blocks(worked, ranges, host=True), transfers(ranges, worked)
    gathered = collectives(worked) if calls is None else calls.collectives
    if calls is not None and calls.p2p.height:
        p2p = _with_calls(p2p, calls.p2p)
    noted = [
        range_notes.of_transfers(part.source.path, rows)
        for part, rows in zip(parts, _by_source(p2p, count), strict=True)
    ]
    known = pl.concat(
        moved(part.ranks.select("process", pl.col("rank").cast(pl.Int64)), place).with_columns(
            offset_ns=pl.lit(part.offset_ns, pl.Int64)
        )
        for place, part in enumerate(parts)
    )
    tables = {"spans": (found, SPANS), "p2p": (p2p.filter(~pl.col("exchange")), P2P)}
    tables["collectives"] = (gathered, COLLECTIVES)
    rows = {}
    for name, (table, schema) in tables.items():
        placed = on_ranks(table.drop("id", strict=False), known)
        conformed = conform(placed, schema).with_columns(placed["process"])
        rows[name] = [frame.drop("process") for frame in _by_source(conformed, count)]
    made: list[Profile | None] = []
    for place, part in enumerate(parts):
        spans = rows["spans"][place]
        if spans.is_empty():
            made.append(None)
            continue
        hosts, ranks = described(part.source, part.ranks, part.host, part.label, part.epoch)
        said = declared(own[place], spans)
        sides, joint = rows["p2p"][place], rows["collectives"][place]
        notes = (*part.notes, *noted[place])
        made.append(Profile(hosts, ranks, spans, sides, collectives=joint, declared=said, notes=notes))
    return made


def _with_calls(named: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """The transfers that are `named` and, in processes without, the `calls`."""
    others = calls.join(named, on="process", how="anti", maintain_order="left")
    return pl.concat([named, others.with_columns(guessed=False, exchange=False)], how="diagonal_relaxed")


def _place(process: int) -> int:
    return (process + _HALF) >> _BITS


def _by_source(frame: pl.DataFrame, count: int) -> list[pl.DataFrame]:
    """The rows of each source, in their order."""
    placed = frame.with_columns(((pl.col("process") + _HALF) // (1 << _BITS)).alias("_place"))
    parts = placed.partition_by("_place", as_dict=True, include_key=False)
    return [parts.get((place,), frame.clear()) for place in range(count)]
