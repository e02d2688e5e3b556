"""Makes the measured graph from what was recorded; `graph` says what it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from trace_export.model import WORK_KINDS
from trace_export.steps import barriers, batches, guess
from trace_export.steps.graph import (
    COLLECTIVE,
    OPTIMIZER,
    POINT,
    TRANSFER,
    WORK,
    Flags,
    Graph,
    Ints,
    Times,
    Waits,
    lowest_fifth,
    needs_transfer,
    ready_of,
)
from trace_export.steps.launches import launched
from trace_export.steps.order import levels, uncircled
from trace_export.steps.recorded import Recorded
from trace_export.tolerances import POSTED_NS

KINDS = (*WORK_KINDS, "OPT")
MOST = np.iinfo(np.int64).max
ONE_WAY = 2
"""One way between two ranks is slow where it takes this many times as long as the other."""
POSTED = 0.05
"""A receive that starts within this share of a block's length after it was posted by what follows that block."""


@dataclass(frozen=True)
class Operations:
    """Columns of `Graph` while it grows."""

    sort: Ints
    kind: Ints
    rank: Ints
    src: Ints
    dst: Ints
    step: Ints
    start: Times
    end: Times
    when: Times
    """When it may have begun at the earliest: what orders operations that wait in a circle."""

    def and_also(self, **columns: Ints | int) -> Operations:
        """With further operations; a column that is not given is -1."""
        count = len(columns["start"])  # type: ignore[arg-type]

        def longer(name: str, old: Ints) -> Any:
            return np.concatenate([old, np.broadcast_to(np.asarray(columns.get(name, -1), old.dtype), count)])

        return Operations(**{name: longer(name, old) for name, old in vars(self).items()})


@dataclass(frozen=True)
class _Seen:
    """What was recorded as operations and their waits, with the marks `first`, `blind` and `guessed` of `Graph`."""

    operations: Operations
    waits: Waits
    first: Flags
    blind: Flags
    guessed: Flags


def build(recorded: Recorded) -> Graph:
    """The graph of `recorded`. O(n log n) in the number of its rows."""
    names = _Names()
    seen, early = _seen(recorded, names), _early(recorded)
    recorded = replace(  # the columns of blocks and edges are those of operations now
        recorded, edges=recorded.edges.clear(),
        blocks=recorded.blocks.select("span", "microbatch", "chunk", "first_part"),
    )  # fmt: skip
    operations, waits = seen.operations, seen.waits
    joined, cut = barriers.infer(recorded, operations, seen.first, waits, names.kinds), 0
    found = levels(len(operations.start) + len(joined.start), joined.waits.of, joined.waits.on)
    if found is None:  # the circles go before barriers are sought, and those that close with these
        kept = uncircled(len(operations.start), waits.of, waits.on, operations.when)
        joined = barriers.infer(recorded, operations, seen.first, waits.only(kept), names.kinds)
        when, waits = np.concatenate([operations.when, joined.start]), joined.waits
        still = uncircled(len(when), waits.of, waits.on, when)
        cut = int((~kept).sum() + (~still).sum())
        joined = replace(joined, waits=waits.only(still))
        found = levels(len(when), joined.waits.of, joined.waits.on)
        assert found is not None
    order, rows = found
    more = len(joined.start)
    if more:
        operations = operations.and_also(
            sort=POINT, kind=names.number("barrier"), step=joined.step, start=joined.start, end=joined.start
        )
    columns: dict[str, Any] = {name: value for name, value in vars(operations).items() if name != "when"}
    columns |= {name: _longer(getattr(seen, name), more) for name in ("first", "blind", "guessed")}
    graph = Graph(
        recorded=recorded, kinds=names.kinds, **columns, waits=joined.waits.only(rows), levels=order,
        early_ns=early, barriers=joined.names, cut=cut,
    )  # fmt: skip
    return replace(graph, waits=launched(graph))


def _seen(recorded: Recorded, names: _Names) -> _Seen:
    """All but the barriers."""
    blocks = recorded.blocks
    codes = blocks["kind"].cast(pl.Enum(KINDS)).to_physical().to_numpy()
    start, end = blocks["start"].to_numpy(), np.maximum(blocks["start"].to_numpy(), blocks["end"].to_numpy())
    number, nobody = np.arange(len(blocks)), np.full(len(blocks), -1, np.int32)
    operations = Operations(
        sort=np.where(blocks["kind"] == "OPT", np.int8(OPTIMIZER), np.int8(WORK)), kind=codes.astype(np.int16),
        rank=blocks["rank"].to_numpy(), src=nobody, dst=nobody, step=blocks["step_index"].to_numpy(), start=start,
        end=end, when=start,
    )  # fmt: skip
    lanes = _Lanes(recorded.blocks)
    of_lane = _wait(number[1:][lanes.same], number[:-1][lanes.same], start[1:][lanes.same], operations)
    first = lanes.first_of(blocks["step_index"].to_numpy())
    operations, joint = _collectives(recorded, lanes, operations, names)
    operations, moved, guessed = _transfers(recorded, lanes, first, joint, operations, names)
    waits = of_lane.and_also(*joint, *moved)
    del of_lane, joint, moved
    operations, pauses = _goes_on(recorded, lanes, first, operations, waits, names)
    waits = waits.and_also(*pauses)
    operations, begun = _origins(recorded, first, operations, waits, names)
    fed = np.zeros(len(blocks), np.bool_)
    fed[recorded.edges["dst"].to_numpy()] = True
    blind, count = blocks["lacks"].to_numpy() & ~fed, len(operations.start)
    marks = (_longer(marked, count - len(marked)) for marked in (first, blind, guessed))
    return _Seen(operations, waits.and_also(begun), *marks)


def _longer(marked: Flags, more: int) -> Flags:
    """With further operations that are not marked."""
    return np.concatenate([marked, np.zeros(more, np.bool_)])


def _early(recorded: Recorded) -> int:
    """`Graph.early_ns`."""
    edges = recorded.edges.with_columns(begun=recorded.blocks["start"].gather(recorded.edges["dst"]))
    early = pl.when(pl.col("arrived").is_null()).then(pl.col("made") - pl.col("begun"))
    late = pl.max_horizontal("sent", "received") - pl.col("arrived")
    return int(edges.select(pl.coalesce(early, late).clip(0).sum()).item() or 0)


class _Names:
    """Numbers for kinds."""

    def __init__(self) -> None:
        self._kinds = {kind: number for number, kind in enumerate(KINDS)}

    def number(self, kind: str) -> int:
        return self._kinds.setdefault(kind, len(self._kinds))

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(self._kinds)


class _Lanes:
    """The blocks of a rank in a segment, in their order. `lane`: of each block; `same`: whether a block and the next
    are of one lane; `first`: where each lane begins."""

    def __init__(self, blocks: pl.DataFrame) -> None:
        rank, segment = blocks["rank"].to_numpy(), blocks["segment"].to_numpy()
        new = (np.diff(rank) != 0) | (np.diff(segment) != 0)
        self.same = ~new
        self.lane = np.concatenate([[0], np.cumsum(new)]) if len(blocks) else np.empty(0, np.int64)
        self.first = np.flatnonzero(np.concatenate([[True], new])) if len(blocks) else np.empty(0, np.int64)
        self._of = {(int(segment[i]), int(rank[i])): n for n, i in enumerate(self.first)}
        self.start, end = blocks["start"].to_numpy(), np.maximum(blocks["start"].to_numpy(), blocks["end"].to_numpy())
        self._zero = int(self.start.min(initial=MOST))
        self._size = max(int(end.max(initial=0)) - self._zero, 0) + 2
        self._times = np.unique(np.concatenate([self.start, end])) if len(self.first) > MOST // self._size else None
        if self._times is not None:
            self._size = len(self._times) + 1
        latest = np.maximum.accumulate(self._key(self.lane, end)) - self.lane * self._size - 1
        self.end = latest + self._zero if self._times is None else self._times[latest]

    def _key(self, lane: Ints, at: Times) -> Ints:
        """Lanes one after another, so that one search, and one running maximum, serve all: the time since the first
        block, behind those of the lanes before. Where that leaves the integers, how many of all times are at most
        `at`."""
        if self._times is None:
            return lane * self._size + np.clip(at - self._zero + 1, 0, self._size - 1)
        found: Ints = lane * self._size + np.searchsorted(self._times, at, side="right")
        return found

    def first_of(self, step: Ints) -> Flags:
        """Which blocks are the first of their lane in a step."""
        order = np.argsort(self.lane * (int(step.max(initial=0)) + 1) + step, kind="stable")
        new = (np.diff(self.lane[order]) != 0) | (np.diff(step[order]) != 0)
        first = np.zeros(len(step), np.bool_)
        first[order[np.concatenate([[True], new])[: len(step)]]] = True
        return first

    def of(self, segment: Ints, rank: Ints) -> Ints:
        """The lane of each pair; -1 where it has no blocks."""
        return np.array([self._of.get(key, -1) for key in zip(segment.tolist(), rank.tolist(), strict=True)], np.int64)

    def last(self, times: Times, lane: Ints, at: Times) -> Ints:
        """The last block of each lane whose time (of `times`, rising in a lane) is at most `at`; -1 where there is
        none."""
        found = np.searchsorted(self._key(self.lane, times), self._key(lane, at), side="right") - 1
        return np.where((lane >= 0) & (found >= self.first[lane]), found, -1)


def _wait(of: Ints, on: Ints, begun: Times, operations: Operations, whole: Flags | bool = True) -> Waits:
    """Operations that wait for others; the waiting member had begun at `begun`."""
    full = np.broadcast_to(np.asarray(whole, np.bool_), len(of))
    happened = np.where(full, operations.end[on], operations.start[on])
    return Waits(of.astype(np.int32), on.astype(np.int32), full, np.minimum(0, begun - happened))


def _collectives(
    recorded: Recorded, lanes: _Lanes, operations: Operations, names: _Names
) -> tuple[Operations, list[Waits]]:
    """A member waits for the block of its rank that began before it, and for its rank's collective before; a block
    waits for a collective of its rank that ended after the block before: only then has it been seen to wait."""
    parts = recorded.parts
    if parts.is_empty():
        return operations, []
    whole = parts.group_by("collective", maintain_order=True).agg(
        pl.col("op", "step_index").first(), pl.col("end").max(), start=pl.col("start").max(),
        last=pl.col("rank").sort_by("start", descending=True, maintain_order=True).first(),
    )  # fmt: skip
    base = len(operations.start)
    start = whole["start"].to_numpy()
    operations = operations.and_also(
        sort=COLLECTIVE, kind=np.array([names.number(f"C:{op}") for op in whole["op"]], np.int64),
        rank=whole["last"].to_numpy(), step=whole["step_index"].to_numpy(),
        start=start, end=np.maximum(start, whole["end"].to_numpy()), when=start,
    )  # fmt: skip
    number = np.empty(int(parts["collective"].max()) + 1, np.int64)  # type: ignore[arg-type]
    number[whole["collective"].to_numpy()] = base + np.arange(len(whole))
    of, begun = number[parts["collective"].to_numpy()], parts["start"].to_numpy()
    lane = lanes.of(parts["segment"].to_numpy(), parts["rank"].to_numpy())
    before = lanes.last(lanes.start, lane, begun)
    there = before >= 0
    side = parts.select("segment", "rank", "end", collective=pl.Series(of)).sort("end", "collective")
    asked = parts.select("segment", "rank", "start", member=pl.int_range(pl.len())).sort("start")
    earlier = asked.join_asof(
        side, left_on="start", right_on="end", by=["segment", "rank"], check_sortedness=False, coalesce=False
    ).drop_nulls("collective")
    member, on = earlier["member"].to_numpy(), earlier["collective"].to_numpy()
    another = on != of[member]
    waiting = begun < operations.start[of]  # for the member that began last
    waiting[member] |= another & ((earlier["start"] - earlier["end"]).to_numpy() <= POSTED_NS)
    waited, could = _could_begin(recorded, before, waiting, operations)
    found = [_wait(of[there], waited[there], could[there], operations)]
    found.append(_wait(of[member[another]], on[another], begun[member[another]], operations))
    rows = recorded.blocks.select("segment", "rank", "start", "row").sort("start")
    ended = rows.join_asof(side, left_on="start", right_on="end", by=["segment", "rank"], check_sortedness=False)
    ended = ended.drop_nulls("collective").select("row", "collective", "end")
    block, on = ended["row"].to_numpy().astype(np.int64), ended["collective"].to_numpy()
    previous = operations.end[np.maximum(block - 1, 0)]
    alone = np.isin(block, lanes.first)
    seen = alone | (ended["end"].to_numpy() > previous)
    found.append(_wait(block[seen], on[seen], operations.start[block[seen]], operations))
    return operations, found


def _could_begin(recorded: Recorded, before: Ints, waiting: Flags, operations: Operations) -> tuple[Ints, Times]:
    """For each member of a collective the block of its rank that it waits for, and by when it could begin for that.

    These are the block `before` it and when it began; but gradients are reduced part by part while the last backward of
    a chunk goes on. A member that waits for others, or for the part before, begins later than it could, often after
    further blocks. All ranks run one program: where another member has begun within a block or after it, the others
    could begin after the same block of theirs, or as far in it as any rank, of this group or another with as many
    parts, was when it began its part of that number. That holds of the members that may have been `waiting` for
    others or for their rank's collective before; any other begins when it did.
    """
    of_rank, work = ["segment", "step_index", "op", "rank"], ["kind", "microbatch", "chunk"]
    blocks = recorded.blocks.select("segment", "step_index", "rank", *work, "row")
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


def _transfers(
    recorded: Recorded, lanes: _Lanes, first: Flags, joint: list[Waits], operations: Operations, names: _Names
) -> tuple[Operations, list[Waits], Flags]:
    """A transfer waits for its producer, for the transfer before on its way, and for the block of the receiver after
    which the receive was posted, where the receive followed it promptly. Without a message the transfer is guessed: as
    long as the gap that it leaves where it can be seen, else as the median of such gaps on its way."""
    edges = recorded.edges
    src: Ints = edges["src"].to_numpy().astype(np.int64)
    dst: Ints = edges["dst"].to_numpy().astype(np.int64)
    src_rank, dst_rank = edges["src_rank"].to_numpy(), edges["dst_rank"].to_numpy()
    own = src_rank == dst_rank
    found = [_wait(dst[own], src[own], operations.start[dst[own]], operations)]
    if own.all():
        return operations, found, np.zeros(len(operations.start), np.bool_)
    if own.any():
        edges, src, dst = edges.filter(~own), src[~own], dst[~own]
    known = edges["arrived"].is_not_null().to_numpy()
    count = len(first)
    times = operations.start[:count], operations.end[:count]
    batched = None if recorded.of_host else batches.infer(recorded.blocks, src, dst, first, *times)
    if batched is None:
        start, end, posted = _transfer_times(recorded, edges, known, lanes, first, joint, operations)
        after = np.full(len(src), -1)
    else:
        src, dst, after = batched.last[src], batched.first[dst], batched.after(src)
        after = np.where(np.append(first, True)[after], -1, after)
        posted = ~first[dst]
        start, end = _exchanged(edges, src, dst, after, posted, operations)
        known = np.zeros(len(src), np.bool_)
    sent, received = (edges[c].fill_null(0).to_numpy() for c in ("sent", "received"))
    sent = np.where(known, sent, np.minimum(start, operations.end[src]))
    receiver_last = known & (received > sent)
    posted &= ~np.isin(dst, lanes.first)
    base, count = len(operations.start), len(src)
    number = base + np.arange(count)
    forward = (edges["direction"] == "F").to_numpy()
    code = np.where(forward, names.number("T:F"), names.number("T:B"))
    from_rank, to_rank = edges["src_rank"].to_numpy().astype(np.int64), edges["dst_rank"].to_numpy().astype(np.int64)
    operations = operations.and_also(
        sort=TRANSFER, kind=code, rank=np.where(receiver_last, to_rank, from_rank), src=from_rank, dst=to_rank,
        step=operations.step[src], start=start, end=end, when=start,
    )  # fmt: skip
    found += [
        _wait(number, src, sent, operations),
        _wait(dst, number, operations.start[dst], operations),
        _before_on_way(np.flatnonzero(known), code, from_rank, lanes.lane[dst], number, operations),
        _wait(number[posted], dst[posted] - 1, start[posted], operations),
        _wait(after[after >= 0], number[after >= 0], operations.start[after[after >= 0]], operations),
        *_posted(np.flatnonzero(known), sent, received, dst, number, lanes, operations),
        *_after_collectives(recorded, np.flatnonzero(known), sent, received, src, dst, number, operations),
    ]
    when = operations.when.copy()
    for some in found[4:]:
        np.maximum.at(when, some.of, operations.when[some.on] + 1)
    guessed = np.concatenate([np.zeros(base, np.bool_), ~known])
    return replace(operations, when=when), found, guessed


def _exchanged(
    edges: pl.DataFrame, src: Ints, dst: Ints, after: Ints, posted: Flags, operations: Operations
) -> tuple[Times, Times]:
    """Start and end of each transfer of `batches`: it begins when the data are made and its receiver has come to it,
    and is done before both ranks go on, with the blocks `dst` and `after` (-1: none in its step). How long it takes is
    seen where it is the last that one of them waits for."""
    made = operations.end[src]
    begin = np.where(posted, np.maximum(made, operations.end[dst - 1]), made)
    goes_on = np.where(after >= 0, operations.start[after], MOST)
    length = np.clip(np.minimum(operations.start[dst], goes_on) - begin, 0, None)
    latest = np.full(len(operations.start) + 1, -MOST)
    for block in (dst, after):
        np.maximum.at(latest, block, begin)
    seen = (begin == latest[dst]) | ((after >= 0) & (begin == latest[after]))
    touching = np.bincount(np.concatenate([dst, after[after >= 0]]), minlength=len(operations.start) + 1)
    one = np.where(posted & (touching[dst] == 1), operations.start[dst], MOST)  # else a step may begin late
    one = np.minimum(one, np.where((after >= 0) & (touching[after] == 1), goes_on, MOST))
    way = edges.select(guess.WAY).with_columns(
        length=length, seen=seen & (length > 0), alone=pl.Series(one - begin), is_alone=(one < MOST) & (one > begin)
    )
    lengths, alone, link = pl.col("length").filter("seen"), pl.col("alone").filter("is_alone"), guess.WAY[:2]
    ends = [pl.min_horizontal(link).alias("low"), pl.max_horizontal(link).alias("high")]
    way = way.with_columns(*ends, sure=pl.when(alone.len().over(link) > 1).then(alone.median().over(link)))
    least, most = (found.over("low", "high") for found in (pl.col("sure").min(), pl.col("sure").max()))
    one_way = most > ONE_WAY * least + POSTED_NS  # which of two that end together took long is seen where one is alone
    usual = pl.coalesce(pl.when(one_way).then("sure"), lengths.median().over(guess.WAY), lengths.median()).fill_null(0)
    took = way.select(pl.min_horizontal("length", usual.cast(pl.Int64))).to_series().to_numpy()
    return begin, begin + took


def _transfer_times(
    recorded: Recorded, edges: pl.DataFrame, known: Flags, lanes: _Lanes, first: Flags, joint: list[Waits],
    operations: Operations,
) -> tuple[Times, Times, Flags]:  # fmt: skip
    """Start and end of each transfer, and whether one without a message began when its receiver fell idle."""
    sent, received, arrived = (edges[c].fill_null(0).to_numpy() for c in ("sent", "received", "arrived"))
    met = np.maximum(sent, received)
    if known.all():
        return met, np.maximum(met, arrived), np.zeros(len(known), np.bool_)
    count = len(first)
    blocks = pl.DataFrame(
        {
            "rank": pl.Series(operations.rank[:count], dtype=pl.Int32), "start": operations.start[:count],
            "end": operations.end[:count], "ended": _done_before(recorded, lanes, first, joint, operations),
            "work": operations.sort[:count] == WORK,
        }
    ).with_columns(free=pl.when(pl.Series(~first)).then("ended"))  # fmt: skip
    begin, took, posted = guess.transfers(edges.with_columns(known=pl.Series(known)), blocks)
    start = np.where(known, met, begin)
    return start, np.where(known, np.maximum(start, arrived), begin + took), posted


def _done_before(recorded: Recorded, lanes: _Lanes, first: Flags, joint: list[Waits], operations: Operations) -> Times:
    """When the rank of each block was done with what was before it: with the block before; for the first block of a
    step also with the collectives (`joint`) that it waits for, and with what it seems to wait for on other ranks of its
    stage, with which it starts together. 0 for the first block of a recording."""
    count = len(first)
    ended = np.concatenate([[0], operations.end[: count - 1]])
    ended[lanes.first] = 0
    for waits in joint:
        opening = waits.only(np.flatnonzero(np.append(first, False)[np.minimum(waits.of, count)]))
        np.maximum.at(ended, opening.of, np.minimum(operations.end[opening.on], operations.start[opening.of]))
    made = np.zeros(count, np.int64)
    np.maximum.at(made, recorded.edges["dst"].to_numpy(), operations.end[recorded.edges["src"].to_numpy()])
    rows = np.flatnonzero(first & (ended > 0))
    openings = pl.DataFrame(
        {
            "row": rows, "rank": operations.rank[rows].astype(np.int32), "step": operations.step[rows],
            "start": operations.start[rows], "end": operations.end[rows], "ready": np.maximum(ended, made)[rows],
        }
    ).join(recorded.ranks.select("rank", who="stage"), on="rank", how="left")  # fmt: skip
    held = openings.join(barriers.together(openings), on=["who", "step"])
    row = held["row"].to_numpy()
    ended[row] = np.minimum(held["last_ready"].to_numpy(), operations.start[row])
    return ended


def _before_on_way(rows: Ints, code: Ints, src: Ints, lane: Ints, number: Ints, operations: Operations) -> Waits:
    """Each transfer waits for the one before on its way, in the order in which their data were made."""
    sizes = int(src.max(initial=0)) + 1, int(code.max(initial=0)) + 1
    way = (lane * sizes[0] + src) * sizes[1] + code  # a lane is of one receiver
    order = rows[np.argsort(way[rows], kind="stable")]
    same = np.diff(way[order]) == 0
    of, on = number[order[1:]][same], number[order[:-1]][same]
    return _wait(of, on, operations.start[of], operations)


def _posted(
    rows: Ints, sent: Times, received: Times, dst: Ints, number: Ints, lanes: _Lanes, operations: Operations
) -> list[Waits]:
    """The receives that promptly followed the end of a block of their rank, or else the start of one. Where the receive
    began after the send and that block ended before it, it was merely recorded late."""
    if not len(rows):
        return []
    found, open_ = [], np.ones(len(rows), np.bool_)
    for times, actual, whole in ((lanes.end, operations.end, True), (lanes.start, operations.start, False)):
        at = received[rows]
        block = np.minimum(lanes.last(times, lanes.lane[dst[rows]], at + POSTED_NS), dst[rows] - 1)
        there = (block >= 0) & (block >= lanes.first[lanes.lane[dst[rows]]])
        block = np.where(there, block, 0)
        happened = times[block] if whole else actual[block]
        length = operations.end[block] - operations.start[block]
        prompt = there & (at - happened <= np.maximum(POSTED_NS, POSTED * length))
        chosen = open_ & prompt & ((at <= sent[rows]) | (happened >= sent[rows]))
        some = rows[chosen]
        found.append(_wait(number[some], block[chosen], received[some], operations, whole))
        open_ &= ~chosen
    return found


def _after_collectives(
    recorded: Recorded, rows: Ints, sent: Times, received: Times, src: Ints, dst: Ints, number: Ints,
    operations: Operations,
) -> list[Waits]:  # fmt: skip
    """The sends and receives that promptly followed a collective of their rank: a block may end with one, as of its
    tensor-parallel peers, whose result is sent. Of receives as in `_posted`."""
    joint = np.flatnonzero(operations.sort == COLLECTIVE)
    if not len(joint) or not len(rows):
        return []
    parts, found = recorded.parts, []
    place = joint[parts["collective"].rank("dense").to_numpy().astype(np.int64) - 1]
    ends = parts.select("segment", "rank", "end", on=pl.Series(place)).sort("end", "on")
    segments = recorded.steps["segment"].to_numpy()
    for block, at, before in ((src, sent, operations.end[src]), (dst, received, None)):
        asked = pl.DataFrame(
            {
                "row": rows, "segment": pl.Series(segments[operations.step[block[rows]]], dtype=ends.schema["segment"]),
                "rank": operations.rank[block[rows]], "at": at[rows],
            }
        ).sort("at")  # fmt: skip
        last = asked.join_asof(
            ends, left_on="at", right_on="end", by=["segment", "rank"], check_sortedness=False, coalesce=False,
            tolerance=POSTED_NS,
        ).drop_nulls("on")  # fmt: skip
        row, on, end = (last[name].to_numpy() for name in ("row", "on", "end"))
        binds = end > before[row] if before is not None else (at[row] <= sent[row]) | (end >= sent[row])
        row, on = row[binds], on[binds]
        found.append(_wait(number[row], on, at[row], operations))
    return found


def _goes_on(
    recorded: Recorded, lanes: _Lanes, first: Flags, operations: Operations, waits: Waits, names: _Names
) -> tuple[Operations, list[Waits]]:
    """A rank whose first block of a step needs a transfer pauses before the step as one whose block needs none does:
    that block waits for the point at which it goes on, and so does its receive, where the rank came last to it. Else
    what the step before took longer would seem to be a late start."""
    fed = needs_transfer(waits, operations.sort)
    rows = np.flatnonzero(first)
    rows = rows[~np.isin(rows, lanes.first)]
    free, rows = rows[~fed[rows]], rows[fed[rows]]
    if not len(free) or not len(rows):
        return operations, []
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
    ended = operations.end[rows - 1]
    at = np.minimum(ended + usual, np.maximum(operations.start[rows], ended))
    point = len(operations.start) + np.arange(len(rows))
    operations = operations.and_also(
        sort=POINT, kind=names.number("goes on"), rank=operations.rank[rows], step=operations.step[rows], start=at,
        end=at, when=operations.start[rows - 1] + 1,
    )  # fmt: skip
    block_of = np.full(len(operations.start), -1, np.int32)
    block_of[rows] = point
    taken = block_of[waits.of]
    receives = (taken >= 0) & (operations.sort[waits.on] == TRANSFER)
    receives &= operations.rank[waits.on] == operations.rank[waits.of]
    of, on = waits.on[receives], taken[receives]
    return operations, [
        _wait(point, rows - 1, at, operations), _wait(rows, point, operations.start[rows], operations),
        _wait(of, on, operations.start[of], operations),
    ]  # fmt: skip


def _origins(
    recorded: Recorded, first: Flags, operations: Operations, waits: Waits, names: _Names
) -> tuple[Operations, Waits]:
    """Each segment begins with its first block. What waits for nothing that was recorded, and did not begin before,
    starts with it."""
    segments = recorded.steps["segment"].to_numpy()
    count = int(segments.max(initial=-1)) + 1
    segment = np.where(operations.step >= 0, segments[np.maximum(operations.step, 0)], -1)
    begin = np.full(count, np.iinfo(np.int64).max)
    rows = np.flatnonzero(first)
    np.minimum.at(begin, segment[rows], operations.start[rows])
    base = len(operations.start)
    waiting = np.zeros(base, np.bool_)
    waiting[waits.of] = True
    free = np.flatnonzero(~waiting & (operations.start >= begin[segment]))
    operations = operations.and_also(
        sort=POINT, kind=np.full(count, names.number("origin")), start=begin, end=begin, when=begin
    )
    origin = base + segment[free]
    return operations, _wait(free, origin, operations.start[free], operations)
