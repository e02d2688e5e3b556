"""Makes the measured graph from what was recorded; `graph` says what it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import polars as pl

from trace_export.steps import barriers
from trace_export.steps.collectives import collectives
from trace_export.steps.graph import (
    COLLECTIVE,
    OPTIMIZER,
    POINT,
    TRANSFER,
    WORK,
    Columns,
    Flags,
    Graph,
    Waits,
    lowest_fifth,
    needs_transfer,
    ready_of,
)
from trace_export.steps.inner import run_together
from trace_export.steps.launches import launched
from trace_export.steps.operations import MOST, Lanes, Names, Operations, wait
from trace_export.steps.order import levels, uncircled
from trace_export.steps.recorded import Recorded
from trace_export.steps.transfers import transfers
from trace_export.tolerances import POSTED_NS


@dataclass(frozen=True)
class _Seen:
    """The recorded operations and their waits, with the marks `first`, `blind` and `guessed` of `Graph`."""

    operations: Operations
    waits: Waits
    first: Flags
    blind: Flags
    guessed: Flags


def build(recorded: Recorded) -> Graph:
    """The graph of `recorded`. O(n log n) in the number of its rows."""
    names = Names()
    early, seen = _early(recorded), _seen(recorded, names)
    operations, waits, marks = seen.operations, seen.waits, (seen.first, seen.blind, seen.guessed)
    recorded = replace(  # the columns of blocks and edges are those of operations now
        recorded, edges=recorded.edges.clear(),
        blocks=recorded.blocks.select("span", "microbatch", "chunk", "first_part"),
    )  # fmt: skip
    joined, cut = barriers.infer(recorded, operations, seen.first, waits), 0
    levelled = levels(joined.waits.of, joined.waits.on, np.concatenate([operations.step, joined.step]))
    if levelled is None:  # the circles go before barriers are sought, and those that close with these
        kept = uncircled(len(operations), waits.of, waits.on, operations.when)
        joined = barriers.infer(recorded, operations, seen.first, waits.only(kept))
        when, waits = np.concatenate([operations.when, joined.start]), joined.waits
        still = uncircled(len(when), waits.of, waits.on, when)
        cut = int((~kept).sum() + (~still).sum())
        joined = replace(joined, waits=waits.only(still))
        levelled = levels(joined.waits.of, joined.waits.on, np.concatenate([operations.step, joined.step]))
        assert levelled is not None
    del seen, waits  # each of the waits' tables is a fifth of the graph
    order, rows = levelled
    if more := len(joined.start):
        operations.add(sort=POINT, kind=names.number("barrier"), step=joined.step, start=joined.start, end=joined.start)
    first, blind, guessed = (_longer(marked, more) for marked in marks)
    waits = joined.waits.only(rows)
    del joined, levelled, rows
    columns = {column.name: getattr(operations, column.name) for column in fields(Columns)}
    del operations
    graph = Graph(
        recorded=recorded, kinds=names.kinds, **columns, first=first, blind=blind, guessed=guessed, waits=waits,
        levels=order, early_ns=early, cut=cut,
    )  # fmt: skip
    return replace(graph, waits=launched(graph))


def _seen(recorded: Recorded, names: Names) -> _Seen:
    """All but the barriers."""
    blocks = recorded.blocks
    codes = blocks["kind"].to_physical().to_numpy()
    start, end = blocks["start"].to_numpy(), np.maximum(blocks["start"].to_numpy(), blocks["end"].to_numpy())
    operations = Operations(len(blocks) + len(recorded.edges) + len(recorded.parts))
    number = operations.add(
        sort=np.where(blocks["kind"] == "OPT", np.int8(OPTIMIZER), np.int8(WORK)), kind=codes.astype(np.int16),
        rank=blocks["rank"].to_numpy(), step=blocks["step_index"].to_numpy(), start=start, end=end, when=start,
    )  # fmt: skip
    lanes = Lanes(recorded)
    of_lane = wait(number[1:][lanes.same], number[:-1][lanes.same], start[1:][lanes.same], operations)
    first = lanes.first_of(blocks["step_index"].to_numpy())
    joint = collectives(recorded, lanes, operations, names)
    met = barriers.of_replicas(recorded, operations, first, names)
    moved, guessed = transfers(recorded, lanes, first, [*joint, *met], operations, names)
    waits = of_lane.and_also(*joint, *met, *moved)
    del of_lane, joint, met, moved
    pauses = _goes_on(recorded, lanes, first, operations, waits, names)
    waits = waits.and_also(*pauses, _origins(recorded, first, operations, [waits, *pauses], names))
    together = run_together(recorded, operations, waits, names)
    marks = (_longer(marked, len(operations) - len(marked)) for marked in (first, recorded.blind, guessed))
    return _Seen(operations, waits.and_also(*together) if together else waits, *marks)


def _longer(marked: Flags, more: int) -> Flags:
    """With further operations that are not marked."""
    return np.concatenate([marked, np.zeros(more, np.bool_)])


def _early(recorded: Recorded) -> int:
    """`Graph.early_ns`."""
    edges = recorded.edges.with_columns(begun=recorded.blocks["start"].gather(recorded.edges["dst"]))
    early = pl.when(pl.col("arrived").is_null()).then(pl.col("made") - pl.col("begun"))
    late = pl.max_horizontal("sent", "received") - pl.col("arrived")
    return int(edges.select(pl.coalesce(early, late).clip(0).sum()).item() or 0)


def _goes_on(
    recorded: Recorded, lanes: Lanes, first: Flags, operations: Operations, waits: Waits, names: Names
) -> list[Waits]:
    """A rank whose first block of a step needs a transfer pauses before the step like other ranks: the block waits for
    the point at which the rank goes on, and so does its receive if the rank came last to it. Otherwise a longer
    previous step would look like a late start."""
    fed = needs_transfer(waits, operations.sort)
    rows = np.flatnonzero(first)
    rows = rows[~np.isin(rows, lanes.first)]
    free, rows = rows[~fed[rows]], rows[fed[rows]]
    if not len(free) or not len(rows):
        return []
    ready = ready_of(waits.of_some(free), operations.start, operations.end)
    openings = pl.DataFrame(
        {
            "rank": operations.rank[free], "step": operations.step[free],
            "start": operations.start[free], "end": operations.end[free], "ready": ready[free],
        }
    )  # fmt: skip
    openings, ends = (t.with_columns(who=0) for t in (openings, barriers.ends_before(recorded, operations, first)))
    last, _ = barriers.opening(openings, ends)
    met = openings.join(last, on=["who", "step"], how="left", maintain_order="left")
    delay = met.select((pl.col("start") - pl.max_horizontal("ready", "last_ready")).clip(0)).to_series().to_numpy()
    usual = round(lowest_fifth(operations.rank[free], delay))
    opens = np.zeros(len(operations), np.bool_)
    opens[rows] = True
    every, waits = waits, waits.only(np.flatnonzero(opens[waits.of]))
    awaited = operations.sort[waits.on]
    receives = waits.only((awaited == TRANSFER) & (operations.rank[waits.on] == operations.rank[waits.of]))
    made = ready_of(every.of_some(receives.on), operations.start, operations.end)[receives.on]
    since, until = np.full((2, len(operations)), MOST)
    since[receives.of], until[receives.of] = made, operations.start[receives.on]
    over = operations.end[waits.on]  # a receive that began after a collective was posted after it, or recorded late
    passed = (awaited == COLLECTIVE) & (since[waits.of] < over) & (over - POSTED_NS <= until[waits.of])
    before = waits.only(((awaited != TRANSFER) & (awaited != COLLECTIVE)) | passed)
    ended = ready_of(before, operations.start, operations.end)[rows]
    at = np.minimum(ended + usual, np.maximum(operations.start[rows], ended))
    point_of = np.full(len(operations), -1, np.int32)
    point_of[rows] = operations.add(
        sort=POINT, kind=names.number("goes on"), rank=operations.rank[rows], step=operations.step[rows], start=at,
        end=at, when=operations.start[rows - 1] + 1,
    )  # fmt: skip
    of, on, point = receives.on, point_of[receives.of], point_of[before.of]
    return [
        wait(point, before.on, operations.start[point], operations),
        wait(rows, point_of[rows], operations.start[rows], operations),
        wait(of, on, operations.start[of], operations),
    ]


def _origins(recorded: Recorded, first: Flags, operations: Operations, waits: Sequence[Waits], names: Names) -> Waits:
    """Each segment begins with its first block. Operations that wait for nothing recorded, and did not begin before it,
    wait for this origin."""
    segments = recorded.steps["segment"].to_numpy()
    count = int(segments.max(initial=-1)) + 1
    segment = np.where(operations.step >= 0, segments[np.maximum(operations.step, 0)], -1)
    begin = np.full(count, np.iinfo(np.int64).max)
    rows = np.flatnonzero(first)
    np.minimum.at(begin, segment[rows], operations.start[rows])
    waiting = np.zeros(len(operations), np.bool_)
    for some in waits:
        waiting[some.of] = True
    free = np.flatnonzero(~waiting & (operations.start >= begin[segment]))
    origins = operations.add(sort=POINT, kind=names.number("origin"), start=begin, end=begin, when=begin)
    return wait(free, origins[segment[free]], operations.start[free], operations)
