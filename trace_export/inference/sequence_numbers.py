"""Forwards and backwards by the sequence numbers of operators: the certain pairing, where operators were recorded.

PyTorch numbers the nodes of the graph of autograd, per thread, as forward operators create them; the node that a
backward executes has the number of the operator that made it (torch/csrc/autograd/function.h, `sequence_nr`). So one
call of the engine has the numbers of one forward. A call with numbers that another has had already computes weights.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

import numpy as np
import polars as pl

from trace_export.inference.kernel_names import Bools
from trace_export.inference.pieces import Cuts
from trace_export.inference.threads import ENGINE_NODE, Threads
from trace_export.inference.work import Ints, Timeline

OPERATORS = {
    "thread": pl.Int64(), "start": pl.Int64(), "end": pl.Int64(), "name": pl.String(), "seq": pl.Int64(),
}  # fmt: skip
"""Ranges around operators and nodes, in CPU time; `seq`: their sequence number, null where they have none."""

_NO_OPERATOR = r"^(?:c10d::|gloo:|nccl:|Optimizer\.|ProfilerStep|autograd::|record_param_comms)"
"""Communication, whose ranges another thread closes, so that their ends are wrong; and ranges that are not
operators."""


class Numbered(NamedTuple):
    """`anchors`: kind, start, end (CPU time) and pair of each pass, by start; blocks of one pair are the forward,
    backward and weight gradient of one micro-batch in one chunk. `rows`: the anchor of each row of the timeline, -1
    where it belongs to none."""

    anchors: pl.DataFrame
    rows: Ints


def by_numbers(
    timeline: Timeline,
    operators: pl.DataFrame,
    threads: Threads,
    cuts: Cuts,
    optimizers: pl.DataFrame | None,
    weights: pl.DataFrame | None = None,
) -> Numbered | None:
    """The passes of a process; None where no backward has a number, or no forward with such numbers is there.

    `operators`: schema OPERATORS. `optimizers`: start and end of each optimizer; None: its kernels say it. `cuts`:
    moments between passes. `weights`: start and end of weight gradients of the calling thread, which have no numbers:
    zero-bubble Megatron computes them without the engine.
    """
    passes = numbered_passes(operators, threads.main, timeline.calls) if operators.height else None
    if passes is None:
        return None
    updates = _updates(timeline, passes) if optimizers is None else optimizers
    others = [(updates, "OPT")] + ([] if weights is None else [(_without_pass(weights, passes), "W")])
    rest = (rows.select(pl.lit(k).alias("kind"), "start", "end", pair=pl.lit(None, pl.Int32)) for rows, k in others)
    anchors = pl.concat([passes, *rest]).sort("start", "end")
    return Numbered(anchors, _assigned(timeline, anchors, cuts))


def _without_pass(weights: pl.DataFrame, passes: pl.DataFrame) -> pl.DataFrame:
    """Those of the `weights` during which no pass runs."""
    starts, ends = passes["start"].sort().to_numpy(), passes["end"].sort().to_numpy()
    begun = np.searchsorted(starts, weights["end"].to_numpy(), side="right")
    ended = np.searchsorted(ends, weights["start"].to_numpy())
    return weights.filter(pl.Series(begun == ended, dtype=pl.Boolean))


def _updates(timeline: Timeline, passes: pl.DataFrame) -> pl.DataFrame:
    """start and end of each optimizer: of the updates of parameters between two passes."""
    launches = timeline.launch[timeline.names.optimizer[timeline.name]]
    gap = np.searchsorted(passes["start"].sort().to_numpy(), launches)
    rows = pl.DataFrame({"gap": gap, "at": launches})
    return rows.group_by("gap").agg(start=pl.col("at").min(), end=pl.col("at").max()).drop("gap")


def numbered_passes(operators: pl.DataFrame, main: int, called: Ints) -> pl.DataFrame | None:
    """The forwards, backwards and weight gradients among `operators` (schema OPERATORS): kind, start, end and pair (see
    Numbered). None where no backward has a number, or no forward with such numbers is there.

    `main`: the calling thread. `called`: when it called the driver.
    """
    ordered = operators.sort("start", "end", descending=[False, True])
    calls = backward_calls(ordered, main, called)
    if calls.is_empty():
        return None
    segments, kinds, homes = _segments(calls)
    forwards = forward_ranges(ordered.filter(pl.col("thread") == main), segments)
    if forwards.is_empty():
        return None
    backwards = _joined(calls, kinds, homes)
    if "W" in kinds:  # without its forward nothing tells a backward from a weight gradient
        backwards = backwards.filter(pl.col("pair").is_in(forwards["pair"].implode()))
    return pl.concat([forwards, backwards])


def backward_calls(operators: pl.DataFrame, main: int, called: Ints) -> pl.DataFrame:
    """The calls of the engine that have numbers: start, end, low, high, by start. `operators` are sorted.

    A call ends where the calling thread recorded an operator or called the driver (`called`) before the next node, and
    before a node whose number is higher than all of the call: the engine takes the highest ready number first.

    Example: nodes 9 8 7, an operator of the calling thread, nodes 4 5 3 are the calls 7–9, 4 and 3–5.
    """
    nodes = _outermost(operators.filter(pl.col("name").str.starts_with(ENGINE_NODE)), "thread")
    if nodes.is_empty():
        return pl.DataFrame(schema={"start": pl.Int64, "end": pl.Int64, "low": pl.Int64, "high": pl.Int64})
    nodes = _with_inner_numbers(nodes, operators)
    on_main = operators.filter(pl.col("thread") == main)
    parts = []
    for (thread,), part in nodes.partition_by("thread", as_dict=True).items():
        if thread == main:
            part_marks = _outside(on_main, part)["start"].to_numpy()
        else:
            part_marks = np.concatenate([on_main["start"].to_numpy(), called])
        seen = np.searchsorted(np.sort(part_marks), part["start"].to_numpy(), side="right")
        parts.append(part.with_columns(group=seen, owner=pl.lit(thread, pl.Int64)))
    highest = pl.col("seq").cum_max().forward_fill().shift().over("owner", "group")
    record = (pl.col("seq") > highest).fill_null(False)
    split = pl.concat(parts).with_columns(record.cum_sum().over("owner", "group").alias("part"))
    calls = split.group_by("owner", "group", "part").agg(
        pl.col("start").min(), pl.col("end").max(), low=pl.col("seq").min(), high=pl.col("seq").max()
    )
    return calls.drop_nulls("low").sort("start").select("start", "end", "low", "high")


def _outermost(ranges: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Those of the sorted `ranges` that lie in no other."""
    until = pl.col("end").cum_max().shift()
    return ranges.filter((pl.col("start") >= (until.over(by) if by else until)).fill_null(True))


def _outside(ranges: pl.DataFrame, around: pl.DataFrame) -> pl.DataFrame:
    """Those of the sorted `ranges` that begin in none of the ranges `around`, which are sorted, too."""
    if around.is_empty():
        return ranges
    starts, ends = around["start"].to_numpy(), np.maximum.accumulate(around["end"].to_numpy())
    at = np.searchsorted(starts, ranges["start"].to_numpy(), side="right") - 1
    return ranges.filter(pl.Series((at < 0) | (ranges["start"].to_numpy() >= ends[at])))


def _with_inner_numbers(nodes: pl.DataFrame, operators: pl.DataFrame) -> pl.DataFrame:
    """The nodes; those without a number (of NVTX) with that of the range inside them which has the node's name."""
    if not nodes["seq"].null_count():
        return nodes
    inner = operators.filter(pl.col("seq").is_not_null()).select("thread", "name", "seq", at="start").sort("at")
    named = nodes.with_columns(name=pl.col("name").str.extract(r": (.*)$")).sort("start")
    numbered = named.join_asof(
        inner, left_on="start", right_on="at", by=["thread", "name"], strategy="forward", check_sortedness=False,
        suffix="_inside",
    )  # fmt: skip
    inside = pl.when(pl.col("at") < pl.col("end")).then("seq_inside")
    return numbered.with_columns(seq=pl.coalesce("seq", inside)).select(nodes.columns)


def _segments(calls: pl.DataFrame) -> tuple[list[tuple[int, int]], list[str], list[int]]:
    """The intervals of numbers that belong together, in their order; and of each call whether it is a backward (B, the
    first with such numbers) or a weight gradient (W), and its interval.

    Example: calls 5–6, 9–9 and 4–5 are B, B and W, of the intervals 4–6 and 9–9: an input gradient does not need the
    nodes of the parameters.
    """
    lows: list[int] = []
    highs: list[int] = []
    made: list[int] = []
    kinds, first = [], []
    for low, high in calls.select("low", "high").iter_rows():
        at = bisect_right(lows, high) - 1
        again = at >= 0 and highs[at] >= low
        if again:
            lows[at] = min(lows[at], max(low, highs[at - 1] + 1 if at else low))
            highs[at] = max(highs[at], high)
        else:
            at += 1
            lows.insert(at, low)
            highs.insert(at, high)
            made.insert(at, len(made))
        kinds.append("W" if again else "B")
        first.append(made[at])
    number = {which: n for n, which in enumerate(made)}
    return list(zip(lows, highs, strict=True)), kinds, [number[which] for which in first]


def forward_ranges(operators: pl.DataFrame, segments: list[tuple[int, int]]) -> pl.DataFrame:
    """The forward that made the nodes of each segment: kind, start, end, pair (the number of the segment).

    It lasts from the operator that made the first node to the last one with a number of the segment. The number of an
    operator is that of the next node to come: of several with the lowest, the last made the first node.

    Example: operators numbered 6 6 7 8 9 and the segment 6–8: from the second 6 to the 8.
    """
    nodes = operators.filter(pl.col("name").str.starts_with(ENGINE_NODE))
    numbered = operators.filter(pl.col("seq").is_not_null() & ~pl.col("name").str.contains(_NO_OPERATOR))
    outer = _outermost(_outside(numbered, nodes))
    lows, highs = (np.array(column, np.int64) for column in zip(*segments, strict=True))
    at = np.searchsorted(lows, outer["seq"].to_numpy(), side="right") - 1
    made = (at >= 0) & (outer["seq"].to_numpy() <= highs[at])
    ranges = outer.with_columns(pair=pl.Series(at, dtype=pl.Int32), low=pl.Series(lows[at])).filter(pl.Series(made))
    last_low = pl.col("start").filter(pl.col("seq") == pl.col("low")).last()
    return ranges.group_by("pair", maintain_order=True).agg(
        start=pl.coalesce(last_low, pl.col("start").first()), end=pl.col("end").last()
    ).select(pl.lit("F").alias("kind"), "start", "end", "pair")  # fmt: skip


def _joined(calls: pl.DataFrame, kinds: list[str], homes: list[int]) -> pl.DataFrame:
    """The backwards and weight gradients: kind, start, end, pair. Weight gradients are many calls; those of one segment
    that follow each other are one."""
    frame = calls.select("start", "end", kind=pl.Series(kinds), pair=pl.Series(homes, dtype=pl.Int32))
    again = (pl.col("kind") == "W") & (pl.col("kind").shift() == "W") & (pl.col("pair") == pl.col("pair").shift())
    frame = frame.with_columns(block=(~again.fill_null(False)).cum_sum())
    return frame.group_by("block", maintain_order=True).agg(
        pl.col("kind").first(), pl.col("start").first(), pl.col("end").last(), pl.col("pair").first()
    ).drop("block")  # fmt: skip


def _assigned(timeline: Timeline, anchors: pl.DataFrame, cuts: Cuts) -> Ints:
    """The anchor of each row of the timeline: the one that it was launched in, else one beside it.

    Before the first cut after an anchor a launch belongs to what came before, after the last one to what follows. Sums
    beside weight gradients are theirs, the fill before a backward is the backward's, counters of tokens are nobody's.

    The first row that fits decides, in the order of the code:

    | the launch | between | belongs to |
    |---|---|---|
    | inside an anchor | | that one |
    | counts tokens | | none |
    | the last one there, a fill | … and B | the B |
    | after a cut | … and F, or W if it is a sum | what follows, if no cut comes between, else none |
    | any, before all anchors | … and F, without a cut | the F, else none |
    | a sum | … and W, if no W is before, or it adds to itself | the W after |
    | a sum | W and … | the W before |
    | any | F and … | the F before |
    | any | … and F, without a cut, unless OPT is before | the F after |
    """
    starts, ends = anchors["start"].to_numpy(), anchors["end"].to_numpy()
    kinds = np.array(["", *anchors["kind"].to_list(), ""])  # "" before the first and after the last, so one place on
    at = np.searchsorted(starts, timeline.launch, side="right") - 1
    inside = (at >= 0) & (timeline.launch <= ends[at])
    before, after = kinds[at + 1], kinds[at + 2]
    first, last = _cuts_between(cuts.at, np.append(-1, ends)[at + 1], np.append(starts, np.iinfo(np.int64).max)[at + 1])
    cut = first >= 0
    sums = timeline.sum & timeline.main
    gap_end = np.append(at[1:] != at[:-1], True)
    choice: list[tuple[Bools, Ints]] = [
        (inside, at),
        (timeline.counter, np.full_like(at, -1)),
        ((after == "B") & gap_end & timeline.fill, at + 1),
        (cut & (timeline.launch >= first), np.where(
            (timeline.launch > last) & ((after == "F") | ((after == "W") & sums)), at + 1, -1)),
        (before == "", np.where((after == "F") & ~cut, at + 1, -1)),
        ((after == "W") & sums & ((before != "W") | timeline.own_sum), at + 1),
        ((before == "W") & sums, at),
        (before == "F", at),
        ((after == "F") & ~cut & (before != "OPT"), at + 1),
    ]  # fmt: skip
    return np.select([c for c, _ in choice], [a for _, a in choice], -1)


def _cuts_between(cuts: Ints, begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """The first and last of the sorted `cuts` after `begin` and up to `end`; -1 where there is none."""
    padded = np.append(cuts, -1)
    low, high = np.searchsorted(cuts, begin, side="right"), np.searchsorted(cuts, end, side="right")
    none: Bools = low >= high
    return np.where(none, -1, padded[np.minimum(low, len(cuts))]), np.where(none, -1, padded[high - 1])
