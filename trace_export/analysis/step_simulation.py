"""Simulates the steps of a run with other lengths of its operations: many scenarios, replicas and steps at once.

An operation starts when all that it waits for has ended, plus its launch delay. A block then takes its length; the
members of a communication group end their own lengths after the last of them has started. The rules are those of the
straggler study (arXiv 2505.05713, sections 3 and 4, and its artifact).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from trace_export.pipeline.operations import Operations
from trace_export.pipeline.recorded_operations import seconds
from trace_export.pipeline.step_graph import Ints, StepGraph
from trace_export.schedules.operation_types import LN, TYPICAL_IS_MEDIAN, B, W

Array = npt.NDArray[np.float64]
Floats = npt.NDArray[np.floating]
Number = TypeVar("Number", bound=npt.NDArray[Any])

LATE_S = 1e-2
"""A length or delay below minus this is due to clocks that disagree, and counts as 0 (the study's 10 ms)."""
LANES_BYTES = 1 << 20
"""Of one operation in all scenarios, replicas and steps that are simulated at once: what stays near the cache."""


@dataclass(frozen=True)
class Lengths:
    """Operation × replica × step: `length`, of a block its duration, of communication the time from the last start in
    its group to its end; and `launch`, the delay from the end of all that it waits for. `ideal`: per operation.
    `observed`: per step, from the first start to the last end. In seconds where the times were recorded so, else in
    nanoseconds."""

    length: Floats
    launch: Floats
    ideal: Array
    observed: Floats


def measured_lengths(operations: Operations) -> Lengths:
    """The lengths of the operations as they were, rounded as they were recorded."""
    start: Floats = operations.start_ns.astype(np.float64)
    duration: Floats = (operations.end_ns - operations.start_ns).astype(np.float64)
    late: np.floating = np.float64(LATE_S * 1e9)
    if operations.single:
        start, late = seconds(operations.start_ns), np.float32(LATE_S)
        duration = seconds(operations.end_ns - operations.start_ns)
    end = start + duration
    length, launch = split(operations.graph, start, end, duration)
    length[length <= -late] = 0
    launch[launch <= -late] = 0
    return Lengths(length, launch, ideal_lengths(operations, length), end.max(axis=(0, 1)) - start.min(axis=(0, 1)))


def split(graph: StepGraph, start: Number, end: Number, duration: Number) -> tuple[Number, Number]:
    """Length and launch delay of each operation, such that the recurrence gives its start and end again."""
    length = duration.copy()
    if graph.groups:
        sizes = [len(g) for g in graph.groups]
        members = [i for g in graph.groups for i in g]
        begun = np.maximum.reduceat(start[members], np.cumsum([0, *sizes[:-1]]), axis=0)
        synced = np.array(graph.synced, np.bool_)
        begun[synced] = begun[synced].max(axis=1, keepdims=True)
        length[members] = end[members] - np.repeat(begun, sizes, axis=0)
    waiting = [i for i, waits in enumerate(graph.waits) if waits]
    ready = np.broadcast_to(start.min(axis=(0, 1)), end.shape).copy()
    if waiting:
        needed = [w for i in waiting for w in graph.waits[i]]
        bounds = np.cumsum([0, *(len(graph.waits[i]) for i in waiting[:-1])])
        ready[waiting] = np.maximum.reduceat(end[needed], bounds, axis=0)
    return length, start - ready


def ideal_lengths(operations: Operations, length: Floats) -> Array:
    """The length of each operation without stragglers: the mean of its type over all replicas, stages and steps, of
    communication the median. A backward whose weight gradient is a block of its own is a type apart."""
    ideal = np.zeros(len(operations.types))
    numbers = list(zip(*(getattr(operations, c).tolist() for c in ("stage", "chunk", "microbatch")), strict=True))
    split_off = {numbers[i] for i, name in enumerate(operations.types) if name == W}
    types = np.array([
        f"{name}, split" if name == B and at in split_off else name
        for name, at in zip(operations.types, numbers, strict=True)
    ])  # fmt: skip
    for name in dict.fromkeys(types.tolist()):
        rows = types == name
        values = length[rows].astype(np.float64)
        if name not in TYPICAL_IS_MEDIAN:
            ideal[rows] = values.mean()
        else:
            middle = np.median(values)
            ideal[rows] = np.float32(middle) if operations.single and name != LN else middle
    return ideal


Patch = tuple[slice | int, Floats | float]
"""Scenarios (rows), and the length of the operation in them: of each replica and step, or one number."""


@dataclass(frozen=True)
class Scenarios:
    """`rows` scenarios. The length of operation i is `base[i]`, except where `patches[i]` says other.

    Of the last 2 · `pairs` rows each is one replica alone among ideal ones: lane (a, step) of the first half is replica
    a, that of the second half any of the others, which are all alike."""

    rows: int
    base: Sequence[float]
    patches: Sequence[Sequence[Patch]]
    pairs: int = 0


@dataclass(frozen=True)
class Ends:
    """Scenario × replica × step: the end of the last operation, and of the last one of the type that was watched."""

    whole: Array
    watched: Array


def simulate(
    operations: Operations, scenarios: Scenarios, lanes: tuple[int, int], may_end: Sequence[bool], watch: Sequence[bool]
) -> Ends:
    """Runs the scenarios without launch delays on `lanes` (replicas, steps), from time 0.

    `may_end`: operations that may be the last to end; `watch`: those of `Ends.watched`.
    """
    graph = operations.graph
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


def may_end_last(operations: Operations, lengths: Lengths) -> list[bool]:
    """Whether each operation may be the last to end: not one that another of no negative length waits for."""
    least = np.minimum(lengths.length.reshape(len(lengths.ideal), -1).min(axis=1), lengths.ideal)
    covered = np.zeros(len(least), np.bool_)
    for members, needs, _ in operations.graph.plan:
        if least[members].max() >= 0:
            covered[needs] = True
    may_end: list[bool] = (~covered).tolist()
    return may_end


def replay(
    graph: StepGraph, length: Array, launch: Array, changes: Sequence[Mapping[int, tuple[Array, Array]]], final: Ints
) -> Array:
    """Case × step: the end of the last of the operations `final`, with launch delays.

    In case c the operations of `changes[c]` have another length and launch delay (replica × step).
    """
    shape = len(changes), *length.shape[1:]
    where: dict[int, list[int]] = {}
    for case, change in enumerate(changes):
        for i in change:
            where.setdefault(i, []).append(case)

    def of_cases(i: int, which: int) -> Array:
        usual: Array = (length, launch)[which][i]
        if i not in where:
            return usual
        each = np.broadcast_to(usual, shape).copy()
        for case in where[i]:
            each[case] = changes[case][i][which]
        return each

    ends: dict[int, Array] = {}
    wanted = set(final.tolist())
    last = np.full(shape, -np.inf)
    uses = Counter(w for waits in graph.waits for w in waits)
    for members, _, synced in graph.plan:
        starts = []
        for i in members:
            start = np.zeros(shape)
            if graph.waits[i]:
                start = np.maximum.reduce([ends[w] for w in graph.waits[i]])
            starts.append(start + of_cases(i, 1))
        grouped = graph.group_of[members[0]] >= 0
        begin = np.maximum.reduce(starts) if grouped else starts[0]
        if synced:
            begin = begin.max(axis=1, keepdims=True)
        for i in members:
            ends[i] = np.broadcast_to(begin + of_cases(i, 0), shape)
            if i in wanted:
                np.maximum(last, ends[i], out=last)
        for i in members:
            for w in graph.waits[i]:
                uses[w] -= 1
                if not uses[w]:
                    del ends[w]
    ended: Array = last.max(axis=1)
    return ended
