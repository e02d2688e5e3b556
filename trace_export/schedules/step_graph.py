"""The operations of a schedule as a graph: what each waits for. The measured graph of a run is in `steps`.

An operation is a block or a transfer; a block's number is its row in `Schedule.ops`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Array = npt.NDArray[np.float64]


class CircleError(ValueError):
    """Operations wait for each other in a circle; `operation`: the first that never starts."""

    def __init__(self, operation: int) -> None:
        super().__init__("the operations of the step wait for each other in a circle")
        self.operation = operation


class Level(NamedTuple):
    """Operations that wait only for those of the levels before: operation k of `operations` for `needed` from
    `first[k]` to that of the next, where the number of all operations stands for the start of the step."""

    operations: Ints
    needed: Ints
    first: Ints


@dataclass(frozen=True, eq=False)
class StepGraph:
    """Operation i starts once `needed[first[i] : first[i + 1]]` have ended."""

    needed: Ints
    first: Ints

    @staticmethod
    def of_pairs(operations: int, pairs: tuple[Ints, Ints]) -> StepGraph:
        """The graph of this many operations in which `pairs[0][n]` waits for `pairs[1][n]`."""
        waiting, needed = pairs
        first = np.append(0, np.cumsum(np.bincount(waiting, minlength=operations)))
        return StepGraph(needed[np.argsort(waiting, kind="stable")], first)

    @property
    def pairs(self) -> tuple[Ints, Ints]:
        """The operation that waits and the one that it waits for, of each dependency."""
        return np.repeat(np.arange(len(self)), np.diff(self.first)), self.needed

    def __len__(self) -> int:
        return len(self.first) - 1

    def start_and_end(self, length: Array) -> tuple[Array, Array]:
        """Start and end of each operation, from 0, exact for whole numbers: an operation starts when all that it waits
        for have ended, and ends its length later.

        `length` has a row per operation; a second axis is of cases that run at once. O(levels) calls of numpy. Raises
        CircleError.
        """
        start, end = np.empty(length.shape), np.zeros((len(length) + 1, *length.shape[1:]))
        for operations, needed, first in self.levels:
            begin = np.maximum.reduceat(end[needed], first, axis=0)
            start[operations] = begin
            end[operations] = begin + length[operations]
        return start, end[:-1]

    @cached_property
    def levels(self) -> list[Level]:
        """The operations in the fewest levels. Raises CircleError where they wait for each other in a circle.

        Example: operations 1 and 2 wait for 0, and 3 for both. The levels are 0, then 1 and 2, then 3.
        """
        waiting, needed = self.pairs
        rounds = list(_rounds(needed, waiting, len(self)))
        placed = np.zeros(len(self), np.bool_)
        operations = np.concatenate([*rounds, np.zeros(0, np.int64)])
        placed[operations] = True
        if not placed.all():
            raise CircleError(int(np.flatnonzero(~placed)[0]))
        counts = np.diff(self.first)[operations]
        first = np.append(0, np.cumsum(np.maximum(counts, 1)))
        needed = np.full(first[-1], len(self))
        needed[_ranges(first[:-1], counts)] = self.needed[_ranges(self.first[operations], counts)]
        cuts = np.cumsum([0, *map(len, rounds)]).tolist()
        return [Level(operations[a:b], needed[first[a] : first[b]], first[a:b] - first[a]) for a, b in pairwise(cuts)]


def _rounds(before: Ints, after: Ints, nodes: int) -> Iterator[Ints]:
    """The nodes 0, 1, … in rounds, each as soon as all have been that it comes after; those in a circle never."""
    order = np.argsort(before, kind="stable")
    after_each, count = after[order], np.bincount(before, minlength=nodes)
    first = np.cumsum(count) - count
    left = np.bincount(after, minlength=nodes)
    chosen, numbers = np.empty(nodes, np.int64), np.arange(max(len(before), nodes))
    front = np.flatnonzero(left == 0)
    while len(front):
        yield front
        reached = after_each[_ranges(first[front], count[front])]
        np.subtract.at(left, reached, 1)
        ready = reached[left[reached] == 0]
        chosen[ready] = numbers[: len(ready)]
        front = ready[chosen[ready] == numbers[: len(ready)]]  # each once


def _ranges(first: Ints, sizes: Ints) -> Ints:
    """The numbers from each of `first`, as many as `sizes` says, one after the other."""
    ends = sizes.cumsum()
    return np.repeat(first - ends + sizes, sizes) + np.arange(ends[-1] if len(ends) else 0)
