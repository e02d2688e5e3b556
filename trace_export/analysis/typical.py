"""The usual values of a measured graph: mean lengths of blocks, typical delays, lengths of micro-batches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from trace_export.analysis.begins import from_before
from trace_export.ordering import packed, rows_of
from trace_export.steps.graph import (
    COLLECTIVE,
    OPTIMIZER,
    POINT,
    TRANSFER,
    WORK,
    Flags,
    Floats,
    Graph,
    Ints,
    for_origin,
)
from trace_export.steps.inner import Inner, inner
from trace_export.steps.replay import Scenario
from trace_export.tolerances import FIFTH

ALIKE = 0.9
"""Micro-batches are of unequal length where the forwards and backwards of one are long together: the correlation of
the straggler study (arXiv 2505.05713, section 5.3)."""
ENOUGH, FEW = 8, 4
"""Pairs of a forward and a backward that such a correlation needs on a rank, and in a step."""
MOSTLY, SEEN = 0.8, 3
"""A rank comes last to a collective in this share of at least this many steps: it is late."""
BY_FAR = 3
"""Ranks wait longer than others before a step if they do so by this factor."""
VARIED = 0.02
"""Lengths must also vary by at least this share."""


@dataclass(frozen=True)
class Overhead:
    """The time of a block besides its work, its launch and ordinary delay, and the mean time of a transfer with its
    ordinary delay, in nanoseconds."""

    block_ns: float = 0.0
    transfer_ns: float = 0.0


@dataclass(frozen=True)
class Typical:
    """Arrays with a row per operation of `graph`. Steps that do not count are in no mean, and have no causes."""

    graph: Graph

    @cached_property
    def is_block(self) -> Flags:
        return (self.graph.sort <= OPTIMIZER) & self.graph.counted

    @cached_property
    def length(self) -> Floats:
        return self.graph.length.astype(np.float64)

    @cached_property
    def inner(self) -> Inner:
        return inner(self.graph)

    @cached_property
    def work(self) -> Floats:
        """The length of blocks without their waits inside: the work of a rank by itself."""
        return self.length - self.inner.waited if self.inner.waited.any() else self.length

    @cached_property
    def delay(self) -> Floats:
        return self.graph.delay.astype(np.float64)

    @cached_property
    def stage(self) -> Ints:
        """-1 at points."""
        return self.graph.of("stage")

    @cached_property
    def replica(self) -> Ints:
        """-1 at points."""
        return self.graph.of("replica")

    def column(self, name: str) -> Ints:
        """A column of `recorded.blocks` by operation, -1 elsewhere and where it is null."""
        values = self.graph.recorded.blocks[name].cast(pl.Int32).fill_null(-1).to_numpy()
        column = np.full(len(self.graph), -1, np.int32)
        column[: len(values)] = np.where(self.is_block[: len(values)], values, -1)
        return column

    @cached_property
    def unit(self) -> Ints:
        """Blocks with the same number are of one kind and chunk, and the same part of a backward; -1 elsewhere."""
        count, unit = len(self.graph.recorded.blocks), np.full(len(self.graph), -1, np.int32)
        chunk, part = (np.maximum(self.column(name)[:count], 0) for name in ("chunk", "first_part"))
        number = packed(self.graph.kind[:count], chunk, part)
        dense = np.cumsum(np.bincount(number) > 0, dtype=np.int32) - 1
        unit[:count] = np.where(self.is_block[:count], dense[number], -1)
        return unit

    def means(self, *keys: Ints, of: Floats | None = None) -> Floats:
        """For each block the mean length (or the mean `of` another value) of the blocks with the same unit and `keys`;
        for other operations their length."""
        rows = np.flatnonzero(self.is_block)
        number = packed(self.unit[rows], *(key[rows] for key in keys))
        means = (self.length if of is None else of).copy()
        counts = np.maximum(np.bincount(number), 1)
        means[rows] = (np.bincount(number, means[rows]) / counts)[number] if len(rows) else 0.0
        return means

    @cached_property
    def usual_delay(self) -> Floats:
        """The ordinary delays, and those for what ranks did before the recording."""
        before = self.from_before[0]
        return self.ordinary_delay + before if before.any() else self.ordinary_delay

    @cached_property
    def longest_start(self) -> float:
        """What at most passes ordinarily between a block and the next of its rank: so much of a guessed transfer may be
        no transfer."""
        launch = self.graph.launch()
        return float((launch + self.usual_delay)[launch > 0].max(initial=0.0))

    @cached_property
    def from_before(self) -> tuple[Floats, Ints]:
        """The delays for what ranks did before the recording, and the steps that begin so."""
        return from_before(self.graph, self.delay - self.ordinary_delay)

    @cached_property
    def ordinary_delay(self) -> Floats:
        """min(delay, the median of its kind; of blocks that of the middle rank, for half of the ranks may be late; of
        blocks that follow another of their rank what four fifths of the launches of the middle rank vary by; of a
        collective at least what its other members take after what they wait for: they do in common what nobody
        recorded). Waits for what was not recorded stay as they are; of the pause between steps see
        `_ordinary_pause`."""
        graph, delay = self.graph, self.delay.copy()
        ordinary = ~graph.pause & ~graph.blind & (graph.sort != POINT) & graph.counted
        opens = graph.binding < 0  # a segment: how long what waits for nothing else was delayed, nobody knows
        opens[graph.waits.of[for_origin(graph.waits, graph.sort, graph.step)]] = True
        for kind in np.unique(graph.kind[ordinary]):
            of = ordinary & (graph.kind == kind)
            seen = of & ~opens if (of & ~opens).any() else of
            each = pl.DataFrame({"rank": graph.rank[seen], "delay": self.delay[seen]})
            ranks = each.group_by("rank").median()["delay"] if self.is_block[of].any() else each["delay"]
            delay[of] = np.minimum(self.delay[of], np.quantile(ranks.to_numpy(), 0.5, method="lower"))
        following = np.flatnonzero(ordinary & graph.follows)
        launch = graph.launch(following)
        of, launch = following[launch > 0], launch[launch > 0]
        each = pl.DataFrame({"rank": graph.rank[of], "delay": self.delay[of]})
        varies = each.group_by("rank").agg(pl.col("delay").quantile(1 - FIFTH))["delay"].quantile(0.5, "lower") or 0.0
        delay[of] = np.clip(np.minimum(varies, launch), delay[of], self.delay[of])
        rows, in_common, others = self._members()
        delay[rows] = np.minimum(np.clip(delay[rows], in_common, None).clip(None, self.delay[rows]), others)
        rows = np.flatnonzero(graph.pause & graph.counted & (graph.sort != POINT))
        delay[rows] = np.minimum(self._ordinary_pause(rows), self._without_lateness(rows, self.delay - delay))
        return delay

    def _without_lateness(self, rows: Ints, late: Floats) -> Floats:
        """The pauses of the operations `rows` without what their rank is usually `late` with blocks of their unit: it
        begins a step as late as it does these."""
        others = np.flatnonzero(self.is_block & ~self.graph.pause)
        each = pl.DataFrame({"rank": self.graph.rank[others], "unit": self.unit[others], "late": late[others]})
        paused = pl.DataFrame({"rank": self.graph.rank[rows], "unit": self.unit[rows]})
        each = each.group_by("rank", "unit").agg(pl.col("late").median())
        usual = paused.join(each, on=["rank", "unit"], how="left", maintain_order="left")["late"].fill_null(0.0)
        shorter: Floats = np.maximum(self.delay[rows] - usual.to_numpy(), 0.0)
        return shorter

    def _ordinary_pause(self, rows: Ints) -> Floats:
        """The pauses that are no lateness of a rank, of the operations `rows`: in each step that of the rank of its
        stage at the lowest fifth. Pauses vary by chance: ranks that wait longer than that are late only if they do so
        `BY_FAR`, compared with the middle rank."""
        place = {"stage": self.stage[rows], "rank": self.graph.rank[rows], "step": self.graph.step[rows]}
        least = pl.col("delay").sort().get((FIFTH * pl.len()).cast(pl.Int64)).over("stage", "step")
        pauses = pl.DataFrame({**place, "delay": self.delay[rows]}).with_columns(least=least)
        pauses = pauses.with_columns(more=(pl.col("delay") - pl.col("least")).clip(0).mean().over("rank"))
        ranks = pauses.unique("rank").group_by("stage").agg(usual=pl.col("more").quantile(0.5, "lower"))
        late = pl.col("more") > BY_FAR * pl.col("usual")
        each = pauses.join(ranks, on="stage", how="left", maintain_order="left")
        ordinary = pl.when(late).then(pl.min_horizontal("delay", "least")).otherwise("delay")
        return each.select(ordinary).to_series().to_numpy()

    @cached_property
    def usual(self) -> Scenario:
        """A run as it is, without delays beyond the usual."""
        return self.length, self.usual_delay

    def _members(self) -> tuple[Ints, Floats, Floats]:
        """The collectives, what their members but the last ordinarily take after their work, and the delays that they
        would have without the member that nearly always comes last in their group: where a step has no other of their
        kind, no median tells that it is late. A rank that comes as soon after its work as the others after theirs is
        not late, however long it worked. Infinite where none nearly always comes last."""
        parts, graph = self.graph.recorded.parts, self.graph
        rows = np.flatnonzero(graph.sort == COLLECTIVE)
        if not len(rows):
            return rows, np.empty(0), np.empty(0)
        each = parts.group_by("collective").agg(
            pl.col("op", "group").first(), members=pl.len(), second=pl.col("start").top_k(2).min(),
            last=pl.col("rank").sort_by("start").last(),
        ).sort("collective")  # fmt: skip
        each = each.with_columns(counted=pl.Series(graph.counted[rows]), ready=pl.Series(graph.ready[rows]))
        each = each.join(self._ordinary_member_delay(rows), on="collective", how="left", maintain_order="left")
        most = pl.col("last").filter("counted").value_counts(sort=True, name="n").first().struct.field("n")
        total = pl.col("counted").sum()
        often = each.group_by("op", "group").agg(seen=total, share=most / total)
        late = (pl.col("share") >= MOSTLY) & (pl.col("seen") >= SEEN) & (pl.col("members") > 1) & pl.col("counted")
        ordinary = pl.col("ordinary").fill_null(0).clip(0)
        without = pl.when(late.fill_null(False)).then(
            pl.max_horizontal(pl.col("second") - pl.col("ready"), ordinary).cast(pl.Float64)
        )
        collectives = each.join(often, on=["op", "group"], nulls_equal=True, maintain_order="left").select(
            ordinary=ordinary.cast(pl.Float64), without=without.fill_null(np.inf)
        )  # fmt: skip
        return rows, collectives["ordinary"].to_numpy(), collectives["without"].to_numpy()

    def _ordinary_member_delay(self, rows: Ints) -> pl.DataFrame:
        """collective, ordinary: how long after what a member itself waits for it starts the collective, the median of
        the members but the last. `rows`: the collectives among the operations, by number."""
        parts, graph = self.graph.recorded.parts, self.graph
        number = np.full(len(graph), -1, np.int32)
        number[rows] = np.arange(len(rows))
        waits = graph.waits.only(np.flatnonzero(number[graph.waits.of] >= 0))
        met = pl.LazyFrame(
            {
                "collective": number[waits.of], "before": number[waits.on], "rank": graph.rank[waits.on],
                "ready": waits.met(graph.start, graph.end), "block": graph.sort[waits.on] <= OPTIMIZER,
            }
        )  # fmt: skip
        members = parts.lazy().select(pl.col("collective").cast(pl.Int32), "rank", "start")
        joint = met.filter(pl.col("before") >= 0).group_by("collective", "before").agg(pl.col("ready").max()).join(
            members.select("rank", before="collective"), on="before"
        ).join(members, on=["collective", "rank"], how="semi")  # fmt: skip
        ready = pl.concat([x.select("collective", "rank", "ready") for x in (met.filter("block"), joint)])
        each = members.join(ready.group_by("collective", "rank").max(), on=["collective", "rank"]).collect()
        each = each.sort("collective", "start").filter(
            pl.int_range(pl.len()).over("collective") < pl.len().over("collective") - 1
        )
        return each.group_by("collective").agg(ordinary=(pl.col("start") - pl.col("ready")).median()).with_columns(
            pl.col("collective").cast(parts.schema["collective"])
        )  # fmt: skip

    @cached_property
    def correlation(self) -> float:
        """Of the lengths of the forward and the backward of a micro-batch in a step on a rank, the median over steps
        and ranks: a step that compiles has none. 0 where unknown."""
        labelled = self.is_block & (self.graph.sort == WORK) & (self.column("microbatch") >= 0)
        rows = np.flatnonzero(labelled & np.isin(self.graph.kind, (0, 1)))
        lane = {"rank": self.graph.rank[rows], "chunk": np.maximum(self.column("chunk")[rows], 0)}
        lane["step"] = self.graph.step[rows]
        number = packed(*lane.values(), self.column("microbatch")[rows])
        last = np.full((2, int(number.max(initial=-1)) + 1), -1, np.int32)
        last[self.graph.kind[rows], number] = np.arange(len(rows))
        forward, back = last[:, (last >= 0).all(axis=0)]
        pairs = pl.DataFrame(
            {
                **{name: values[forward] for name, values in lane.items()}, "length": self.length[rows[forward]],
                "length_b": self.length[rows[back]],
            }
        )  # fmt: skip
        each = (
            pairs
            .group_by("rank", "chunk", "step")
            .agg(
                pl.len(), r=pl.corr("length", "length_b"),
                varied=pl.min_horizontal(*(pl.std(c, ddof=0) / pl.mean(c) for c in ("length", "length_b"))),
            )
            .with_columns(pairs=pl.col("len").sum().over("rank", "chunk"))
            .filter(pl.col("len") >= FEW, pl.col("pairs") >= ENOUGH)
        )  # fmt: skip
        r = pl.when(pl.col("varied") > VARIED).then(pl.col("r").fill_nan(None)).fill_null(0)
        correlation = each.select(r.median()).item() if each.height else _of_few(pairs)
        return float(correlation) if isinstance(correlation, float) else 0.0

    def factor(self, mean: Floats) -> Floats:
        """How much longer a micro-batch is than the others of its step in all its blocks: the geometric mean of length
        by `mean` over the stages of its replica, by its mean in the step, which may be longer than others; 1 where
        there is no number."""
        rows = np.flatnonzero((self.column("microbatch") >= 0) & (self.graph.sort == WORK))
        logs = np.log(np.maximum(self.length[rows], 1.0) / np.maximum(mean[rows], 1.0))
        table = pl.DataFrame(
            {
                "replica": self.replica[rows], "step": self.graph.step[rows],
                "microbatch": self.column("microbatch")[rows], "log": logs,
            }
        )  # fmt: skip
        factor = np.ones(len(self.graph))
        longer = table.with_columns(factor=pl.col("log").mean().over("replica", "step", "microbatch").exp())
        equal = pl.col("factor") / pl.col("factor").mean().over("step")  # a step does the same work without
        factor[rows] = longer.select(equal).to_series().to_numpy()
        return factor

    @cached_property
    def transfer(self) -> Flags:
        transfers: Flags = (self.graph.sort == TRANSFER) & self.graph.counted
        return transfers

    @cached_property
    def clock_error(self) -> Floats:
        """How far the clocks may be off in a transfer between two hosts, and in the block that waits for it: the order
        of blocks alone cannot tell data on their way, or a late start, from a clock that is off."""
        graph, ranks = self.graph, self.graph.recorded.ranks
        clock = ranks["clock_ns"].to_numpy()
        error = np.zeros(len(graph))
        if not clock.any():
            return error
        rows, host = np.flatnonzero(self.transfer), ranks["host"].rank("dense").to_numpy()
        src, dst = (rows_of(ranks["rank"].to_numpy(), end[rows]) for end in (graph.src, graph.dst))
        error[rows] = np.where(host[src] != host[dst], np.maximum(clock[src], clock[dst]), 0.0)
        waits = graph.waits.only(np.isin(graph.waits.on, rows))
        np.maximum.at(error, waits.of, error[waits.on])
        return error

    @cached_property
    def collective(self) -> Flags:
        collectives: Flags = (self.graph.sort == COLLECTIVE) & self.graph.counted
        return collectives

    @cached_property
    def overhead(self) -> Overhead:
        graph = self.graph
        block = (graph.sort == WORK) & graph.counted & ~graph.pause & ~graph.blind
        delays = [
            float((self.usual_delay[of] + graph.launch(of)).mean()) if of.any() else 0.0
            for of in (block, self.transfer)
        ]
        length = float(self.length[self.transfer].mean()) if self.transfer.any() else 0.0
        return Overhead(delays[0], delays[1] + length)


def _of_few(pairs: pl.DataFrame) -> float | None:
    """The correlation in steps of few micro-batches: of all steps of a rank together, each beside its mean, without the
    one step that speaks most for it; the median over ranks. None of fewer than `ENOUGH` pairs."""
    step = ["rank", "chunk", "step"]
    relative = {name: pl.col(name) / pl.col(name).mean().over(step) - 1 for name in ("length", "length_b")}
    sums = pairs.with_columns(**relative).group_by(step).agg(
        pl.len(), x=pl.col("length").pow(2).sum(), y=pl.col("length_b").pow(2).sum(),
        xy=(pl.col("length") * pl.col("length_b")).sum(),
    )  # fmt: skip
    rest = [pl.col(name).sum().over("rank", "chunk") - pl.col(name) for name in ("len", "x", "y", "xy")]
    left = sums.select("rank", "chunk", *rest).filter(pl.col("len") >= ENOUGH)
    varied = pl.min_horizontal("x", "y") > VARIED**2 * pl.col("len")
    r = pl.when(varied).then(pl.col("xy") / (pl.col("x") * pl.col("y")).sqrt()).otherwise(0.0)
    correlation = left.group_by("rank", "chunk").agg(r=r.min())["r"].median()
    return correlation if isinstance(correlation, float) else None
