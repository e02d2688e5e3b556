"""What to shorten first: the workers, stages, links and hosts that are slower than their peers, and what each costs.

Each step is replayed with everything as measured but one cause, which is made as fast as its peers. The replay keeps
all that depends on it, so a gain is never larger than the slack of the rest allows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from trace_export.analysis.step_simulation import replay, split
from trace_export.analysis.stragglers import SLOW_LINK
from trace_export.model import INT, REAL, TEXT, Profile, Schema
from trace_export.pipeline.operations import Operations
from trace_export.schedules.longest_path import Array
from trace_export.schedules.operation_types import BLOCKS, COLLECTIVE, OPT, TRANSFERS

CAUSES: Schema = {
    "cause": TEXT, "kind": TEXT, "dp": INT, "stage": INT, "rank": INT, "to_stage": INT, "to_rank": INT,
    "direction": TEXT, "ratio": REAL, "excess_ns": REAL, "step_ns": REAL, "gain_ns": REAL, "gain": REAL,
}  # fmt: skip
"""`cause` in words; `kind`: `worker` (one rank's blocks are slow beside its stage's other replicas), `stage` (a stage's
blocks beside the other stages'), `link` (transfers beside other links of the direction; both ways where `direction` is
null), `collective` (that of a stage's replicas takes long beside the other stages', or one rank's part of it starts
late), `host` (blocks start late although nothing is missing). `dp`, `rank` where it is one replica; `to_*` the
receiver of a link. `ratio`: its mean length by that of its peers (null where it starts late); `excess_ns`: mean extra
length of an operation. `step_ns`: the mean step without the cause, from its first start to its last end, `gain_ns` what
that saves, `gain` its share of that time, and in a report (`StepTime.of_steps`) of the time from start to start. Best
gain first."""

MOST = 12
"""Causes of a kind that are replayed: those with the largest excess in a step."""
NOTABLE = 1.02
"""A smaller ratio to the peers is no cause."""
LEAST_GAIN = 0.002
"""Causes that save a smaller share of the step are left out."""


@dataclass(frozen=True)
class _Candidate:
    """`rows`: operations; `replica`: one, or all; `factor`: on their lengths, and on those of the other sides of
    transfers; `earlier`: less launch delay, in ns."""

    kind: str
    replica: slice
    rows: list[int]
    factor: dict[int, float]
    earlier: float
    ratio: float | None
    excess: float
    total: float


def causes(operations: Operations, profile: Profile) -> pl.DataFrame:
    """The table `CAUSES` of the steps in `operations`."""
    start, end = operations.start_ns, operations.end_ns
    length, launch = (times.astype(np.float64) for times in split(operations.graph, start, end, end - start))
    found = _Search(operations, length, launch).candidates()
    if not found:
        return pl.DataFrame(schema=CAUSES)
    final = np.flatnonzero(operations.span[:, 0, 0] >= 0) if operations.level != "operations" else np.arange(len(start))
    changes: list[dict[int, tuple[Array, Array]]] = [{}]
    for candidate in found:
        change = {}
        for i in {*candidate.rows, *candidate.factor}:
            new, earlier = length[i].copy(), launch[i].copy()
            new[candidate.replica] *= candidate.factor.get(i, 1.0)
            part = earlier[candidate.replica]
            earlier[candidate.replica] = np.where(part > 0, np.maximum(part - candidate.earlier, 0), part)
            change[i] = new, earlier
        changes.append(change)
    times = replay(operations.graph, length, launch, changes, final).mean(axis=1)
    rows = [_row(operations, c, times[0], time) for c, time in zip(found, times[1:], strict=True)]
    frame = pl.DataFrame(rows, schema=CAUSES, orient="row")
    return frame.filter(pl.col("gain") >= LEAST_GAIN).sort("gain_ns", descending=True, maintain_order=True)


class _Search:
    """Looks for what is slower than its peers."""

    def __init__(self, operations: Operations, length: Array, launch: Array) -> None:
        self.operations, self.length, self.launch = operations, length, launch
        self.blocks: dict[tuple[str, int], dict[int, list[int]]] = {}
        self.links: dict[str, dict[tuple[int, int], list[int]]] = {}
        self.shared: dict[tuple[str, int], dict[int, list[int]]] = {}
        self.on_stage: list[list[int]] = [[] for _ in range(operations.stages)]
        for i, name in enumerate(operations.types):
            stage = int(operations.stage[i])
            if name in BLOCKS:
                self.on_stage[stage].append(i)
                if name != OPT:
                    self.blocks.setdefault((name, int(operations.chunk[i])), {}).setdefault(stage, []).append(i)
            elif name in TRANSFERS and TRANSFERS[name][0] == "recv":
                link = int(operations.peer[i]), stage
                self.links.setdefault(TRANSFERS[name][1], {}).setdefault(link, []).append(i)
            elif COLLECTIVE.get(name) == "stage" and self.length.shape[1] > 1:
                self.shared.setdefault((name, int(operations.sequence[i])), {}).setdefault(stage, []).append(i)

    def candidates(self) -> list[_Candidate]:
        """The largest of each kind."""
        found = []
        for kind in (self.workers(), self.stages(), self.slow_links(), self.collectives(), self.hosts()):
            found += sorted(kind, key=lambda c: -c.total)[:MOST]
        return found

    def workers(self) -> Iterator[_Candidate]:
        """Replicas of a stage beside the other replicas."""
        replicas = self.length.shape[1]
        for stage in range(self.operations.stages if replicas > 1 else 0):
            groups = [by_stage[stage] for by_stage in self.blocks.values() if stage in by_stage]
            means = np.array([self.length[rows].mean(axis=(0, 2)) for rows in groups])  # group × replica
            peers = medians_of_others(means)
            for a in range(replicas):
                yield from self._slower("worker", groups, means[:, a], peers[:, a], slice(a, a + 1))

    def stages(self) -> Iterator[_Candidate]:
        """Stages beside the other stages, by the replica that is slower than half of them, so that one slow replica
        alone makes no slow stage."""
        stages = self.operations.stages
        means = {
            key: np.array([_of_replicas(self.length[by_stage[s]]) if s in by_stage else np.nan for s in range(stages)])
            for key, by_stage in self.blocks.items()
        }
        for stage in range(stages if stages > 1 else 0):
            keys = [k for k, by_stage in self.blocks.items() if stage in by_stage and len(by_stage) > 1]
            if not keys:
                continue
            peers = np.array([np.nanmedian(np.delete(means[k], stage)) for k in keys])
            own = np.array([means[k][stage] for k in keys])
            yield from self._slower("stage", [self.blocks[k][stage] for k in keys], own, peers, slice(None))

    def slow_links(self) -> list[_Candidate]:
        """Links beside the others of their direction, and those that are slow both ways as one."""
        found = list(self._one_way())
        slow: dict[tuple[int, int, int], _Candidate] = {}
        for one in (each for each in found if each.ratio is not None and each.ratio >= SLOW_LINK):
            sender, receiver = int(self.operations.peer[one.rows[0]]), int(self.operations.stage[one.rows[0]])
            slow[sender, receiver, -1 if one.replica == slice(None) else one.replica.start] = one
        both = [(slow[a, b, n], slow[b, a, n]) for a, b, n in slow if a < b and (b, a, n) in slow]
        return [*found, *(_together(*pair) for pair in both)]

    def _one_way(self) -> Iterator[_Candidate]:
        """The links of each direction: of one replica where it differs from its peers, else of all."""
        for links in self.links.values():
            usual_of = {link: np.median(self.length[rows]) for link, rows in links.items()}
            for link, rows in links.items():
                values = np.median(self.length[rows], axis=(0, 2))  # per replica
                middle = float(np.sort(values)[(len(values) - 1) // 2])
                others = [usual for other, usual in usual_of.items() if other != link]
                if len(values) + len(others) > 1:
                    peers = medians_of_others(np.array([*values, *others]))
                    for a in range(len(values)):
                        yield from self._slow_link(rows, values[a : a + 1], peers[a : a + 1], slice(a, a + 1))
                if len(values) > 1 and others:
                    own, usual = np.array([middle]), np.array([np.median(others)])
                    yield from self._slow_link(rows, own, usual, slice(None))

    def _slow_link(self, rows: list[int], own: Array, usual: Array, replica: slice) -> Iterator[_Candidate]:
        """The link of these receives, whose sends end with them: the next send may wait for that."""
        graph = self.operations.graph
        for found in self._slower("link", [rows], own, usual, replica):
            paired = [i for i in rows if graph.group_of[i] >= 0]
            sides = {k: found.factor[i] for i in paired for k in graph.groups[graph.group_of[i]]}
            yield replace(found, factor=found.factor | sides)

    def collectives(self) -> Iterator[_Candidate]:
        """Collectives of a stage's replicas beside those of the other stages, and ranks that start theirs late."""
        for by_stage in self.shared.values():
            means = {stage: float(self.length[rows].mean()) for stage, rows in by_stage.items()}
            for stage, rows in by_stage.items():
                others = [mean for other, mean in means.items() if other != stage]
                if others:
                    own, usual = np.array([means[stage]]), np.array([np.median(others)])
                    yield from self._slower("collective", [rows], own, usual, slice(None))
            yield from self._late("collective", [by_stage.get(stage, []) for stage in range(self.operations.stages)])

    def hosts(self) -> Iterator[_Candidate]:
        """Ranks whose blocks start late, beside all others."""
        yield from self._late("host", [self._launched(stage) for stage in range(self.operations.stages)])

    def _late(self, kind: str, on_stage: list[list[int]]) -> Iterator[_Candidate]:
        """Ranks that start their operations, of each stage those of `on_stage`, late beside the others."""
        nowhere = np.full(self.launch.shape[1], np.nan)
        late = np.array([
            np.maximum(np.median(self.launch[rows], axis=(0, 2)), 0) if rows else nowhere for rows in on_stage
        ])  # fmt: skip
        known = ~np.isnan(late)
        excesses = late[known] - (medians_of_others(late[known]) if known.sum() > 1 else 0.0)
        for (stage, a), excess in zip(np.argwhere(known).tolist(), excesses.tolist(), strict=True):
            if excess > 0:
                rows = on_stage[stage]
                yield _Candidate(kind, slice(a, a + 1), rows, {}, excess, None, excess, excess * len(rows))

    def _launched(self, stage: int) -> list[int]:
        """The blocks of a stage without the optimizer."""
        return [i for i in self.on_stage[stage] if self.operations.types[i] != OPT]

    def _slower(
        self, kind: str, groups: list[list[int]], own: Array, peers: Array, replica: slice
    ) -> Iterator[_Candidate]:
        sizes = np.array([len(rows) for rows in groups])
        usual = float((peers * sizes).sum())
        if usual <= 0:
            return
        ratio = float((own * sizes).sum()) / usual
        if ratio < NOTABLE:
            return
        factor = {i: float(peers[n] / own[n]) if own[n] > 0 else 1.0 for n, rows in enumerate(groups) for i in rows}
        excess = (ratio - 1) * usual
        shared = replica == slice(None)
        total = excess * (self.length.shape[1] if shared else 1)
        yield _Candidate(
            kind, replica, [i for rows in groups for i in rows], factor, 0.0, ratio, excess / int(sizes.sum()), total
        )


def medians_of_others(values: Array) -> Array:
    """For each of two or more values along the last axis the median of the others."""
    order = np.argsort(values, axis=-1)
    place = np.argsort(order, axis=-1)
    ascending = np.take_along_axis(values, order, axis=-1)
    others = values.shape[-1] - 1
    # Without a value, those after it move up by one place.
    lower, upper = (
        np.take_along_axis(ascending, middle + (place <= middle), axis=-1)
        for middle in ((others - 1) // 2, others // 2)
    )
    return np.asarray((lower + upper) / 2)


def _together(one: _Candidate, other: _Candidate) -> _Candidate:
    """Two causes as one; its ratio is that of their lengths together."""
    usual = sum(c.excess * len(c.rows) / (c.ratio - 1) for c in (one, other) if c.ratio)
    added = one.excess * len(one.rows) + other.excess * len(other.rows)
    rows = [*one.rows, *other.rows]
    return _Candidate(
        one.kind, one.replica, rows, one.factor | other.factor, 0.0, 1 + added / usual, added / len(rows),
        one.total + other.total,
    )  # fmt: skip


def _of_replicas(length: Array) -> float:
    """The mean length in the replica that is slower than half of them, or just less."""
    means = np.sort(length.mean(axis=(0, 2)))
    return float(means[(len(means) - 1) // 2])


def _row(operations: Operations, candidate: _Candidate, before: float, after: float) -> tuple[object, ...]:
    first = candidate.rows[0]
    name = operations.types[first]
    stage, peer = int(operations.stage[first]), int(operations.peer[first])
    single = candidate.replica != slice(None)
    a = candidate.replica.start if single else 0
    only = single or len(operations.replicas) == 1
    dp = operations.replicas[a] if only else None
    link = candidate.kind == "link"
    sender, receiver = (peer, stage) if link else (stage, None)
    ranks = operations.ranks[a]
    ways = {TRANSFERS[operations.types[i]][1] for i in candidate.rows} if link else set()
    direction = ways.pop() if len(ways) == 1 else None
    of = f" of dp {dp}" if only and len(operations.replicas) > 1 else ""
    words = {
        "worker": f"stage {stage}{of} (rank {ranks[stage]}) computes slowly",
        "stage": f"stage {stage} has more work than the others",
        "link": f"transfers ({direction}) from stage {sender} to {receiver}{of} are slow"
        if direction
        else f"transfers between stages {sender} and {receiver}{of} are slow, both ways",
        "collective": f"{name} of stage {stage} takes long"
        if candidate.ratio
        else f"{name} of stage {stage}{of} (rank {ranks[stage]}) starts late",
        "host": f"blocks of stage {stage}{of} (rank {ranks[stage]}) start late",
    }
    return (
        words[candidate.kind], candidate.kind, dp, sender, int(ranks[sender]) if only else None, receiver,
        int(ranks[receiver]) if only and receiver is not None else None, direction, candidate.ratio, candidate.excess,
        float(after), float(before - after), float((before - after) / before) if before else 0.0,
    )  # fmt: skip
