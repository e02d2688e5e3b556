"""Waits inside blocks: the collectives of tensor-, expert- or context-parallel ranks.

These ranks run each block together, so the blocks of all are as long as those of the slowest. A collective ends on all
of its members at once, and on the last to come it takes only as long as the data need: another member waits for the
rest of its own length. (If clocks disagree, lengths still tell who came last.) Only groups that communicate in most of
their blocks hold them: gradients are reduced in the last blocks of a step, while these go on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from trace_export.steps.graph import JOINT, POINT, WORK, Floats, Graph, Ints, Waits, ready_of
from trace_export.steps.operations import Names, Operations
from trace_export.steps.recorded import Recorded

MOSTLY = 0.5
"""The share of their blocks in which such groups communicate, at least."""


@dataclass(frozen=True)
class Inner:
    """`waited`: how long each operation waits inside, 0 of all but blocks. A row per block with collectives inside:
    `row`, the block, and `joined`, the same number for all that collectives join, also through others."""

    waited: Floats
    row: Ints
    joined: Ints

    def without(self, faster: Floats) -> Floats:
        """By how much each operation is shorter if some blocks are `faster` by this much: these blocks, and those that
        wait inside for them."""
        latest = np.zeros(int(self.joined.max(initial=-1)) + 1)
        np.maximum.at(latest, self.joined, faster[self.row])
        theirs = np.zeros(len(faster))
        theirs[self.row] = latest[self.joined]
        shorter: Floats = faster + np.clip(theirs - faster, 0, self.waited)
        return shorter


def inner(graph: Graph) -> Inner:
    """What the blocks of `graph` wait for inside."""
    parts = _inside(graph.recorded, graph)
    if parts.is_empty():
        return Inner(np.zeros(len(graph)), *_joined(parts))
    held = parts.select(pl.min_horizontal("waited", pl.col("ended") - pl.col("start")).cast(pl.Float64)).to_series()
    waited = np.bincount(parts["row"].to_numpy(), held.to_numpy(), len(graph))
    return Inner(np.minimum(waited, graph.length), *_joined(parts))


def run_together(recorded: Recorded, operations: Operations, waits: Waits, names: Names) -> list[Waits]:
    """Adds a point for the blocks that wait for one another inside, one of each rank, at which all of them are ready.
    It waits for everything that they wait for, and they wait for it, with a lag that lets them start when they were
    ready."""
    parts = _inside(recorded, operations)
    if parts.is_empty():
        return []
    row, joined = _joined(parts)
    blocks = pl.DataFrame({"row": row, "joined": joined, "rank": operations.rank[row]}).filter(
        pl.len().over("joined") > 1, pl.len().over("joined") == pl.col("rank").n_unique().over("joined")
    )
    row = blocks["row"].to_numpy()
    _, number = np.unique(blocks["joined"].to_numpy(), return_inverse=True)
    of_row = np.full(len(operations), -1, np.int32)
    ready = ready_of(waits.of_some(row), operations.start, operations.end)[row]
    count = int(number.max(initial=-1)) + 1
    at, step = np.full(count, np.iinfo(np.int64).min), np.zeros(count, np.int64)
    np.maximum.at(at, number, ready)
    step[number] = operations.step[row]
    points = operations.add(sort=POINT, kind=names.number(JOINT), step=step, start=at, end=at, when=at)
    of_row[row] = points[number]
    theirs = waits.only(np.flatnonzero(of_row[waits.of] >= 0))
    point = of_row[row]
    joint = Waits(row.astype(np.int32), point, np.ones(len(row), np.bool_), ready - at[number])
    return [Waits(of_row[theirs.of], theirs.on, theirs.whole, theirs.lag), joint]


def _joined(parts: pl.DataFrame) -> tuple[Ints, Ints]:
    """The blocks of `_inside`, and for each the first block that collectives join it with, also through others."""
    row, collective = (parts[name].to_numpy().astype(np.int64) for name in ("row", "collective"))
    first = np.full(int(row.max(initial=-1)) + 1, -1, np.int64)
    first[row] = row
    while True:
        least, before = np.full(int(collective.max(initial=-1)) + 1, len(first)), first.copy()
        np.minimum.at(least, collective, first[row])
        np.minimum.at(first, row, least[collective])
        if (first == before).all():
            blocks = np.flatnonzero(first >= 0)
            return blocks, first[blocks]


def _inside(recorded: Recorded, columns: Graph | Operations) -> pl.DataFrame:
    """A row per part of a collective inside of a block: collective, rank, start, took, waited (what it took longer than
    the shortest), row (of the block), begun, ended."""
    parts, work = recorded.parts, np.flatnonzero(columns.sort[: len(recorded.blocks)] == WORK)
    if not parts.is_empty():
        parts = _often(parts, columns.rank[work])
    if parts.is_empty():
        work = work[:0]
    segment = recorded.steps["segment"].to_numpy()[columns.step[work]]
    blocks = pl.DataFrame(
        {
            "row": work, "segment": segment, "rank": columns.rank[work].astype(np.int32), "begun": columns.start[work],
            "ended": columns.end[work],
        }
    )  # fmt: skip
    parts = parts.select(
        "op", "group", "collective", pl.col("segment").cast(blocks.schema["segment"]), "rank", "start",
        took=pl.col("end") - pl.col("start"),
    )  # fmt: skip
    parts = parts.with_columns(waited=pl.col("took") - pl.col("took").min().over("collective"))
    inside = parts.sort("start").join_asof(
        blocks.sort("begun"), left_on="start", right_on="begun", by=["segment", "rank"], check_sortedness=False
    ).filter(pl.col("start") < pl.col("ended"))  # fmt: skip
    of_rank = blocks.group_by("rank").agg(blocks=pl.len())
    group = ["op", "group"]
    often = inside.group_by(*group, "rank").agg(pl.col("row").n_unique()).join(of_rank, on="rank")
    often = often.group_by(group).agg(share=pl.col("row").sum() / pl.col("blocks").sum())
    return inside.join(often.filter(pl.col("share") > MOSTLY), on=group, how="semi", nulls_equal=True)


def _often(parts: pl.DataFrame, rank: Ints) -> pl.DataFrame:
    """The parts of the groups that may communicate in most of their blocks, because a rank has enough parts for
    that."""
    of_rank, group = pl.DataFrame({"rank": rank}).group_by("rank").agg(blocks=pl.len()), ["op", "group"]
    each = parts.group_by(*group, "rank").agg(pl.len()).join(of_rank, on="rank")
    often = each.filter(pl.col("len") > MOSTLY * pl.col("blocks")).select(group).unique()
    return parts.join(often, on=group, how="semi", nulls_equal=True)
