"""Whether the gains of an explanation can be believed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from trace_export.analysis.typical import Typical
from trace_export.model import OUTSIDE
from trace_export.ordering import packed
from trace_export.steps.graph import TRANSFER, WORK, Graph, Ints, Times
from trace_export.steps.replay import Windows

TRUSTED, TRUSTED_OVERLAP, TRUSTED_WAITS = 0.05, 0.01, 0.01
"""Gains are believed up to these: the distance of the replay from the measurement, the share of the work that overlaps,
and the share of the time in which ranks wait for something that was not recorded."""
ROUGH = 5
"""From this many times those limits on, gains are not given at all; for the replay from twice its limit on."""
IDLE = 0.15
"""Something was not recorded if more than half of the ranks, or half if none of these is late compared with others, do
nothing for this share of their work although nothing is missing. In simulated jobs it is 0.02, in recorded ones up to
0.13."""
BLIND = 0.005
"""From this share of blocks without a recorded input on, though all ranks were read, no gains are given."""
SPLIT = 0.75
"""Up to this share of backwards with weight gradients of their own, on every rank, the schedule splits some only."""
AFTER, BESIDE = 0.2, 2
"""Something was not recorded, too, if a rank idles after its backwards for this share of a block, and this many times
as long as after its forwards."""


@dataclass(frozen=True)
class Trust:
    """`replayed_by_measured`: a step with ordinary delays and the late starts that were named, by the measured one;
    `overlap`: the share of the work that began before its input was there; `unknown_waits`: the share of the ranks'
    time in which they wait for what was not recorded; `lacking`: kinds of block that ranks lack and others have, such
    as `W of rank 3`; `what rank 3 waits for after its backwards` where it idles after these alone; `the input of 40
    blocks` where blocks of all kinds are lost; and `what rank 3 did before the first step` where it begins that late,
    and no other step has a length."""

    replayed_by_measured: float
    overlap: float
    unknown_waits: float
    lacking: tuple[str, ...] = ()

    @property
    def doubts(self) -> list[str]:
        """Why gains are rough, in words."""
        reasons = []
        if abs(self.replayed_by_measured - 1) > TRUSTED:
            reasons.append(f"the replay takes {self.replayed_by_measured:.0%} of the measured time")
        if self.overlap > TRUSTED_OVERLAP:
            reasons.append(f"by the recorded times {self.overlap:.1%} of the work began before its input was there")
        if self.unknown_waits > TRUSTED_WAITS:
            reasons.append(f"the ranks wait {self.unknown_waits:.1%} of the time for something that was not recorded")
        if self.lacking:
            more = f" and {len(self.lacking) - 1} more" if len(self.lacking) > 1 else ""
            reasons.append(f"{self.lacking[0]}{more} was not recorded")
        return reasons

    @property
    def unrecorded(self) -> bool:
        """Whether too much is missing to say what a step is made of."""
        return self.unknown_waits > ROUGH * TRUSTED_WAITS or bool(self.lacking)

    @property
    def gains(self) -> bool:
        """Whether gains can be given."""
        far = abs(self.replayed_by_measured - 1) > 2 * TRUSTED
        return not far and self.overlap <= ROUGH * TRUSTED_OVERLAP and not self.unrecorded


def trust(typical: Typical, windows: Windows, late: Sequence[Ints], replayed: float, measured: float) -> Trust:
    """The trust in replays of steps that take `measured`. `late`: the operations of each late start that was named;
    `replayed`: what a step takes with ordinary delays, and these."""
    graph = typical.graph
    time = windows.steps * len(graph.recorded.ranks) * measured
    idle = _idle(graph, windows)
    named = np.unique(graph.rank[np.concatenate([*late, np.empty(0, np.int64)]).astype(np.int64)])
    measured_steps = np.isin(graph.step, windows.step)  # those that `measured` is the mean of
    unknown = float(typical.delay[graph.blind & graph.counted & measured_steps].sum())
    much = idle.filter(pl.col("share") > IDLE)["rank"]
    if 2 * len(much) > len(idle) or 2 * int((~much.is_in(named.tolist())).sum()) >= max(len(idle), 1):
        unknown += float(idle["measured"].sum())
    return Trust(
        replayed / measured if measured else 1.0,
        graph.overlap,
        unknown / max(1.0, time),
        (
            *_lacking(graph),
            *_after_backwards(idle, graph.recorded.ranks),
            *_blind(graph),
            *_before(typical, windows, measured),
        ),
    )


def _idle(graph: Graph, windows: Windows) -> pl.DataFrame:
    """rank, measured, share, mean, split, after_b, after_f: how long a rank does nothing although nothing is missing,
    in the steps of the windows, and by its work, in all; the mean length of its blocks; whether it has weight
    gradients; and the median delay after a backward and after a forward, or if longer of a forward after a forward:
    data that come late delay all forwards. These are without the time in which what the rank has sent is on its way."""
    rows = np.flatnonzero((graph.sort == WORK) & graph.counted & ~graph.pause & ~graph.blind)
    before = np.maximum(rows - 1, 0)
    there = (graph.rank[before] == graph.rank[rows]) & (graph.step[before] == graph.step[rows])
    delay = graph.delay_of(rows)
    waits = np.minimum(delay, np.maximum(graph.start[rows] - _taken(graph)[before], 0))
    table = pl.DataFrame(
        {
            "rank": graph.rank[rows], "delay": delay, "waits": waits,
            "length": graph.end[rows] - graph.start[rows],
            "before": np.where(there, graph.kind[before], np.int16(-1)), "kind": graph.kind[rows],
            "here": np.isin(graph.step[rows], windows.step),
        }
    )  # fmt: skip
    share = pl.col("delay").sum() / pl.col("length").sum()
    here = (pl.col("delay") * pl.col("here")).sum()
    f, b, w = (pl.lit(graph.kinds.index(name)) for name in "FBW")
    split = (pl.col("kind") == w).any()
    each = table.group_by("rank").agg(measured=here, share=share, mean=pl.col("length").mean(), split=split)
    after = {"after_b": pl.col("before") == b, "after_f": pl.col("before") == f}
    after["next_f"] = after["after_f"] & (pl.col("kind") == f)
    for name, chosen in after.items():  # apart: a filter in each group takes several times the memory of the table
        seen = table.select("rank", pl.col("waits").alias(name), chosen=chosen).filter("chosen")
        median = seen.group_by("rank").agg(pl.col(name).median())
        each = each.join(median, on="rank", how="left")
    return each.with_columns(pl.col("after_b").fill_null(0), pl.max_horizontal("after_f", "next_f").fill_null(0)).sort(
        "rank"
    )


def _taken(graph: Graph) -> Times:
    """When what was sent after each operation has arrived, 0 where nothing was: a rank may wait for that."""
    rows = np.flatnonzero(graph.sort[graph.waits.of] == TRANSFER)
    sent, on = graph.waits.of[rows], graph.waits.on[rows]
    taken = np.zeros(len(graph), np.int64)
    np.maximum.at(taken, on, np.where(graph.rank[on] == graph.src[sent], graph.end[sent], 0))
    return taken


def _blind(graph: Graph) -> list[str]:
    """`Trust.lacking` if rows of all kinds are lost: the blocks that waited for them seem to begin by themselves."""
    blind, work = graph.blind & graph.counted, (graph.sort == WORK) & graph.counted
    many = int(blind.sum()) > BLIND * int(work.sum()) and not graph.recorded.partial
    return [f"the input of {int(blind.sum())} blocks"] if many else []


def _before(typical: Typical, windows: Windows, measured: float) -> list[str]:
    """`Trust.lacking` of ranks that began the steps of the windows late for what they did before the recording."""
    graph, (delay, steps) = typical.graph, typical.from_before
    rows = np.flatnonzero(delay)
    rows = rows[np.isin(graph.step[rows], np.intersect1d(steps, windows.step))]
    by = np.bincount(graph.rank[rows], delay[rows]) / max(windows.steps, 1)
    late = np.flatnonzero(by > ROUGH * TRUSTED_WAITS * measured)
    return [f"what rank {rank} did before the first step" for rank in late.tolist()]


def _after_backwards(idle: pl.DataFrame, ranks: pl.DataFrame) -> list[str]:
    """`Trust.lacking` of ranks whose weight gradients seem not to be recorded. All ranks of a stage run one program: if
    only some of them idle so, these start late, or a link holds them up."""
    odd = (
        ~pl.col("split")
        & (pl.col("after_b") > AFTER * pl.col("mean"))
        & (pl.col("after_b") > BESIDE * pl.col("after_f"))
    )
    stage = idle.select("rank").join(ranks, on="rank", how="left", maintain_order="left")["stage"]
    of_stage = idle.filter(odd.all().over(stage))["rank"].to_list()
    return [f"what rank {rank} waits for after its backwards" for rank in of_stage]


def _lacking(graph: Graph) -> tuple[str, ...]:
    """`Trust.lacking`. A rank has forwards and backwards of the same chunks, but the first stage may need no gradient
    of its input; it has weight gradients where others do, unless only some backwards are split (DualPipe: the last
    stage may split none). Where no rank has a backward, they lack it if their devices compute outside all blocks."""
    work = np.flatnonzero((graph.sort == WORK) & graph.counted)
    chunk = graph.recorded.blocks["chunk"].fill_null(0).to_numpy()[work]
    sort = packed(graph.rank[work], chunk, graph.kind[work])
    some = np.full(int(sort.max(initial=-1)) + 1, -1)
    some[sort] = np.arange(len(work))  # a block of each sort
    some = some[some >= 0]
    kind = np.array(graph.kinds)[graph.kind[work[some]]]
    count = np.bincount(sort)[sort[some]]
    blocks = pl.DataFrame(
        {
            "rank": graph.rank[work[some]], "stage": graph.of("stage")[work[some]], "chunk": chunk[some],
            "F": np.isin(kind, ("F", "FB")), "B": count * np.isin(kind, ("B", "FB")), "W": count * (kind == "W"),
        }
    )  # fmt: skip
    parts = blocks.group_by("rank", "chunk").agg(pl.col("stage").first(), pl.col("F").any(), pl.col("B", "W").sum())
    parts = parts.with_columns(pl.col("W").sum().over("rank"), backwards=pl.col("B").sum().over("rank"))
    parts = parts.with_columns(pl.col("B", "W") > 0, split=pl.col("W") / pl.col("backwards")).sort("rank", "chunk")
    have = {name: bool(parts[name].any()) for name in "FB"}
    have["B"] |= bool((graph.recorded.ranks["outside"] >= OUTSIDE).any())
    have["W"] = bool((parts.filter("B")["split"] > SPLIT).any())
    first = (pl.col("stage") == 0) & pl.col("W")
    lacks = {"F": ~pl.col("F"), "B": ~pl.col("B") & ~first, "W": ~pl.col("W")}
    return tuple(
        f"{name} of rank {rank}"
        for name, missing in lacks.items()
        if have[name]
        for rank in parts.filter(missing)["rank"].unique(maintain_order=True)
    )
