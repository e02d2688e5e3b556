"""How long the operations of a run's steps were and would be without stragglers, and their replay with other lengths.

An operation starts when all that it waits for has ended, plus its launch delay. A block then takes its length; the
members of a communication group end their own lengths after the last of them has started. The rules are those of the
straggler study (arXiv 2505.05713, sections 3 and 4, and its artifact).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from trace_export.pipeline.operations import Operations
from trace_export.pipeline.recorded_operations import seconds
from trace_export.schedules.longest_path import Array, Floats, Patch, Scenarios, last_ends
from trace_export.schedules.operation_types import COLLECTIVE, LN, TYPICAL_IS_MEDIAN, B, W
from trace_export.schedules.step_graph import Ints, StepGraph

Number = TypeVar("Number", bound=npt.NDArray[Any])

LATE_S = 1e-2
"""A length or delay below minus this is due to clocks that disagree, and counts as 0 (the study's 10 ms)."""


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
    if operations.recorded_from_ns is not None:
        start, late = seconds(operations.start_ns - operations.recorded_from_ns), np.float32(LATE_S)
        duration = seconds(operations.end_ns - operations.start_ns)
    end = start + duration
    length, launch = split(operations.graph, start, end, duration)
    length[length <= -late] = 0
    launch[launch <= -late] = 0
    return Lengths(length, launch, ideal_lengths(operations, length), end.max(axis=(0, 1)) - start.min(axis=(0, 1)))


def split(graph: StepGraph, start: Number, end: Number, duration: Number) -> tuple[Number, Number]:
    """Length and launch delay of each operation, such that the recurrence gives its start and end again. `duration` is
    overwritten by the length."""
    length = duration
    if graph.groups:
        sizes = [len(g) for g in graph.groups]
        members = [i for g in graph.groups for i in g]
        begun = _latest(start, np.array(members), np.cumsum([0, *sizes]))
        synced = np.array(graph.synced, np.bool_)
        begun[synced] = begun[synced].max(axis=1, keepdims=True)
        length[members] = end[members] - np.repeat(begun, sizes, axis=0)
    ready = np.broadcast_to(start.min(axis=(0, 1)), end.shape).copy()
    waiting = np.flatnonzero(np.diff(graph.first))
    if len(waiting):
        ready[waiting] = _latest(end, graph.needed, np.append(graph.first[waiting], len(graph.needed)))
    return length, start - ready


def _latest(times: npt.NDArray[Any], operations: Ints, first: Ints) -> npt.NDArray[Any]:
    """The latest of each group of `operations`, from one of `first` to the next, none of which is empty. By the places
    in the groups, most of which are short: a ninth of the time of `numpy.maximum.reduceat`."""
    sizes = np.diff(first)
    latest = times[operations[first[:-1]]]
    for place in range(1, int(sizes.max(initial=0))):
        longer = np.flatnonzero(sizes > place)
        latest[longer] = np.maximum(latest[longer], times[operations[first[longer] + place]])
    return latest


def ideal_lengths(operations: Operations, length: Floats) -> Array:
    """The length of each operation without stragglers: the mean of its type over all replicas, stages and steps, of
    communication the median. A backward whose weight gradient is a block of its own is a type apart, and so is each
    collective of a step, which may move more than another, where the study's tables do not say what is alike."""
    ideal = np.zeros(len(operations.types))
    numbers = list(zip(*(getattr(operations, c).tolist() for c in ("stage", "chunk", "microbatch")), strict=True))
    split_off = {numbers[i] for i, name in enumerate(operations.types) if name == W}
    alike: dict[tuple[str, int], list[int]] = {}
    for i, name in enumerate(operations.types):
        apart = int(name == B and numbers[i] in split_off)
        if name in COLLECTIVE and not operations.single:
            apart = int(operations.sequence[i])
        alike.setdefault((name, apart), []).append(i)
    for (name, _), rows in alike.items():
        values = length[rows].astype(np.float64)
        if name not in TYPICAL_IS_MEDIAN:
            ideal[rows] = values.mean()
        else:
            middle = np.median(values)
            ideal[rows] = np.float32(middle) if operations.single and name != LN else middle
    return ideal


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
    count = len(graph)
    patches: list[list[Patch]] = [[] for _ in range(2 * count)]
    for case, change in enumerate(changes):
        for i, (new, delay) in change.items():
            patches[i].append((case, new))
            patches[count + i].append((case, delay))
    watch = np.zeros(2 * count, np.bool_)
    watch[final] = True
    scenarios = Scenarios(len(changes), [*length, *launch], patches)
    nowhere = [False] * (2 * count)
    ends = last_ends(graph.with_delays, scenarios, (length.shape[1], length.shape[2]), nowhere, watch.tolist())
    latest: Array = ends.watched.max(axis=1)
    return latest
