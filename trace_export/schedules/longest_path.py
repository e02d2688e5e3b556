"""When the operations of a step run, from how long they take and what they wait for.

An operation starts when all that it waits for have ended; it ends its length later.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trace_export.schedules.step_graph import StepGraph

Array = npt.NDArray[np.float64]


def start_and_end(graph: StepGraph, length: Array) -> tuple[Array, Array]:
    """Start and end of each operation, from 0, exact for whole numbers.

    `length` has a row per operation; a second axis is of cases that run at once. O(levels) calls of numpy. Raises
    CircleError.
    """
    start, end = np.empty(length.shape), np.zeros((len(length) + 1, *length.shape[1:]))
    for operations, needed, first in graph.levels:
        begin = np.maximum.reduceat(end[needed], first, axis=0)
        start[operations] = begin
        end[operations] = begin + length[operations]
    return start, end[:-1]
