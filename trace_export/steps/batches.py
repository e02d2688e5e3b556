"""Sends and receives that ranks wait for in batches. They are inferred from the blocks, because each message of a batch
is recorded as ending with the last one.

A framework that overlaps no communication sends and receives between two blocks, or, in the steady state of an
interleaved schedule, between two pairs of a forward and a backward: a rank goes on when all its sends are taken and all
its next inputs are there. A send is taken once the receiver has come to the receive, that is, has ended the blocks
before it.

Example: rank 0 sends to rank 1, whose block before that receive ends at 50 ms. The data for the next block of rank 0
are there at 20 ms, but it begins at 50 ms: it waited until its send was taken. If ranks do not wait for their sends,
nearly all such blocks begin at 20 ms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from trace_export.steps.graph import Flags, Floats, Ints, Times
from trace_export.steps.guess import MUCH, TWICE, lowest
from trace_export.tolerances import POSTED_NS

ENOUGH, MOSTLY = 3, 0.7
"""Ranks wait for a batch where blocks that could begin before it is done begin afterwards, in this share of at least
this many cases, and on half of the ranks that have any. In simulated jobs it is 0.88 or more where they wait, and 0.28
or less where they do not."""

LONG = 5
"""A transfer that takes this many times as long is seen: its sender goes on when it is done, or long before."""


@dataclass(frozen=True)
class Batches:
    """For each block the `first` and the `last` block of its batch, as rows of the blocks."""

    first: Ints
    last: Ints

    def after(self, block: Ints) -> Ints:
        """The first block of the next batch."""
        return self.last[block] + 1


def infer(
    blocks: pl.DataFrame, src: Ints, dst: Ints, opens: Flags, start: Times, end: Times, *, timed: bool
) -> Batches | None:
    """The batches of a run whose edges lead from the blocks `src` to the blocks `dst` of other ranks; None where ranks
    do not wait for their sends, or nothing would show it: where each rank takes turns with one chunk and no W, as with
    1F1B, a step takes about as long either way, and messages that were recorded (`timed`) say more.

    By block, in the order of each rank: `blocks` has its rank, kind and chunk; whether it `opens` a step of its rank;
    `start` and `end`.
    """
    rank, forward, row = blocks["rank"].to_numpy(), (blocks["kind"] == "F").to_numpy(), np.arange(len(start))
    turns = forward[1:] & ~forward[:-1] & ~opens[1:]  # a forward after a backward
    one_chunk = not (blocks["chunk"].fill_null(0) > 0).any() and not (blocks["kind"] == "W").any() and turns.any()
    if one_chunk and timed:
        return None
    seen = src, dst, rank, opens, start, end
    if one_chunk:
        one = Batches(row, row)
        waited = [*_waits(one, *seen)[1], *_together(*seen)[1]]
        return one if len(waited) >= ENOUGH and np.mean(waited) >= MOSTLY else None
    for pairs in (np.zeros(len(start), np.bool_), _second_of_pair(forward, opens)):
        first = np.where(pairs, row - 1, row)
        batches = Batches(first, _last(first))
        if _mostly(*_waits(batches, *seen)):
            return batches
    return Batches(row, row) if not turns.any() and _mostly(*_together(*seen)) else None


def _last(first: Ints) -> Ints:
    """The last row of each batch."""
    bounds = np.append(np.flatnonzero(np.diff(first, prepend=-1)), len(first))
    return np.repeat(bounds[1:] - 1, np.diff(bounds))


def _second_of_pair(forward: Flags, opens: Flags) -> Flags:
    """The backwards that follow a forward at once. From the first of a step on forwards and backwards take turns, until
    the forwards end."""
    before = np.append(False, forward[:-1])
    second: Flags = ~forward & before & ~opens
    return second


def _waits(
    batches: Batches, src: Ints, dst: Ints, rank: Ints, opens: Flags, start: Times, end: Times
) -> tuple[Ints, Flags]:
    """Whether ranks wait for all of a batch: for the sends before it, and for the input of its second block. The rank
    of each case that shows it, and whether it does."""
    first, made = batches.first[dst], end[batches.last[src]]
    needs = np.full(len(start) + 1, np.iinfo(np.int64).min)
    np.maximum.at(needs, first[first == dst], made[first == dst])
    after, free = batches.after(src), ~np.append(opens, True)
    sends = free[after] & (rank[first - 1] == rank[first])
    receives = free[first] & (first < dst)
    block = np.concatenate([after[sends], first[receives]])
    ready = np.maximum(end[block - 1], needs[block])
    awaited = np.concatenate([end[first[sends] - 1], made[receives]])
    later = start[block] - awaited
    cases = (awaited > ready + 2 * POSTED_NS) & (later <= awaited - ready)  # else it waited for something else besides
    return rank[block[cases]], later[cases] >= -POSTED_NS


def awaited(rank: Ints, src: Ints, dst: Ints, arrived: Times, opens: Flags, start: Times, end: Times) -> bool:
    """Whether a rank waits, before its next block, for what it has sent, by recorded messages that `arrived`. By block
    as in `infer`; `src`, `dst`: the blocks of each message."""
    ready = np.append(0, end)
    np.maximum.at(ready, dst, arrived)
    block, sent = src + 1, arrived
    cases = ~np.append(opens, True)[block] & (sent > ready[block] + 2 * POSTED_NS)
    block, sent = block[cases], sent[cases]
    later = start[block] - sent
    alone = later <= sent - ready[block]  # else it waited for something else besides
    return _mostly(rank[block[alone]], later[alone] >= -POSTED_NS)


def usual(
    rank: Ints, link: Ints, dst: Ints, after: Ints, begin: Times, opens: Flags, start: Times, end: Times
) -> tuple[Floats, Floats]:
    """How late the rank of each block usually is to start it once its batch is done, and how long each transfer usually
    takes. Of each transfer its `link`, the blocks `dst` and `after` that both sides go on with (-1: none), and when it
    can `begin`.

    Batches of the same links are of one sort. A slow link makes all sorts long that use it, on both sides; a late rank
    all sorts that it has, but not those of the others. So a rank is late by what each sort of its batches takes longer
    than a transfer, or than a prompt rank on the other side sees; and by no more than it is late to start blocks
    without a batch. A transfer takes as long as the shortest sort that uses its link, and is long or waits for it.
    """
    block, sent = np.concatenate([dst, after]), np.repeat([0, 1], len(dst))
    sides = pl.DataFrame({"block": block, "side": 2 * np.tile(link, 2) + sent, "begin": np.tile(begin, 2)})
    sides = sides.filter(pl.col("block") >= 0).sort("block", "side")
    row = sides["block"].to_numpy()
    of_batch = pl.col("begin").max().over("block"), pl.col("side").cast(pl.String).str.join(" ").over("block")
    sides = sides.with_columns(of_batch[0].alias("last"), of_batch[1].alias("sort"), rank=pl.Series(rank[row]))
    came_first = (rank[row] == rank[row - 1]) & (end[row - 1] < sides["last"].to_numpy())
    sides = sides.with_columns(pl.Series("start", start[row])).filter(~opens[row] | came_first)
    sorts = sides.group_by("rank", "sort", "side").agg(
        pl.len(), took=(pl.col("start") - pl.col("last")).median(), most=(pl.col("start") - pl.col("begin")).median()
    ).filter(pl.col("len") >= TWICE)  # fmt: skip
    alone = np.flatnonzero(~opens & ~np.isin(np.arange(len(start)), block))
    free = pl.DataFrame({"rank": rank[alone], "free": start[alone] - end[alone - 1]}).group_by("rank").median()
    ranks = sorts.group_by("rank").agg(pl.col("took").min()).join(free, on="rank", how="left")
    wire = lowest(ranks["took"])
    much = MUCH * wire + POSTED_NS
    prompt = ranks.filter(pl.min_horizontal("took", "free") <= much)
    shown = (pl.col("took") > much) | (pl.col("most") <= pl.col("took") + POSTED_NS)  # else the others take the time
    seen = sorts.filter(shown).join(prompt, on="rank", how="semi").group_by("side").agg(other=pl.col("most").min())
    seen = seen.with_columns(pl.col("side") + 1 - 2 * (pl.col("side") % 2))
    late = sorts.join(prompt, on="rank", how="anti").join(seen, on="side", how="left").group_by("rank", "sort").agg(
        late=pl.col("took").first() - pl.col("other").fill_null(wire).max()
    ).group_by("rank").agg(pl.col("late").min()).join(ranks, on="rank")  # fmt: skip
    late = late.select("rank", late=pl.min_horizontal("late", "free").clip(0))
    of_rank = np.zeros(int(rank.max(initial=0)) + 1)
    of_rank[late["rank"].to_numpy()] = late["late"].to_numpy()
    by = pl.Series(of_rank[sorts["rank"].to_numpy()])
    most = sorts.with_columns(pl.col("side") // 2, pl.col("took", "most") - by).filter(shown)
    most = most.group_by("side").agg(pl.col("most").min())
    length = np.full(int(link.max(initial=0)) + 1, wire)
    length[most["side"].to_numpy()] = np.maximum(most["most"].to_numpy(), 0)
    return of_rank[rank], length[link]


def _together(src: Ints, dst: Ints, rank: Ints, opens: Flags, start: Times, end: Times) -> tuple[Ints, Flags]:
    """Whether ranks begin a block when the receiver of their send begins its block, and not as soon as they can: the
    rank of each case, and whether it does. It is no case if the receiver begins other blocks as late, because then its
    host may be late, or these blocks seldom; nor if the block itself waits as long for its input."""
    free, way = ~np.append(opens, True), np.full(len(start) + 1, -1)
    way[dst] = rank[src]
    ready = np.append(0, end[:-1])
    np.maximum.at(ready, dst, end[src])
    begun = np.maximum(end[src], end[dst - 1])
    could = free[src + 1] & free[dst] & (np.append(ready, 0)[src + 1] <= begun)
    could &= start[dst] - begun > LONG * POSTED_NS
    if not could.any():
        return src[could], could[could]
    sender, receiver, begun = src[could] + 1, dst[could], begun[could]
    took, held = start[receiver] - begun, start[sender] - begun
    blocks = pl.DataFrame({"rank": rank, "way": way[:-1], "late": start - ready}).filter(free[:-1])
    of_way = blocks.group_by("rank", "way").agg(pl.len(), pl.col("late").median()).filter(pl.col("len") >= ENOUGH)
    asked = pl.DataFrame({"case": np.arange(len(took)), "rank": rank[receiver], "by": way[receiver]})
    others = asked.join(of_way, on="rank", how="left").filter(pl.col("way") != pl.col("by"))
    by = asked.join(of_way, left_on=["rank", "by"], right_on=["rank", "way"], how="left", maintain_order="left")["late"]
    soonest = asked.join(others.group_by("case").agg(pl.col("late").min()), on="case", how="left")["late"].fill_null(0)
    of_sender = pl.DataFrame({"rank": rank[sender], "way": way[sender]})
    of_sender = of_sender.join(of_way, on=["rank", "way"], how="left", maintain_order="left")
    own = np.where(way[sender] < 0, 0.0, of_sender["late"].fill_null(np.inf).to_numpy())
    seen = np.maximum(soonest.to_numpy(), own) < (1 - MOSTLY) * took
    seen &= by.fill_null(np.inf).to_numpy() > MOSTLY * took
    return rank[sender[seen]], (np.abs(held - took) <= (1 - MOSTLY) * took)[seen]


def _mostly(rank: Ints, waited: Flags) -> bool:
    """Whether ranks wait for their sends by these cases."""
    if len(waited) < ENOUGH or float(waited.mean()) < MOSTLY:
        return False
    return 2 * len(np.unique(rank[waited])) >= len(np.unique(rank))
