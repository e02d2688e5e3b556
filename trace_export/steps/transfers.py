"""The transfers of the measured graph: when they begin and end, what they wait for, and what waits for them."""

from __future__ import annotations

import numpy as np
import polars as pl

from trace_export.steps import batches, guess
from trace_export.steps.graph import TRANSFER, WORK, Flags, Ints, Times, Waits, of_parts
from trace_export.steps.operations import MOST, Lanes, Names, Operations, wait
from trace_export.steps.recorded import Recorded
from trace_export.tolerances import POSTED_NS

MOST_TIMED = 0.9
"""Whether ranks wait for what they send is seen in messages if this share was recorded."""
TOGETHER = 0.1
"""From this share of sends on that begin when a receive of their rank does, one kernel does both."""
POSTED = 0.05
"""A receive was posted after a block if it starts within this share of the block's length after it."""


def transfers(
    recorded: Recorded, lanes: Lanes, first: Flags, joint: list[Waits], operations: Operations, names: Names
) -> tuple[list[Waits], Flags]:
    """Adds the transfers. One waits for its producer, for the transfer before on its way, and for the block of the
    receiver after which the receive was posted, where the receive followed it promptly. Without a message the transfer
    is guessed: as long as the gap that it leaves if it can be seen, else as the median of such gaps on its way.
    `joint`: the waits of blocks for operations of several ranks."""
    edges = recorded.edges
    src: Ints = edges["src"].to_numpy().astype(np.int32)
    dst: Ints = edges["dst"].to_numpy().astype(np.int32)
    src_rank, dst_rank = edges["src_rank"].to_numpy(), edges["dst_rank"].to_numpy()
    local = src_rank == dst_rank
    waits = [wait(dst[local], src[local], operations.start[dst[local]], operations)]
    if local.all():
        return waits, np.zeros(len(operations), np.bool_)
    if local.any():
        edges, src, dst = edges.filter(~local), src[~local], dst[~local]
    timed = edges["arrived"].is_not_null().to_numpy()
    count = len(first)
    times = operations.start[:count], operations.end[:count]
    alone, batched, came_last = False, None, np.zeros(len(src), np.bool_)
    after: Ints = np.full(len(src), -1, np.int32)
    mostly_timed = bool(timed.mean() >= MOST_TIMED)
    if mostly_timed and not recorded.of_host and _apart(edges):
        arrived = edges["arrived"].filter(timed).to_numpy()
        alone = batches.awaited(operations.rank, src[timed], dst[timed], arrived, first, *times)
    if not alone and not recorded.of_host:
        batched = batches.infer(recorded.blocks, src, dst, first, *times, timed=mostly_timed)
    if batched is None:
        start, end, posted = _transfer_times(recorded, edges, timed, lanes, first, joint, operations)
        if alone:
            after = np.where(np.append(first, True)[src + 1] | ~timed, -1, src + 1)
    else:
        src, dst, after = batched.last[src], batched.first[dst], batched.after(src)
        after = np.where(np.append(first, True)[after], -1, after)
        posted, timed = ~first[dst], np.zeros(len(src), np.bool_)
        came_last = first[dst] & ~np.isin(dst, lanes.first) & (operations.end[dst - 1] > operations.end[src])
        start, end, came_last = _exchanged(edges, src, dst, after, posted, came_last, first, operations)
    sent, received = (edges[c].fill_null(0).to_numpy() for c in ("sent", "received"))
    sent = np.where(timed, sent, np.minimum(start, operations.end[src]))
    receiver_last = np.where(timed, received > sent, came_last)
    posted &= ~np.isin(dst, lanes.first)
    forward = (edges["direction"] == "F").to_numpy()
    code = np.where(forward, np.int16(names.number("T:F")), np.int16(names.number("T:B")))
    from_rank, to_rank = edges["src_rank"].to_numpy(), edges["dst_rank"].to_numpy()
    number = operations.add(
        sort=TRANSFER, kind=code, rank=np.where(receiver_last, to_rank, from_rank), src=from_rank, dst=to_rank,
        step=operations.step[src], start=start, end=end, when=start,
    )  # fmt: skip
    waits += [
        wait(number, src, sent, operations),
        wait(dst, number, operations.start[dst], operations),
        _before_on_way(np.flatnonzero(timed), code, from_rank, lanes.lane[dst], number, operations),
        wait(number[posted], dst[posted] - 1, start[posted], operations),
        wait(after[after >= 0], number[after >= 0], operations.start[after[after >= 0]], operations),
        *_posted(np.flatnonzero(timed), sent, received, dst, number, lanes, operations),
        *_after_collectives(recorded, np.flatnonzero(timed), sent, received, src, dst, number, lanes, operations),
    ]
    when = operations.when.copy()
    for some in waits[4:]:
        np.maximum.at(operations.when, some.of, when[some.on] + 1)
    guessed = np.concatenate([np.zeros(len(operations) - len(timed), np.bool_), ~timed])
    return waits, guessed


def _apart(edges: pl.DataFrame) -> bool:
    """Whether each message was recorded by itself: else what a rank sends and receives in a batch begins at once."""
    edges = edges.filter(pl.col("arrived").is_not_null())
    received = edges.select(rank="dst_rank", at="received")
    together = edges.select(rank="src_rank", at="sent").join(received, on=["rank", "at"], how="semi")
    return len(together) < TOGETHER * len(edges)


def _exchanged(
    edges: pl.DataFrame, src: Ints, dst: Ints, after: Ints, posted: Flags, came_last: Flags, first: Flags,
    operations: Operations,
) -> tuple[Times, Times, Flags]:  # fmt: skip
    """Start and end of each transfer of `batches`, and whether its receiver came last to it: it begins when the data
    are made and its receiver has come to it, and is done before both ranks go on, with the blocks `dst` and `after`
    (-1: none in its step). If they do so much later than usual, they wait for something else. The receiver came last if
    it is still in the step before when the data are made (`came_last`), or if it opens its step late and the sender
    goes on no sooner, although it needs nothing else; then the transfer takes as long as usual, and begins when the
    receiver has gone on."""
    made = operations.end[src]
    begin = np.where(posted, np.maximum(made, operations.end[dst - 1]), made)
    after = np.where(operations.sort[after] == WORK, after, -1)  # an optimizer waits for more
    count, link = len(first), edges.select(pl.struct("src_rank", "dst_rank").rank("dense")).to_series().to_numpy()
    times = operations.start[:count], operations.end[:count]
    late, usual = batches.usual(operations.rank[:count], link, dst, after, begin, first, *times)
    could = times[0] - late.astype(np.int64)
    until = np.minimum(could[dst], np.where(after >= 0, could[after], MOST))
    length, usual = np.clip(until - begin, 0, None), usual.astype(np.int64)
    held = length > guess.MUCH * usual + POSTED_NS
    took = np.where(held, usual, length)
    ready = np.append(0, operations.end[:count])
    np.maximum.at(ready, dst, made)
    waits = (after >= 0) & (could[after] > ready[after] + guess.MUCH * usual + POSTED_NS)
    came_last = came_last | (first[dst] & held & waits & (could[dst] >= could[after] - POSTED_NS))
    begin = np.where(came_last, np.maximum(begin, until - usual), begin)
    return begin, begin + np.where(came_last, usual, took), came_last


def _transfer_times(
    recorded: Recorded, edges: pl.DataFrame, timed: Flags, lanes: Lanes, first: Flags, joint: list[Waits],
    operations: Operations,
) -> tuple[Times, Times, Flags]:  # fmt: skip
    """Start and end of each transfer, and whether one without a message began when its receiver fell idle."""
    count, nothing = len(first), np.zeros(len(timed), np.int64)
    begin, took, posted = nothing, nothing, nothing > 0
    if not timed.all():
        blocks = pl.DataFrame(
            {
                "rank": pl.Series(operations.rank[:count], dtype=pl.Int32), "start": operations.start[:count],
                "end": operations.end[:count], "ended": _done_before(lanes, first, joint, operations),
                "work": (operations.sort[:count] == WORK) & ~recorded.blind,
            }
        ).with_columns(free=pl.when(pl.Series(~first)).then("ended"))  # fmt: skip
        hosts = recorded.ranks.select("rank", "host")
        begin, took, posted = guess.transfers(edges.with_columns(timed=pl.Series(timed)), blocks, hosts)
    sent, received, arrived = (edges[c].fill_null(0).to_numpy() for c in ("sent", "received", "arrived"))
    start = np.where(timed, np.maximum(sent, received), begin)
    return start, np.where(timed, np.maximum(start, arrived), begin + took), posted


def _done_before(lanes: Lanes, first: Flags, joint: list[Waits], operations: Operations) -> Times:
    """When the rank of each block was done with everything before it: with the previous block; for the first block of a
    step also with its other waits (`joint`). 0 for the first block of a recording."""
    count = len(first)
    ended = np.concatenate([[0], operations.end[: count - 1]])
    ended[lanes.first] = 0
    for waits in joint:
        opening = waits.only(np.flatnonzero(np.append(first, False)[np.minimum(waits.of, count)]))
        np.maximum.at(ended, opening.of, np.minimum(operations.end[opening.on], operations.start[opening.of]))
    return ended


def _before_on_way(rows: Ints, code: Ints, src: Ints, lane: Ints, number: Ints, operations: Operations) -> Waits:
    """Each transfer waits for the one before on its way, in the order in which their data were made."""
    sizes = int(src.max(initial=0)) + 1, int(code.max(initial=0)) + 1
    way = (lane * sizes[0] + src) * sizes[1] + code  # a lane is of one receiver
    order = rows[np.argsort(way[rows], kind="stable")]
    same = np.diff(way[order]) == 0
    of, on = number[order[1:]][same], number[order[:-1]][same]
    return wait(of, on, operations.start[of], operations)


def _posted(
    rows: Ints, sent: Times, received: Times, dst: Ints, number: Ints, lanes: Lanes, operations: Operations
) -> list[Waits]:
    """The receives that promptly followed the end of a block of their rank, or else the start of one. They may begin a
    little before that end, for streams overlap. A receive that began after the send, after a block that ended before
    the send, was merely recorded late."""
    if not len(rows):
        return []
    waits, open_ = [], np.ones(len(rows), np.bool_)
    lane, at, last = lanes.lane[dst[rows]], received[rows], dst[rows] - 1
    early = (lanes.end[:-1] - lanes.start[1:])[lanes.same]
    overlap = float(np.median(early[early > 0])) + POSTED_NS if (early > 0).any() else 0.0

    def length(block: Ints) -> Ints:
        took: Ints = operations.end[block] - operations.start[block]
        return took

    for times, actual, whole in ((lanes.end, operations.end, True), (lanes.start, operations.start, False)):
        block = np.maximum(np.minimum(lanes.last(times, lane, at + POSTED_NS), last), lanes.first[lane] - 1)
        if whole:
            following = np.minimum(block + 1, last)
            soon = np.maximum(POSTED * length(following), overlap)
            ends_soon = (following > block) & (times[following] - at <= soon)
            block = np.where(ends_soon, following, block)
        there = block >= lanes.first[lane]
        block = np.where(there, block, 0)
        happened = times[block] if whole else actual[block]
        prompt = there & (at - happened <= np.maximum(POSTED_NS, POSTED * length(block)))
        chosen = open_ & prompt & ((at <= sent[rows]) | (happened >= sent[rows]))
        some = rows[chosen]
        waits.append(wait(number[some], block[chosen], at[chosen], operations, whole))
        open_ &= ~chosen
    return waits


def _after_collectives(
    recorded: Recorded, rows: Ints, sent: Times, received: Times, src: Ints, dst: Ints, number: Ints, lanes: Lanes,
    operations: Operations,
) -> list[Waits]:  # fmt: skip
    """The sends and receives that promptly followed a collective of their rank: a block may end with a collective, such
    as one of tensor-parallel peers, whose result is sent. For receives see `_posted`."""
    if not len(rows):
        return []
    parts, waits, collective = recorded.parts, [], of_parts(recorded, operations.sort)
    lane, ends = lanes.of(parts["segment"].to_numpy(), parts["rank"].to_numpy()), parts["end"].to_numpy()
    order = np.lexsort((collective, ends, lane))
    order = order[lane[order] >= 0]
    if not len(order):
        return []
    lane, ends, collective = lane[order], ends[order], collective[order]
    for block, at, before in ((src, sent, operations.end[src]), (dst, received, None)):
        last = lanes.last(ends, lanes.lane[block[rows]], at[rows], lane)
        there = (last >= 0) & (at[rows] - ends[last] <= POSTED_NS)
        row, on, end = rows[there], collective[last[there]], ends[last[there]]
        binds = end > before[row] if before is not None else (at[row] <= sent[row]) | (end >= sent[row])
        row, on = row[binds], on[binds]
        waits.append(wait(number[row], on, at[row], operations))
    return waits
