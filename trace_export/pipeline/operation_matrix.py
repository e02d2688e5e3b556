"""Rows of operations → operation × replica × step, for the steps that consist of the same operations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trace_export.schedules.step_graph import Ints

Numbers = npt.NDArray[np.int64] | npt.NDArray[np.int32]

PART = 1 << 18
"""Rows that are put in place at a time."""

DENSE = 4
"""Keys are counted where the largest is at most so many times their number."""


@dataclass(frozen=True)
class Matrix:
    """`keys`: the key of each operation, ascending. `row`: operation × replica × step, the row of each. `steps`: which
    of the steps they are."""

    keys: Ints
    row: Ints
    steps: Ints


def matrices(key: Ints, replica: Numbers, step: Numbers) -> tuple[list[Matrix], Ints]:
    """The rows of each kind of step, the most frequent kind first, and the steps whose replicas differ.

    The rows with the same `key` are the same operation, in each replica (0, 1, …) and step (0, 1, …). A step is of a
    kind by the operations that all of its replicas have, each once.
    """
    keys, operation = distinct(key)
    shape = len(keys), int(replica.max(initial=-1)) + 1, int(step.max(initial=-1)) + 1
    kinds, odd = _kinds(operation, replica, step, shape)
    return [_matrix(keys, operation, replica, step, steps) for steps in kinds], odd


def distinct(values: Ints) -> tuple[Ints, Numbers]:
    """The different values in ascending order, and the place of each value among them. Numbers from 0, as keys are, are
    counted and not sorted where they are not much more than there are values."""
    most = int(values.max(initial=-1)) + 1
    if int(values.min(initial=0)) < 0 or most > min(DENSE * len(values), 1 << 31):
        keys, place = np.unique(values, return_inverse=True)
        return keys, place.astype(np.int64).reshape(-1)
    there = np.zeros(most, np.bool_)
    there[values] = True
    places = np.cumsum(there, dtype=np.int32) - np.int32(1)
    return np.flatnonzero(there), places[values]


def _matrix(keys: Ints, operation: Numbers, replica: Numbers, step: Numbers, steps: Ints) -> Matrix:
    inside = np.zeros(int(step.max()) + 1, np.bool_)
    inside[steps] = True
    number = np.cumsum(inside) - 1
    there = np.zeros(len(keys), np.bool_)
    for part in _parts(len(step)):
        there[operation[part][inside[step[part]]]] = True
    place = np.cumsum(there) - 1
    row = np.empty((int(there.sum()), int(replica.max()) + 1, len(steps)), np.int64)
    for part in _parts(len(step)):
        rows = part.start + np.flatnonzero(inside[step[part]])
        row[place[operation[rows]], replica[rows], number[step[rows]]] = rows
    return Matrix(keys[there], row, steps)


def _parts(rows: int) -> Iterator[slice]:
    """All rows, some at a time: of all at once the numbers in between would take more memory than the rows."""
    return (slice(at, min(at + PART, rows)) for at in range(0, rows, PART))


def _kinds(operation: Numbers, replica: Numbers, step: Numbers, shape: tuple[int, int, int]) -> tuple[list[Ints], Ints]:
    """The steps of each kind, and those of none."""
    operations, replicas, steps = shape
    if len(operation) == operations * replicas * steps:
        seen = np.zeros(shape, np.bool_)
        for part in _parts(len(operation)):
            seen[operation[part], replica[part], step[part]] = True
        if seen.all():
            return [np.arange(steps)] if steps else [], np.zeros(0, np.int64)
    order = np.lexsort((operation, replica, step))
    bounds = np.searchsorted(step[order], np.arange(steps + 1))
    kinds: dict[bytes, list[int]] = {}
    odd = []
    for number in range(steps):
        rows = order[bounds[number] : bounds[number + 1]]
        size, rest = divmod(len(rows), replicas)
        here = operation[rows]
        regular = size and not rest and (replica[rows] == np.repeat(np.arange(replicas), size)).all()
        if regular and (here.reshape(replicas, size) == here[:size]).all() and (np.diff(here[:size]) > 0).all():
            kinds.setdefault(here[:size].tobytes(), []).append(number)
        elif len(rows):
            odd.append(number)
    found = sorted(kinds.values(), key=lambda steps: (-len(steps), steps[0]))
    return [np.array(steps) for steps in found], np.array(odd, np.int64)


def sequence_numbers(lane: Ints, start: npt.NDArray[np.int64] | None = None) -> Numbers:
    """The place of each row among those of its `lane`, by `start`, else as they come."""
    order = np.argsort(lane, kind="stable") if start is None else np.lexsort((start, lane))
    ordered = lane[order]
    first = np.append(True, ordered[1:] != ordered[:-1])
    del ordered
    place = np.arange(len(lane), dtype=np.int32)
    begun = np.where(first, place, np.int32(0))
    place -= np.maximum.accumulate(begun, out=begun)
    del begun
    number = np.empty_like(place)
    number[order] = place
    return number
