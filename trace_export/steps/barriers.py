"""Barriers that nobody recorded: operations that start together although they could have begun apart.

An optimizer waits for the gradients of all replicas, a step for its data, and often no profile has the collective in
between. Take operations that come once per rank and step, of all ranks, of a replica or of a stage. They waited for one
another if, in four fifths of the steps, most of them start close together although they were ready apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from trace_export.ordering import distinct, packed
from trace_export.steps.graph import (
    COLLECTIVE,
    OPTIMIZER,
    POINT,
    TRANSFER,
    WORK,
    Flags,
    Ints,
    Times,
    Waits,
    for_origin,
    needs_transfer,
    of_parts,
    ready_of,
)
from trace_export.steps.operations import Names, Operations, wait
from trace_export.steps.recorded import Recorded

TOGETHER = 0.25
"""The spread of the starts is at most this share of the spread of their readiness."""
MOSTLY = 0.8
"""In this share of the steps."""


@dataclass(frozen=True)
class Barriers:
    """Points, one per barrier and step, with their `step` and `start`; and `waits`, all of the graph and theirs."""

    step: Ints
    start: Times
    waits: Waits


def infer(recorded: Recorded, operations: Operations, first: Flags, waits: Waits) -> Barriers:
    """The barriers of the graph of these operations."""
    once, met = _candidates(recorded, operations, first, waits), []
    ends = ends_before(recorded, operations, first)
    for kind in once["kind"].unique(maintain_order=True).to_list():
        rows = once.filter(pl.col("kind") == kind)
        for level in ("all", "replica", "stage"):
            who = (pl.lit(-1, pl.Int64) if level == "all" else pl.col(level).cast(pl.Int64)).alias("who")
            groups, others = rows.with_columns(who).drop_nulls("who"), ends.with_columns(who)
            meetings, others = opening(groups, others if kind == "first" and level != "stage" else others.clear())
            if meetings.is_empty():
                continue
            members = groups.join(meetings, on=["who", "step"], maintain_order="left")
            met.append((kind == "fed", members.select("operation", "who", "step"), others))
            rows = rows.join(
                groups.join(meetings.select("who").unique(), on="who", how="semi"), on="operation", how="anti"
            )
    nothing = np.empty(0, np.int64)
    result = Barriers(nothing, nothing, waits)
    for fed, table, others in met:
        result = _join(table, fed, others, operations, result)
    return result


def of_replicas(recorded: Recorded, operations: Operations, first: Flags, names: Names) -> list[Waits]:
    """Adds points at which the replicas of each stage have ended their last blocks of a step, and the waits for them.

    Replicas add up their gradients, whether or not that was recorded: the optimizer of each replica, or without one its
    first block of the next step, waits for the last block of all. If one begins before that, on any stage, none waits:
    all ranks run one program.
    """
    if recorded.of_host or not recorded.parts.is_empty():  # which say it themselves, or are ahead of the device
        return []
    count = len(first)
    rank, step = operations.rank[:count], operations.step[:count]
    segment, work = recorded.steps["segment"].to_numpy()[step], np.flatnonzero(operations.sort[:count] == WORK)
    number = packed(rank, step)
    latest = np.full(int(number.max(initial=-1)) + 1, -1)
    np.maximum.at(latest, number[work], work)
    last = np.unique(latest[latest >= 0])
    after = np.minimum(last + 1, count - 1)  # an optimizer, or the first block of the next step
    follows = (rank[after] == rank[last]) & (segment[after] == segment[last]) & (after > last)
    ends = pl.DataFrame(
        {
            "last": last, "after": after, "follows": follows, "rank": rank[last].astype(np.int32), "step": step[last],
            "end": operations.end[last], "start": operations.start[after],
        }
    ).join(recorded.ranks.select("rank", "replica", "stage"), on="rank", how="left", maintain_order="left")  # fmt: skip
    group = ["stage", "step"]
    ends = ends.with_columns(at=pl.col("end").max().over(group), replicas=pl.col("replica").n_unique().over(group))
    early = (pl.col("follows") & (pl.col("start") < pl.col("at"))).any()
    ends = ends.filter(~early, pl.col("follows").any().over(group), pl.col("replicas") > 1)
    points = ends.select(*group, "at").unique(group, maintain_order=True)
    of = ends.join(points.select(*group, point=pl.int_range(pl.len())), on=group, maintain_order="left")
    at = points["at"].to_numpy()
    point = operations.add(
        sort=POINT, kind=names.number("barrier"), step=points["step"].to_numpy(), start=at, end=at, when=at
    )[of["point"].to_numpy()]
    met, waiting = of["last"].to_numpy(), of["follows"].to_numpy()
    held = of["after"].to_numpy()[waiting]
    return [
        wait(point, met, operations.start[point], operations),
        wait(held, point[waiting], operations.start[held], operations),
    ]


def ends_before(recorded: Recorded, operations: Operations, first: Flags) -> pl.DataFrame:
    """operation, rank, step, replica, stage, end: the last block of each rank before each step that follows another."""
    segments = recorded.steps["segment"].to_numpy()
    begins = np.flatnonzero(first)
    last = np.maximum(begins - 1, 0)
    same = (operations.rank[begins] == operations.rank[last]) & (begins > 0)
    same &= segments[operations.step[begins]] == segments[operations.step[last]]
    begins, last = begins[same], last[same]
    table = pl.DataFrame(
        {
            "operation": last, "rank": operations.rank[last].astype(np.int32), "step": operations.step[begins],
            "end": operations.end[last],
        }
    )  # fmt: skip
    return table.join(recorded.ranks.select("rank", "replica", "stage"), on="rank", how="left", maintain_order="left")


def opening(rows: pl.DataFrame, ends: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """`_meetings_of` the first blocks `rows`, also of those that were ready at one time; and the rows of `ends` (with
    `who`) that they wait for. A group waits for the ends if the time since the last end varies no more than the time
    since its first blocks were ready (if they always end last, the data do not tell, but clipped gradients concern all
    stages), or if its blocks begin soon after the last end, and long after they were ready."""
    meetings = _meetings_of(rows)
    if ends.is_empty():
        return meetings, ends
    pause, of_all = (pl.col("start") - pl.col(since) for since in ("ready", "end"))
    each = (
        rows.group_by("who", "step").agg(
            pl.col("start").min(), pl.col("ready").max(), alike=pl.col("ready").n_unique() == 1
        )
        .join(ends.group_by("who", "step").agg(pl.col("end").max()), on=["who", "step"])
        .group_by("who").agg(
            joint=pl.col("alike").all() | pl.col("who").is_in(meetings["who"].implode()).first(),
            steadier=of_all.max() - of_all.min() <= pause.max() - pause.min(), after=of_all.min() >= 0,
            soon=of_all.median() <= TOGETHER * pause.median(),
        )
        .filter("after", (pl.col("joint") & pl.col("steadier")) | pl.col("soon"))
    )  # fmt: skip
    awaited = ends.join(each, on="who", how="semi")
    last = awaited.group_by("who", "step").agg(last_ready=pl.col("end").max())
    return pl.concat([meetings, last]).unique(["who", "step"], keep="last", maintain_order=True), awaited


def _candidates(recorded: Recorded, operations: Operations, first: Flags, waits: Waits) -> pl.DataFrame:
    """The operations that come once per rank and step: operation, kind, rank, step, replica, stage, start, end, ready.
    These are optimizers, and the first blocks that wait for their rank's last step: of the kind `fed` if they wait for
    a transfer too, else `first`. If some of the latter wait for collectives, these and the others are of the kind
    `joined`, too. The first operation of a recording waits for nothing and is left out. A collective has no replica."""
    waiting, fed = np.zeros(len(operations), np.bool_), needs_transfer(waits, operations.sort)
    waiting[waits.of[~for_origin(waits, operations.sort, operations.step)]] = True
    optimizer = np.flatnonzero((operations.sort == OPTIMIZER) & waiting)
    begins = np.flatnonzero(first & waiting)
    joined, after = _openings(recorded, operations, begins[~fed[begins]], waits)
    rows = np.concatenate([optimizer, begins, joined])
    named = np.array(["optimizer", "first", "fed", "joined"])
    code = np.concatenate([np.zeros(len(optimizer), np.int64), 1 + fed[begins], np.full(len(joined), 3)])
    rank, step = operations.rank[rows].astype(np.int32), operations.step[np.concatenate([optimizer, begins, after])]
    number = packed(code, rank, step)
    repeated = np.unique(code[np.bincount(number)[number] > 1])
    some = ~np.isin(code, repeated)
    rows = rows[some]
    table = pl.DataFrame({"operation": rows, "code": code[some], "rank": rank[some], "step": step[some]})
    ready = ready_of(waits.of_some(rows), operations.start, operations.end)
    alone = pl.Series(operations.sort[rows] != COLLECTIVE)
    return table.with_columns(
        kind=pl.Series(named[table["code"].to_numpy()], dtype=pl.String), start=pl.Series(operations.start[rows]),
        end=pl.Series(operations.end[rows]), ready=pl.Series(ready[rows]),
    ).join(
        recorded.ranks.select("rank", "replica", "stage"), on="rank", how="left", maintain_order="left"
    ).with_columns(replica=pl.when(alone).then("replica"))  # fmt: skip


def _openings(recorded: Recorded, operations: Operations, begins: Ints, waits: Waits) -> tuple[Ints, Ints]:
    """The operations that open each step if some ranks begin it with a collective after their last block of the
    previous step: these collectives (except those of all ranks), and the first blocks `begins` of the other ranks; and
    for each of them a first block of its step."""
    met = waits.only(np.flatnonzero(operations.sort[waits.on] == COLLECTIVE))
    alone, before = begins[~np.isin(begins, met.of)], np.maximum(met.of - 1, 0)
    opens = (operations.rank[before] == operations.rank[met.of]) & (operations.step[before] != operations.step[met.of])
    opens &= (met.of < len(recorded.blocks)) & (operations.start[met.on] >= operations.end[before])
    members = np.bincount(of_parts(recorded, operations.sort), minlength=len(operations))
    met = met.only(np.flatnonzero(opens & (members[met.on] < len(recorded.ranks))))
    collectives, one = np.unique(met.on, return_index=True)
    alone = alone if len(collectives) else alone[:0]
    return np.concatenate([alone, collectives]), np.concatenate([alone, met.of[one]])


def _meetings_of(rows: pl.DataFrame) -> pl.DataFrame:
    """who, step, last_ready: the groups of `rows` (who, step, start, end, ready) that in most steps start together
    although they were ready apart, in those steps. Most members are enough: the others are late then."""
    who, step, start, end, ready = (rows[name].to_numpy() for name in ("who", "step", "start", "end", "ready"))
    group, count = distinct(packed(who, step))[1], len(rows)

    def first(values: Times, of: Ints = group) -> Times:
        least = np.full(count, np.iinfo(np.int64).max)
        np.minimum.at(least, of, values)
        return least

    def last(values: Times, of: Ints = group) -> Times:
        return -first(-values, of)

    begin, last_ready = first(start), last(ready)
    spread = last_ready - first(ready)
    prompt = np.flatnonzero(start - begin[group] <= TOGETHER * spread[group])
    of_prompt, size = group[prompt], np.bincount(group, minlength=count)
    apart = last(ready[prompt], of_prompt) - first(ready[prompt], of_prompt)
    width = last(start[prompt], of_prompt) - begin
    met = (spread > 0) & (first(end) > last_ready) & (begin >= last_ready - TOGETHER * spread)
    met &= (2 * np.bincount(of_prompt, minlength=count) > size) & (width <= TOGETHER * apart)
    one = np.zeros(count, np.int64)
    one[group] = np.arange(count)  # a row of each group
    some = np.flatnonzero(size > 1)
    who_of = packed(who[one[some]])
    often, steps = np.bincount(who_of, met[some]), np.bincount(who_of)
    least = np.maximum(np.maximum(np.minimum(2, steps), MOSTLY * steps), 1)
    kept = some[met[some] & (often >= least)[who_of]]
    return pl.DataFrame({"who": who[one[kept]], "step": step[one[kept]], "last_ready": last_ready[kept]})


def _join(members: pl.DataFrame, fed: bool, others: pl.DataFrame, operations: Operations, before: Barriers) -> Barriers:
    """Adds a point for each group and step. It waits for what its members waited for, without their transfers, and for
    the blocks in `others`; the members now wait for it. Members that are `fed` wait for its start: the barrier goes on
    while their data are on the way."""
    count = len(operations) + len(before.start)
    times = operations.start, operations.end
    start, end = (np.concatenate([x, before.start]) for x in times) if len(before.start) else times
    points = members.select("who", "step").unique(maintain_order=True).with_row_index("point")
    of = members.join(points, on=["who", "step"], maintain_order="left")
    operation, point = of["operation"].to_numpy(), of["point"].to_numpy().astype(np.int64)
    point_of = np.full(count, -1, np.int32)
    point_of[operation] = count + point
    sort = np.append(operations.sort, np.full(len(before.start), POINT, operations.sort.dtype))
    taken = np.flatnonzero((point_of[before.waits.of] >= 0) & (sort[before.waits.on] != TRANSFER))
    moved = before.waits.only(taken)
    theirs = before.waits.of.copy()
    theirs[taken] = point_of[moved.of]
    at = np.full(len(points), np.iinfo(np.int64).min)
    np.maximum.at(at, theirs[taken] - count, moved.met(start, end))
    if fed:
        begun = np.full(len(points), np.iinfo(np.int64).max)
        np.minimum.at(begun, point, operations.start[operation])
        at = np.maximum(at, begun)
    last = others.join(points, on=["who", "step"])
    awaited, by = last["operation"].to_numpy(), last["point"].to_numpy().astype(np.int64)
    np.maximum.at(at, by, operations.end[awaited])
    lag = np.minimum(0, operations.start[operation] - at[point])
    waits = replace(before.waits, of=theirs).and_also(
        Waits(operation.astype(np.int32), (count + point).astype(np.int32), np.ones(len(operation), np.bool_), lag),
        Waits(
            (count + by).astype(np.int32),
            awaited.astype(np.int32),
            np.ones(len(by), np.bool_),
            np.zeros(len(by), np.int64),
        ),
    )
    return Barriers(
        np.concatenate([before.step, points["step"].to_numpy()]),
        np.concatenate([before.start, at]),
        waits,
    )
