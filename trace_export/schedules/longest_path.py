"""When the operations of a step run, from how long they take and what they wait for.

An operation starts when all that it waits for have ended; it ends its length later, in a group after the last of its
members has started. There are two ways over the graph: level by level with all times kept, which is fast where few
cases are run, and operation by operation for many cases, of which only the last ends are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trace_export.schedules.step_graph import StepGraph

Array = npt.NDArray[np.float64]
Floats = npt.NDArray[np.floating]

LANES_BYTES = 1 << 20
"""Of one operation in all scenarios, replicas and steps that are simulated at once: what stays near the cache."""


def start_and_end(graph: StepGraph, length: Array) -> tuple[Array, Array]:
    """Start and end of each operation, from 0, of a graph without groups; exact for whole numbers.

    `length` has a row per operation; a second axis is of cases that run at once. O(levels) calls of numpy. Raises
    CircleError.
    """
    start, end = np.empty(length.shape), np.zeros((len(length) + 1, *length.shape[1:]))
    for operations, needed, first in graph.levels:
        begin = np.maximum.reduceat(end[needed], first, axis=0)
        start[operations] = begin
        end[operations] = begin + length[operations]
    return start, end[:-1]


Patch = tuple[slice | int, Floats | float]
"""Scenarios (rows), and the length of the operation in them: of each replica and step, or one number."""


@dataclass(frozen=True)
class Scenarios:
    """`rows` scenarios. The length of operation i is `base[i]`, except where `patches[i]` says other.

    Of the last 2 · `pairs` rows each is one replica alone among ideal ones: lane (a, step) of the first half is replica
    a, that of the second half any of the others, which are all alike."""

    rows: int
    base: Sequence[float] | Array
    patches: Sequence[Sequence[Patch]]
    pairs: int = 0


@dataclass(frozen=True)
class Ends:
    """Scenario × replica × step: the end of the last operation, and of the last one of the type that was watched."""

    whole: Array
    watched: Array


def last_ends(
    graph: StepGraph, scenarios: Scenarios, lanes: tuple[int, int], may_end: Sequence[bool], watch: Sequence[bool]
) -> Ends:
    """Runs the scenarios on `lanes` (replicas, steps), from time 0.

    `may_end`: operations that may be the last to end; `watch`: those of `Ends.watched`.
    """
    plan = graph.plan
    shape = (scenarios.rows, *lanes)
    uses = [0] * len(graph.waits)
    for node in plan:
        for needed in node.needs:
            uses[needed] += 1
    ends: dict[int, Array] = {}
    free: list[Array] = []
    spare = np.empty(shape)
    zero, whole, watched = np.zeros((3, *shape))
    for members, needs, synced in plan:
        begin = zero if not needs else ends[needs[0]]
        for needed in needs[1:]:
            begin = np.maximum(begin, ends[needed], out=spare)
        if synced and shape[1] > 1:
            begin = _last_of_replicas(begin, spare, scenarios.pairs)
        for i in members:
            out = free.pop() if free else np.empty(shape)
            np.add(begin, scenarios.base[i], out=out)
            for rows, values in scenarios.patches[i]:
                np.add(begin[rows], values, out=out[rows])
            if may_end[i]:
                np.maximum(whole, out, out=whole)
            if watch[i]:
                np.maximum(watched, out, out=watched)
            if uses[i]:
                ends[i] = out
            else:
                free.append(out)
        for needed in needs:
            uses[needed] -= 1
            if not uses[needed]:
                free.append(ends.pop(needed))
    return Ends(whole, watched)


def _last_of_replicas(begin: Array, spare: Array, pairs: int) -> Array:
    """The latest `begin` of all replicas of a scenario and step, in `spare`; of a pair, of its two lanes."""
    one, two = len(begin) - 2 * pairs, len(begin) - pairs
    if pairs:
        latest = np.maximum(begin[one:two], begin[two:])
        spare[one:two] = spare[two:] = latest
    spare[:one] = begin[:one].max(axis=1, keepdims=True)
    return spare
