"""What blocks wait for inside of them: the collectives of tensor-, expert- or context-parallel ranks.

These ranks run each block together, so that the blocks of all are as long as those of the slowest. A collective ends on
all of its members at once, and on the last to come it takes only as long as the data need: what it takes longer on
another member, that one waits. (Where clocks disagree, lengths still tell who that was.) Only groups that communicate
in most of their blocks hold them: gradients are reduced in the last ones of a step, while these go on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from trace_export.steps.graph import WORK, Floats, Graph, Ints

MOSTLY = 0.5
"""The share of their blocks in which such groups communicate, at least."""


@dataclass(frozen=True)
class Inner:
    """`waited`: how long each operation waits inside, 0 of all but blocks. A row per part of a collective inside of a
    block: `row`, the block, and `collective`, a number."""

    waited: Floats
    row: Ints
    collective: Ints

    def without(self, faster: Floats) -> Floats:
        """By how much each operation is shorter where some blocks are `faster` by so much: they themselves, and those
        that wait inside for them."""
        latest = np.zeros(int(self.collective.max(initial=-1)) + 1)
        np.maximum.at(latest, self.collective, faster[self.row])
        theirs = np.zeros(len(faster))
        np.maximum.at(theirs, self.row, latest[self.collective])
        shorter: Floats = faster + np.clip(theirs - faster, 0, self.waited)
        return shorter


def inner(graph: Graph) -> Inner:
    """What the blocks of `graph` wait for inside."""
    if graph.recorded.parts.is_empty():
        return Inner(np.zeros(len(graph)), np.empty(0, np.int64), np.empty(0, np.int64))
    count = len(graph.recorded.blocks)
    work = np.flatnonzero(graph.sort[:count] == WORK)
    segment = graph.recorded.steps["segment"].to_numpy()[graph.step[work]]
    blocks = pl.DataFrame(
        {
            "row": work, "segment": segment, "rank": graph.rank[work].astype(np.int32), "begun": graph.start[work],
            "ended": graph.end[work],
        }
    )  # fmt: skip
    parts = graph.recorded.parts.select(
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
    common = inside.join(often.filter(pl.col("share") > MOSTLY), on=group, how="semi", nulls_equal=True)
    row, collective = common["row"].to_numpy().astype(np.int64), common["collective"].to_numpy().astype(np.int64)
    held = common.select(pl.min_horizontal("waited", pl.col("ended") - pl.col("start")).cast(pl.Float64)).to_series()
    waited = np.bincount(row, held.to_numpy(), len(graph))
    return Inner(np.minimum(waited, graph.length), row, collective)
