"""When transfers were posted: the block of their rank that ended last before they began."""

from __future__ import annotations

import numpy as np

from trace_export.pipeline.operations import Operations
from trace_export.pipeline.step_graph import StepGraph
from trace_export.pipeline.transfer_operations import POSTED_NS
from trace_export.schedules.operation_types import TRANSFERS, B, F


def with_posting(operations: Operations) -> StepGraph:
    """The graph in which each transfer also waits for the block that it was posted after, in every replica and step.

    Without it, a receive that was posted late would count as launched late.
    """
    waits = [list(needed) for needed in operations.graph.waits]
    streams: list[list[int]] = [[] for _ in range(operations.stages)]
    for i in np.argsort(operations.start_ns[:, 0, 0], kind="stable").tolist():
        if operations.types[i] in (F, B):
            streams[int(operations.stage[i])].append(i)
    for i, name in enumerate(operations.types):
        stream = streams[int(operations.stage[i])]
        if name not in TRANSFERS or not stream:
            continue
        ended = operations.end_ns[stream] <= operations.start_ns[i] + POSTED_NS
        place = int(ended.sum(axis=0).min())
        if place and stream[place - 1] not in waits[i]:
            waits[i].append(stream[place - 1])
    return StepGraph(waits, operations.graph.groups, operations.graph.synced)
