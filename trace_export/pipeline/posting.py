"""When transfers were posted: the block of their rank that ended last before they began."""

from __future__ import annotations

import numpy as np

from trace_export.pipeline.operations import Operations
from trace_export.pipeline.transfer_operations import POSTED_NS
from trace_export.schedules.operation_types import TRANSFERS, B, F
from trace_export.schedules.step_graph import StepGraph


def with_posting(operations: Operations) -> StepGraph:
    """The graph in which each transfer also waits for the block that it was posted after, in every replica and step.

    Without it, a receive that was posted late would count as launched late.
    """
    graph = operations.graph
    streams: list[list[int]] = [[] for _ in range(operations.stages)]
    for i in np.argsort(operations.start_ns[:, 0, 0], kind="stable").tolist():
        if operations.types[i] in (F, B):
            streams[int(operations.stage[i])].append(i)
    posted: list[tuple[int, int]] = []
    for i, name in enumerate(operations.types):
        stream = streams[int(operations.stage[i])]
        if name not in TRANSFERS or not stream:
            continue
        ended = operations.end_ns[stream] <= operations.start_ns[i] + POSTED_NS
        place = int(ended.sum(axis=0).min())
        if place and stream[place - 1] not in graph.waits[i]:
            posted.append((i, stream[place - 1]))
    added = np.array(posted, np.int64).reshape(-1, 2).T
    waiting, needed = (np.concatenate(both) for both in zip(graph.pairs, added, strict=True))
    posting = StepGraph.of_pairs(len(graph), (waiting, needed), graph.groups, graph.synced)
    return posting if posting.is_acyclic else graph  # of a damaged table, a transfer may seem to be of another block
