"""What the delays between operations cost, by type of operation, replica and stage: the launch parts of the study.

All operations are as long as they were, and only those of one part also start as late after what they waited for.
"""

from __future__ import annotations

import numpy as np

from trace_export.analysis.step_simulation import Lengths
from trace_export.pipeline.operations import Operations
from trace_export.schedules.longest_path import LANES_BYTES, Patch, Scenarios, last_ends
from trace_export.schedules.operation_types import FR, OPT, REPORTED, F

FIRST = "first-op"
"""The type of the operations that begin a step: the first forward of the first stage, the first receive of the others.
Their delays are those of the data, or of the step before."""
WORTH = 1.03
"""Below this fidelity delays cost too little to be attributed (the study's threshold)."""

LaunchParts = dict[str, dict[str, float]]
"""`by_type`, `by_dp` and `by_stage`: name → how many times longer the steps are with the delays of this part only than
without any."""


def launch_parts(operations: Operations, lengths: Lengths) -> LaunchParts:
    """The parts of all types, replicas and stages."""
    count, (_, replicas, steps) = len(operations.types), lengths.length.shape
    kinds = _types(operations)
    names = sorted(set(kinds))
    row = {name: n for n, name in enumerate(names)}
    first_dp = 1 + len(names)
    first_stage = first_dp + replicas
    rows = first_stage + operations.stages
    optimizer = [name == OPT for name in operations.types]
    watched = [*(optimizer if any(optimizer) else [True] * count), *([False] * count)]
    ends = np.empty((rows, steps))
    size = max(1, LANES_BYTES // (8 * rows * replicas))
    for at in range(0, steps, size):
        length, launch = (part[:, :, at : at + size].astype(np.float64) for part in (lengths.length, lengths.launch))
        patches: list[list[Patch]] = [[] for _ in range(2 * count)]
        for i, delay in enumerate(launch):
            alone = np.zeros((replicas, *delay.shape))
            alone[range(replicas), range(replicas)] = delay
            patches[count + i] = [
                (1 + row[kinds[i]], delay), (slice(first_dp, first_stage), alone),
                (first_stage + int(operations.stage[i]), delay),
            ]  # fmt: skip
        scenarios = Scenarios(rows, [*length, *([0.0] * count)], patches)
        lanes = replicas, length.shape[2]
        found = last_ends(operations.graph.with_delays, scenarios, lanes, [False] * (2 * count), watched)
        ends[:, at : at + size] = found.watched.max(axis=1)
    parts = (ends.mean(axis=1) / ends[0].mean()).tolist()
    return {
        "by_type": dict(zip(names, parts[1:first_dp], strict=True)),
        "by_dp": dict(zip(map(str, operations.replicas), parts[first_dp:first_stage], strict=True)),
        "by_stage": dict(zip(map(str, range(operations.stages)), parts[first_stage:], strict=True)),
    }


def _types(operations: Operations) -> list[str]:
    """The reported type of each operation, the first ones apart."""

    def first(i: int, name: str) -> bool:
        if not operations.single:
            return not operations.graph.waits[i]
        return operations.sequence[i] == 0 and name == (F if operations.stage[i] == 0 else FR)

    return [FIRST if first(i, name) else REPORTED.get(name, name) for i, name in enumerate(operations.types)]
