"""How much of a run's time is due to stragglers, by type of operation, replica, stage and worker.

The metrics of "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25, arXiv 2505.05713).
A step is simulated with the lengths that its operations had, and again with ideal ones: the mean of their type, of
communication the median. The quotient is the slowdown S. With everything ideal but one part, the slowdown is that
part's share. A worker is the ranks of one stage in one replica.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from trace_export.analysis.launch_delays import WORTH, launch_parts
from trace_export.analysis.step_simulation import Lengths, may_end_last, measured_lengths
from trace_export.pipeline.operations import LeftOut, Operations, Step
from trace_export.schedules.longest_path import LANES_BYTES, Array, Ends, Patch, Scenarios, last_ends
from trace_export.schedules.operation_types import COLLECTIVE, OPT, REPORTED

SLOWEST_PERCENT = 3
"""M_W asks what the slowest 3 % of the workers cost (the study's share)."""
TRUSTED = 1.05
"""Above this fidelity the study drops a job: the simulation leaves out too much of the time."""


@dataclass(frozen=True)
class Slowdown:
    """Step times of the scenarios, in nanoseconds, and the metrics made of them.

    `steps`: run, step. `observed`, `simulated` (all lengths as they were, no launch delays) and `ideal`: per step.
    `by_type`, `by_dp`, `by_stage`: name → per step, all ideal but this part. `by_worker`: replica × stage × step.
    `without_slowest`, `only_slowest`: the `slowest` workers (replica, stage) ideal, and all ideal but them; the same of
    the last stage. `level`: what the operations are from: `operations` all were recorded, `messages` blocks and
    transfers, `blocks` only blocks. Whole times count to the end of the last operation; those of parts, and the ideal
    that they are compared with, to that of the last optimizer. `left_out`: run, step and why a step is not among them;
    `without`: recorded collectives that are not, and why; `missing` as in `Operations`. `launch`: what the delays
    between operations cost, as `launch_delays.LaunchParts`; None where the fidelity is too small to be attributed.
    """

    steps: list[Step]
    replicas: list[int]
    level: str
    observed_ns: Array
    simulated_ns: Array
    simulated_to_optimizer_ns: Array
    ideal_ns: Array
    ideal_to_optimizer_ns: Array
    by_type: dict[str, Array]
    by_dp: dict[int, Array]
    by_stage: dict[int, Array]
    by_worker: Array
    slowest: list[tuple[int, int]]
    without_slowest_ns: Array
    only_slowest_ns: Array
    without_last_stage_ns: Array
    only_last_stage_ns: Array
    left_out: tuple[tuple[int | None, int | None, str], ...] = ()
    without: tuple[LeftOut, ...] = ()
    missing: tuple[str, ...] = ()
    launch: dict[str, dict[str, float]] | None = None

    @property
    def collectives(self) -> list[str]:
        """The types of collectives that the steps have."""
        return [name for name in self.by_type if name in COLLECTIVE]

    @property
    def total(self) -> float:
        """S: how many times longer the steps were than without stragglers."""
        return _ratio(self.simulated_ns, self.ideal_to_optimizer_ns)

    @property
    def fidelity(self) -> float:
        """The time that was measured, by that of its simulation: above 1 by what launch delays cost."""
        return _ratio(self.observed_ns, self.simulated_to_optimizer_ns)

    @property
    def by_step(self) -> Array:
        """S of each step."""
        return _ratios(self.simulated_ns, self.ideal_to_optimizer_ns)

    def part(self, times: Array) -> float:
        """The slowdown of one of `by_type`, `by_dp`, `by_stage` or `by_worker`."""
        return _ratio(times, self.ideal_to_optimizer_ns)

    @property
    def workers(self) -> Array:
        """Replica × stage: the slowdown with all ideal but this worker."""
        slower: Array = self.by_worker.mean(axis=2) / self.ideal_to_optimizer_ns.mean()
        return slower

    @property
    def by_slowest_workers(self) -> float | None:
        """M_W: the part of the lost time that is won back with the slowest workers ideal; None where none is lost."""
        return self._share(self.without_slowest_ns)

    @property
    def by_last_stage(self) -> float | None:
        """M_S: the same with the last stage ideal."""
        return self._share(self.without_last_stage_ns)

    def _share(self, fixed: Array) -> float | None:
        before, best, after = (float(t.mean()) for t in (self.simulated_ns, self.ideal_ns, fixed))
        return (before - after) / (before - best) if before != best else None


def _ratio(times: Array, other: Array) -> float:
    return float(_ratios(times.mean(keepdims=True), other.mean(keepdims=True))[0])


def _ratios(times: Array, others: Array) -> Array:
    """Of each step; NaN, in JSON null, where all blocks of a step have no length."""
    ratios: Array = np.divide(times, others, out=np.full(len(times), np.nan), where=others != 0)
    return ratios


MEASURED, LAST_IDEAL, ONLY_LAST, IDEAL = range(4)
"""The first scenarios: all lengths as measured; the last stage ideal; all ideal but the last stage; all ideal."""
WHOLE = 4
"""The scenarios before those of the types and stages."""


@dataclass(frozen=True)
class _Parts:
    """Step times of the scenarios: to the last operation (`whole`, of the first scenarios) and to the last optimizer
    (all others); the last axis is the step."""

    whole: Array
    to_optimizer: Array
    types: dict[str, Array]
    stages: Array
    replicas: Array
    workers: Array


class _Engine:
    """Runs the scenarios of one run, in slices of steps that keep the lanes of an operation small."""

    def __init__(self, operations: Operations, lengths: Lengths) -> None:
        self.operations, self.lengths = operations, lengths
        self.may_end = may_end_last(operations, lengths)
        optimizer = [name == OPT for name in operations.types]
        self.watch = optimizer if any(optimizer) else self.may_end
        self.base: list[float] = lengths.ideal.tolist()
        self.stage: list[int] = operations.stage.tolist()
        _, self.replicas, self.steps = lengths.length.shape

    def parts(self) -> _Parts:
        """All scenarios but those of the slowest workers.

        "Only replica a as measured" leaves the other replicas alike, so all such scenarios are two rows of `Scenarios`;
        "only the worker (a, b)" the same for each stage b.
        """
        labels = [REPORTED.get(name, name) for name in self.operations.types]
        types, stages = sorted(set(labels)), self.operations.stages
        row = {name: WHOLE + n for n, name in enumerate(types)}
        first_stage = WHOLE + len(types)
        rows = first_stage + stages
        pairs = 0 if self.replicas == 1 else 1 + stages
        last = set(self.operations.loss_stages)
        total = rows + 2 * pairs
        whole, ends = np.empty((WHOLE, self.steps)), np.empty((rows, self.steps))
        alone = np.empty((1 + stages, self.replicas, self.steps))
        for part in self._slices(total):
            patches: list[list[Patch]] = []
            for i, values in enumerate(self.lengths.length[:, :, part].astype(np.float64)):
                stage = self.stage[i]
                measured: list[Patch] = [(slice(0, 3, 2), values)] if stage in last else [(slice(0, 2), values)]
                measured += [(row[labels[i]], values), (first_stage + stage, values)]
                if pairs:
                    measured += [(rows, values), (rows + 1 + stage, values)]
                patches.append(measured)
            found = self._simulate(Scenarios(total, self.base, patches, pairs), part)
            whole[:, part] = found.whole[:WHOLE].max(axis=1)
            ends[:, part] = found.watched[:rows].max(axis=1)
            if pairs:
                alone[:, :, part] = np.maximum(found.watched[rows : rows + pairs], found.watched[rows + pairs :])
        if not pairs:
            alone[0, 0], alone[1:, 0] = ends[MEASURED], ends[first_stage:]
        return _Parts(
            whole, ends[:WHOLE], {name: ends[n] for name, n in row.items()}, ends[first_stage:], alone[0],
            alone[1:].transpose(1, 0, 2),
        )  # fmt: skip

    def fixed(self, workers: Iterable[tuple[int, int]]) -> tuple[Array, Array]:
        """Step times with these workers ideal, and with all ideal but them."""
        chosen: dict[int, list[int]] = {}
        for replica, stage in workers:
            chosen.setdefault(stage, []).append(replica)
        out = np.empty((2, self.steps))
        for part in self._slices(2):
            patches: list[list[Patch]] = []
            for i, values in enumerate(self.lengths.length[:, :, part].astype(np.float64)):
                fixed = chosen.get(self.stage[i])
                if fixed is None:
                    patches.append([(0, values)])
                    continue
                only = np.full(values.shape, self.base[i])
                only[fixed] = values[fixed]
                values[fixed] = self.base[i]
                patches.append([(0, values), (1, only)])
            out[:, part] = self._simulate(Scenarios(2, self.base, patches), part).whole.max(axis=1)
        return out[0], out[1]

    def _simulate(self, scenarios: Scenarios, part: slice) -> Ends:
        steps = len(range(*part.indices(self.steps)))
        return last_ends(self.operations.graph, scenarios, (self.replicas, steps), self.may_end, self.watch)

    def _slices(self, rows: int) -> Iterator[slice]:
        size = max(1, LANES_BYTES // (8 * rows * self.replicas))
        return (slice(at, at + size) for at in range(0, self.steps, size))


def what_if(operations: Operations) -> Slowdown:
    """The slowdown of the steps in `operations`."""
    lengths = measured_lengths(operations)
    found = slowdown(operations, lengths)
    return replace(found, launch=launch_parts(operations, lengths)) if found.fidelity >= WORTH else found


def slowdown(operations: Operations, lengths: Lengths) -> Slowdown:
    """The slowdown of `operations` that are as long as `lengths` says, without what launch delays cost.

    The workers of M_W are chosen as in the study: by the smaller one of their replica's and their stage's slowdown.
    """
    engine = _Engine(operations, lengths)
    parts = engine.parts()
    best = parts.to_optimizer[IDEAL].mean()
    score = np.minimum(parts.replicas.mean(axis=1)[:, None], parts.stages.mean(axis=1)) / (best or 1)
    count = -(-score.size * SLOWEST_PERCENT // 100)
    slowest = sorted(np.ndindex(score.shape), key=lambda w: (-score[w], operations.ranks[w]))[:count]
    without, only = engine.fixed(slowest)
    unit = 1e9 if operations.single else 1.0
    return Slowdown(
        steps=operations.steps, replicas=operations.replicas, level=operations.level,
        observed_ns=lengths.observed.astype(np.float64) * unit,
        simulated_ns=parts.whole[MEASURED] * unit, simulated_to_optimizer_ns=parts.to_optimizer[MEASURED] * unit,
        ideal_ns=parts.whole[IDEAL] * unit, ideal_to_optimizer_ns=parts.to_optimizer[IDEAL] * unit,
        by_type={name: times * unit for name, times in parts.types.items()},
        by_dp=dict(zip(operations.replicas, parts.replicas * unit, strict=True)),
        by_stage=dict(enumerate(parts.stages * unit)),
        by_worker=parts.workers * unit, slowest=slowest,
        without_slowest_ns=without * unit, only_slowest_ns=only * unit,
        without_last_stage_ns=parts.whole[LAST_IDEAL] * unit, only_last_stage_ns=parts.whole[ONLY_LAST] * unit,
        left_out=operations.left_out, without=operations.without, missing=operations.missing,
    )  # fmt: skip
