"""The collectives of the measured graph: what their members wait for, and what waits for them."""

from __future__ import annotations

import numpy as np
import polars as pl

from trace_export.steps.graph import COLLECTIVE, WORK, Flags, Ints, Times, Waits
from trace_export.steps.operations import Lanes, Names, Operations, wait
from trace_export.steps.recorded import Recorded
from trace_export.tolerances import GRID_NS, POSTED_NS


def collectives(recorded: Recorded, lanes: Lanes, operations: Operations, names: Names) -> list[Waits]:
    """Adds the collectives. A member waits for the block of its rank that began before it, and for its rank's previous
    collective. A block waits for a collective of its rank only if that ended after the previous block: else no wait is
    seen."""
    parts = recorded.parts
    if parts.is_empty():
        return []
    whole = parts.group_by("collective", maintain_order=True).agg(
        pl.col("op", "step_index").first(), pl.col("end").max(), start=pl.col("start").max(),
        last=pl.col("rank").sort_by("start", descending=True, maintain_order=True).first(),
    )  # fmt: skip
    start = whole["start"].to_numpy()
    number = np.empty(int(parts["collective"].max()) + 1, np.int32)  # type: ignore[arg-type]
    number[whole["collective"].to_numpy()] = operations.add(
        sort=COLLECTIVE, kind=names.numbers("C:" + whole["op"]),
        rank=whole["last"].to_numpy(), step=whole["step_index"].to_numpy(),
        start=start, end=np.maximum(start, whole["end"].to_numpy()), when=start,
    )  # fmt: skip
    of, begun = number[parts["collective"].to_numpy()], parts["start"].to_numpy()
    lane = lanes.of(parts["segment"].to_numpy(), parts["rank"].to_numpy())
    before = lanes.last(lanes.start, lane, begun)
    there = before >= 0
    side = parts.select("segment", "rank", "end", collective=pl.Series(of)).sort("end", "collective")
    asked = parts.select("segment", "rank", "start", member=pl.int_range(pl.len())).sort("start")
    asked = asked.with_columns(since=pl.col("start") + GRID_NS)  # the next one may seem to begin before its end
    earlier = asked.join_asof(
        side, left_on="since", right_on="end", by=["segment", "rank"], check_sortedness=False, coalesce=False
    ).drop_nulls("collective")
    member, on = earlier["member"].to_numpy(), earlier["collective"].to_numpy()
    another = on != of[member]
    waiting = begun < operations.start[of]  # for the member that began last
    waiting[member] |= another & ((earlier["start"] - earlier["end"]).to_numpy() <= POSTED_NS)
    waited, could = _could_begin(recorded, before, waiting, operations)
    waits = [wait(of[there], waited[there], could[there], operations)]
    waits.append(wait(of[member[another]], on[another], begun[member[another]], operations))
    block, on = _next_blocks(lanes, lane, parts["end"].to_numpy(), of, operations)
    waits.append(wait(block, on, operations.start[block], operations))
    return waits


def _next_blocks(lanes: Lanes, lane: Ints, end: Times, of: Ints, operations: Operations) -> tuple[Ints, Ints]:
    """The blocks that follow a collective of their rank which ended after the previous block, and the last such
    collective. Each collective is given by its parts: `lane`, `end`, and the operation `of` each part."""
    before = lanes.last(lanes.start, lane, end - GRID_NS)
    block = np.where(
        before >= 0, before + 1, lanes.first[lane]
    )  # the first one that starts at the end or later, but for the grid
    there = (lane >= 0) & (lanes.lane[np.minimum(block, len(lanes.lane) - 1)] == lane) & (block < len(lanes.lane))
    there &= (before < 0) | (end > operations.end[before])
    order = np.flatnonzero(there)[np.lexsort((of[there], end[there], block[there]))]
    last = np.append(np.diff(block[order]) != 0, True)[: len(order)]
    return block[order[last]], of[order[last]]


def _could_begin(recorded: Recorded, before: Ints, waiting: Flags, operations: Operations) -> tuple[Ints, Times]:
    """For each member of a collective the block of its rank that it waits for, and when that block lets it begin.

    Usually this is the block `before` it and when it began. But gradients are reduced part by part while the last
    backward of a chunk goes on: a member that waits for others, or for the previous part, begins later than it could,
    often after further blocks. All ranks run one program: if another member has begun within a block or after it, the
    others could begin after their corresponding block, or as far into it as any rank of a group with as many parts was
    when it began the same part. This concerns members that may have been `waiting` for others or for their rank's
    previous collective; any other begins when it did.
    """
    of_rank, work = ["segment", "step_index", "op", "rank"], ["kind", "microbatch", "chunk"]
    blocks = _numbered(recorded.blocks.select("segment", "step_index", "rank", *work, "row"))
    parts = recorded.parts.select("collective", *of_rank, begun="start", member=pl.int_range(pl.len()))
    parts = parts.with_columns(number=pl.int_range(pl.len()).over(of_rank), parts=pl.len().over(of_rank))
    start, end, begun = operations.start[before], operations.end[before], parts["begun"].to_numpy()
    share = np.minimum((begun - start) / np.maximum(end - start, 1), 1)
    work_before = (before >= 0) & (operations.sort[before] == WORK)
    alike = [*of_rank[:-1], "number", "parts", *work]
    seen = parts.with_columns(blocks.select(work)[np.maximum(before, 0)], share=pl.Series(share))
    seen = seen.filter(pl.Series(work_before)).with_columns(pl.col("share").min().over(alike))
    seen = seen.select("collective", *work, "share").unique()
    others = parts.filter(pl.Series(waiting)).join(seen, on="collective")
    blocks = blocks.join(others.select(work).unique(), on=work, how="semi", nulls_equal=True, maintain_order="left")
    others = others.join(blocks, on=[*blocks.columns[:-1]], nulls_equal=True)
    on = others["row"].to_numpy()
    at = (
        operations.start[on] + (others["share"] * (operations.end[on] - operations.start[on])).cast(pl.Int64).to_numpy()
    )
    first = others.select("member", "row", at=pl.Series(at)).sort("at").unique("member", keep="first")
    member, earliest = first["member"].to_numpy(), first["at"].to_numpy()
    earlier = earliest < begun[member]
    waited, could = before.copy(), begun.copy()
    waited[member[earlier]], could[member[earlier]] = first["row"].to_numpy()[earlier], earliest[earlier]
    return waited, could


def _numbered(blocks: pl.DataFrame) -> pl.DataFrame:
    """With numbers below 0, in their order, for blocks without a micro-batch: that of another rank has the same."""
    nth = pl.int_range(pl.len()).over("segment", "step_index", "rank", "kind")
    rest = blocks.filter(pl.col("microbatch").is_null()).select("row", nth=-1 - nth.cast(blocks.schema["microbatch"]))
    joined = blocks.join(rest, on="row", how="left", maintain_order="left")
    return joined.with_columns(pl.coalesce("microbatch", "nth")).drop("nth")
