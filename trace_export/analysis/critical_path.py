"""The critical path of each step: the chain of operations whose lengths add up to the step's, and everybody's slack.

From the operation that ended last, the path goes back to what it had waited for last, over all ranks: a block to the
block or transfer before it, a transfer or collective to the partner that came last. Waiting never appears: while one
rank waits, the path runs on another. The parts telescope, so that they add up to the length of the step exactly, in
nanoseconds, also on clocks that disagree (then some parts are negative).

The graph is that of dPRO (MLSys'22, arXiv 2205.02473); slack is that of project planning: how much longer an operation
could have taken without delaying the end of the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from trace_export.analysis.step_simulation import split
from trace_export.model import INT, SPAN_ID, STEP_KEY, TEXT, TIME, Profile, Schema
from trace_export.pipeline.operations import Operations
from trace_export.pipeline.posting import with_posting
from trace_export.pipeline.recorded_operations import seconds
from trace_export.pipeline.step_operations import StepOperations
from trace_export.schedules.operation_types import BLOCKS, TRANSFERS
from trace_export.schedules.step_graph import StepGraph

Times = npt.NDArray[np.int64]

PARTS: Schema = {
    "run": INT, "step": INT, "position": INT, "part": TEXT, "kind": TEXT, "rank": INT, "stage": INT, "from_rank": INT,
    "from_stage": INT, "microbatch": INT, "chunk": INT, "id": SPAN_ID, "start_ns": TIME, "end_ns": TIME, "ns": TIME,
}  # fmt: skip
"""A part of the critical path of a step; `position` counts from its start. `part`: `work` (a block of `kind` F, B, W,
FB or OPT, whose `id` is that of the span), `wire` (a transfer of direction `kind` from `from_rank`, or the rank itself
where both sides are one), `collective` (its name is `kind`; from the last rank to come), `launch` (the delay of the
host, the scheduler or the data loader before an operation of `kind` on `rank`). `ns` is end_ns - start_ns; the parts of
a step add up to its length."""

STEPS: Schema = {"run": INT, "step": INT, "start_ns": TIME, "length_ns": TIME, "negative_ns": TIME}
"""`length_ns`: from the first start to the last end of the step; `negative_ns` the sum of its negative parts."""

SLACK: Schema = {"id": SPAN_ID, "rank": INT, "run": INT, "step": INT, "slack_ns": TIME}
"""How much longer each block could have taken without making its step longer; 0 on the critical path. Null where
nothing that was recorded waits for it."""

WITHOUT_LIMIT = np.int64(1) << 61


@dataclass(frozen=True)
class CriticalPath:
    """`parts`, `steps` and `slack` have the columns of `PARTS`, `STEPS` and `SLACK`; sorted by (run, step). The slack,
    of all blocks, is computed when it is asked for."""

    parts: pl.DataFrame
    steps: pl.DataFrame
    _profile: Profile = field(repr=False)
    _operations: StepOperations = field(repr=False)

    @cached_property
    def slack(self) -> pl.DataFrame:
        parts = [_slack(Timed.of(one), self._profile) for one in self._operations.all]
        return pl.concat([pl.DataFrame(schema=SLACK), *parts]).sort(*STEP_KEY, "rank", "id")

    def sums(self) -> pl.DataFrame:
        """run, step, part, kind, stage, from_stage, ns: the parts of each step added up, the longest first."""
        key = [*STEP_KEY, "part", "kind", "stage", "from_stage"]
        summed = self.parts.group_by(key, maintain_order=True).agg(pl.col("ns").sum())
        return summed.filter(pl.col("ns") != 0).sort(*STEP_KEY, "ns", descending=[False, False, True])

    def document(self) -> list[dict[str, object]]:
        """The path of each step, for JSON; `kind` is that of a block, or `wire`, `launch`, `collective`."""
        named = pl.when(pl.col("part") == "work").then("kind").otherwise("part")
        sums = self.sums().select(
            *STEP_KEY, kind=named, stage="stage", from_stage="from_stage", ns="ns",
            of=pl.when(pl.col("part") != "work").then("kind"),
        )  # fmt: skip
        parts = sums.partition_by(STEP_KEY, as_dict=True, include_key=False)
        return [
            {
                "run": run,
                "step": step,
                "length_ns": length,
                "parts": parts[run, step].to_dicts() if (run, step) in parts else [],
            }
            for run, step, length in self.steps.select(*STEP_KEY, "length_ns").iter_rows()
        ]


def critical_path(profile: Profile, operations: StepOperations) -> CriticalPath:
    """The critical path of every step of `operations`."""
    parts, steps = [pl.DataFrame(schema=PARTS)], [pl.DataFrame(schema=STEPS)]
    for timed in (Timed.of(one) for one in operations.all):
        paths = [list(reversed(list(timed.path(n)))) for n in range(len(timed.operations.steps))]
        parts.append(_parts(timed, paths, profile))
        steps.append(_steps(timed, paths))
    return CriticalPath(
        pl.concat(parts).sort(*STEP_KEY, "position"), pl.concat(steps).sort(STEP_KEY), profile, operations
    )


class Link(NamedTuple):
    """A part of a path: from `start` to `end`, of the operation (`operation`, `replica`); for wire and collectives from
    the start of the partner (`other`, `other_replica`)."""

    part: str
    operation: int
    replica: int
    other: int
    other_replica: int
    start: int
    end: int


@dataclass(frozen=True)
class Timed:
    """Steps with the same operations: `start` and `end`, operation × replica × step, from the step's start. `final`:
    the operations that end a step: all where all were recorded, else the blocks."""

    operations: Operations
    graph: StepGraph
    start: Times
    end: Times
    final: Times

    @staticmethod
    def of(operations: Operations) -> Timed:
        start, end, graph = operations.start_ns, operations.end_ns, operations.graph
        blocks = np.flatnonzero(operations.span[:, 0, 0] >= 0)
        zero = operations.recorded_from_ns
        if zero is not None:  # the tool that recorded them rounds the ends of operations, too
            ends = seconds(start - zero) + seconds(end - start)
            end = np.rint(ends.astype(np.float64) * 1e9).astype(np.int64) + zero
            graph, blocks = with_posting(operations), np.arange(len(start))
        return Timed(operations, graph, start, end, blocks)

    def path(self, step: int) -> Iterator[Link]:
        """The critical path of a step, from its end to its start."""
        start, end = self.start[:, :, step], self.end[:, :, step]
        groups = self.graph.group_of
        last = end[self.final]
        at, replica = np.unravel_index(int(last.argmax()), last.shape)
        i, a = int(self.final[at]), int(replica)
        while True:
            group = int(groups[i])
            if group < 0:
                yield Link("work", i, a, i, a, int(start[i, a]), int(end[i, a]))
            else:
                k, b = self._last_to_come(group, i, a, start)
                transfer = self.operations.types[i] in TRANSFERS
                yield Link("wire" if transfer else "collective", i, a, k, b, int(start[k, b]), int(end[i, a]))
                i, a = k, b
            before = max(
                self.graph.waits[i],
                key=lambda j: (end[j, a], self.operations.stage[j] == self.operations.stage[i], -j),
                default=None,
            )
            ready = 0 if before is None else int(end[before, a])
            if start[i, a] != ready:
                yield Link("launch", i, a, i, a, ready, int(start[i, a]))
            if before is None:
                return
            i = before

    def _last_to_come(self, group: int, i: int, a: int, start: Times) -> tuple[int, int]:
        """The member of a group that started last, and its replica; of equals the operation itself, else the first."""
        members = self.graph.groups[group]
        replicas = range(start.shape[1]) if self.graph.synced[group] else (a,)
        return max(((k, b) for k in members for b in replicas), key=lambda c: (start[c], c == (i, a), -c[0], -c[1]))

    def slack(self) -> Times:
        """How much later each operation may end, operation × replica × step, or `WITHOUT_LIMIT`."""
        length, launch = split(self.graph, self.start, self.end, self.end - self.start)
        late = np.full(self.end.shape, WITHOUT_LIMIT)
        late[self.final] = self.end[self.final].max(axis=(0, 1))
        for members, _, synced in reversed(self.graph.plan):
            start = (late[members] - length[members]).min(axis=0)
            if synced:
                start = np.broadcast_to(start.min(axis=0), start.shape)
            for i in members:
                for needed in self.graph.waits[i]:
                    np.minimum(late[needed], start - launch[i], out=late[needed])
        return np.where(late > WITHOUT_LIMIT // 2, WITHOUT_LIMIT, late - self.end)


def _parts(timed: Timed, paths: list[list[Link]], profile: Profile) -> pl.DataFrame:
    """The table `PARTS` of some steps."""
    operations = timed.operations
    rows = [(n, position, *link) for n, path in enumerate(paths) for position, link in enumerate(path)]
    names = ["at", "position", *Link._fields]
    frame = pl.DataFrame(
        rows, schema=dict(zip(names, [INT, INT, TEXT, INT, INT, INT, INT, TIME, TIME], strict=True)), orient="row"
    )
    at, index, replica, other, other_replica = (
        frame[c].to_numpy() for c in ("at", "operation", "replica", "other", "other_replica")
    )
    ranks, origin = operations.ranks, operations.origin_ns[at]
    run, step = (pl.Series([one[n] for one in operations.steps], dtype=INT).gather(at) for n in (0, 1))
    span = operations.span[index, replica, at]
    where = dict(profile.ranks.select("rank", "stage").iter_rows())
    rank, from_rank = ranks[replica, operations.stage[index]], ranks[other_replica, operations.stage[other]]
    peer = operations.peer[index]
    alone = (frame["part"] == "wire").to_numpy() & (other == index) & (peer >= 0)
    from_rank = np.where(alone, ranks[replica, peer], from_rank)
    types = pl.Series(operations.types).gather(index)
    kinds = {**BLOCKS, **{name: way for name, (_, way) in TRANSFERS.items()}}
    between = frame["part"].is_in(["wire", "collective"])
    row = pl.Series(span).cast(pl.Int64)
    times = {f"{end}_ns": pl.col(end) + origin for end in ("start", "end")}
    made = frame.select("position", "part", **times).with_columns(
        run=run, step=step, kind=types.replace(kinds),
        rank=pl.Series(rank), from_rank=pl.Series(from_rank), inside=between,
        microbatch=pl.Series(operations.microbatch[index]), chunk=pl.Series(operations.chunk[index]),
        id=profile.spans["id"].gather(pl.Series(np.where(span >= 0, span, 0))), block=row >= 0,
        ns=pl.col("end_ns") - pl.col("start_ns"),
    )  # fmt: skip
    return made.with_columns(
        pl.when("inside").then("from_rank").alias("from_rank"),
        pl.when("block").then("id").alias("id"),
        pl.when(pl.col("microbatch") >= 0).then("microbatch").alias("microbatch"),
        pl.when(pl.col("chunk") >= 0).then("chunk").alias("chunk"),
    ).with_columns(
        stage=pl.col("rank").replace_strict(where, default=None, return_dtype=INT),
        from_stage=pl.col("from_rank").replace_strict(where, default=None, return_dtype=INT),
    ).select(pl.col(name).cast(dtype) for name, dtype in PARTS.items())  # fmt: skip


def _steps(timed: Timed, paths: list[list[Link]]) -> pl.DataFrame:
    """The table `STEPS` of some steps."""
    last = timed.end[timed.final].max(axis=(0, 1)).tolist()
    rows = [
        (*step, origin, length, sum(min(link.end - link.start, 0) for link in path))
        for step, origin, length, path in zip(
            timed.operations.steps, timed.operations.origin_ns.tolist(), last, paths, strict=True
        )
    ]
    return pl.DataFrame(rows, schema=STEPS, orient="row")


def _slack(timed: Timed, profile: Profile) -> pl.DataFrame:
    """The table `SLACK` of some steps."""
    span = timed.operations.span
    rows = span[span >= 0]
    slack = pl.Series("slack_ns", timed.slack()[span >= 0])
    found = profile.spans[rows].select("id", "rank", *STEP_KEY).with_columns(slack)
    return found.with_columns(slack_ns=pl.when(pl.col("slack_ns") < WITHOUT_LIMIT).then("slack_ns")).cast(SLACK)  # type: ignore[arg-type]
