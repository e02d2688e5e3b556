"""The operations of a training step as a graph: what each waits for, and which end together.

The simulation of schedules, what-if and critical path run over this one graph. An operation is a block, one side of a
transfer, one rank's part of a collective; its number is its row in `Schedule.ops` or in
`pipeline.operations.Operations`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


class CircleError(ValueError):
    """Operations wait for each other in a circle; `operation`: the first that never starts."""

    def __init__(self, operation: int) -> None:
        super().__init__("the operations of the step wait for each other in a circle")
        self.operation = operation


class Node(NamedTuple):
    """An operation, or those of a group, that begin together: once all operations of `needs` have ended.

    `synced`: once they have ended in all replicas.
    """

    members: list[int]
    needs: list[int]
    synced: bool


class Level(NamedTuple):
    """Operations that wait only for those of the levels before: operation k of `operations` for `needed` from
    `first[k]` to that of the next, where the number of all operations stands for the start of the step."""

    operations: Ints
    needed: Ints
    first: Ints


@dataclass(frozen=True, eq=False)
class StepGraph:
    """Operation i starts once `needed[first[i] : first[i + 1]]` have ended. `groups`: communication, whose members end
    after the last of them has started; `synced[g]`: the last in all replicas. An operation is in one group at most."""

    needed: Ints
    first: Ints
    groups: Sequence[Sequence[int]] = ()
    synced: Sequence[bool] = ()

    @staticmethod
    def of_pairs(
        operations: int, pairs: tuple[Ints, Ints], groups: Sequence[Sequence[int]] = (), synced: Sequence[bool] = ()
    ) -> StepGraph:
        """The graph of so many operations in which `pairs[0][n]` waits for `pairs[1][n]`."""
        waiting, needed = pairs
        first = np.append(0, np.cumsum(np.bincount(waiting, minlength=operations)))
        return StepGraph(needed[np.argsort(waiting, kind="stable")], first, groups, synced)

    @property
    def pairs(self) -> tuple[Ints, Ints]:
        """The operation that waits and the one that it waits for, of each dependency."""
        return np.repeat(np.arange(len(self)), np.diff(self.first)), self.needed

    def __len__(self) -> int:
        return len(self.first) - 1

    @cached_property
    def waits(self) -> list[list[int]]:
        """What each operation waits for."""
        needed, first = self.needed.tolist(), self.first.tolist()
        return [needed[a:b] for a, b in pairwise(first)]

    @cached_property
    def group_of(self) -> Ints:
        """The group of each operation, -1 where it is in none."""
        group = np.full(len(self), -1, np.int64)
        for number, members in enumerate(self.groups):
            group[list(members)] = number
        return group

    @cached_property
    def with_delays(self) -> StepGraph:
        """The graph with the launch delay of operation i as operation len(self) + i, for which i waits."""
        every, delays = np.arange(len(self)), np.arange(len(self)) + len(self)
        waiting, needed = self.pairs
        pairs = np.concatenate([waiting + len(self), every]), np.concatenate([needed, delays])
        return StepGraph.of_pairs(2 * len(self), pairs, self.groups, self.synced)

    @cached_property
    def _node_of(self) -> Ints:
        """The number of the node of each operation: the groups first, then the operations by themselves."""
        alone = self.group_of < 0
        return np.where(alone, len(self.groups) + np.cumsum(alone) - 1, self.group_of)

    @cached_property
    def _rounds(self) -> list[Ints]:
        """The nodes, each in the first round in which it can run. Raises CircleError."""
        waiting, needed = self.pairs
        nodes = int(self._node_of.max(initial=-1)) + 1
        rounds = list(_rounds(self._node_of[needed], self._node_of[waiting], nodes))
        placed = np.zeros(nodes, np.bool_)
        for part in rounds:
            placed[part] = True
        if not placed.all():
            raise CircleError(int(np.flatnonzero(~placed[self._node_of])[0]))
        return rounds

    @cached_property
    def levels(self) -> list[Level]:
        """The operations in the fewest levels, where none is in a group. Raises CircleError where they wait for each
        other in a circle."""
        if self.groups:
            raise ValueError("levels are of operations that are in no group")
        operations = np.concatenate([*self._rounds, np.zeros(0, np.int64)])
        counts = np.diff(self.first)[operations]
        first = np.append(0, np.cumsum(np.maximum(counts, 1)))
        needed = np.full(first[-1], len(self))
        needed[_ranges(first[:-1], counts)] = self.needed[_ranges(self.first[operations], counts)]
        cuts = np.cumsum([0, *map(len, self._rounds)]).tolist()
        return [Level(operations[a:b], needed[first[a] : first[b]], first[a:b] - first[a]) for a, b in pairwise(cuts)]

    @cached_property
    def plan(self) -> list[Node]:
        """All operations in an order in which they can run, groups as one. Raises CircleError for a circle.

        Of the operations that a node needs, those are left out for which another one of them, which is no
        communication, has waited already: that changes no maximum where no length is negative.
        """
        alone, waits = (self.group_of < 0).tolist(), self.waits
        operations = [*self.groups, *([i] for i, by_itself in enumerate(alone) if by_itself)]
        plan = []
        for n in np.concatenate([*self._rounds, np.zeros(0, np.int64)]).tolist():
            members = list(operations[n])
            needs = dict.fromkeys(w for i in members for w in waits[i])
            implied = {w for need in needs if alone[need] for w in waits[need]}
            synced = n < len(self.groups) and self.synced[n]
            plan.append(Node(members, [w for w in needs if w not in implied], synced))
        return plan

    @property
    def is_acyclic(self) -> bool:
        """Whether the operations can run."""
        try:
            return bool(self._rounds) or not len(self)
        except CircleError:
            return False


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


class Waits:
    """What the operations of a `StepGraph` under construction wait for."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[int, int], None] = {}

    def add(self, operation: int, *needed: int) -> None:
        self._pairs.update(((operation, one), None) for one in needed)

    def chain(self, operations: Iterable[int]) -> None:
        """Each of `operations` waits for the one before."""
        for before, operation in pairwise(operations):
            self.add(operation, before)

    def graph(self, operations: int, groups: Sequence[Sequence[int]] = (), synced: Sequence[bool] = ()) -> StepGraph:
        """The graph of so many operations."""
        waiting, needed = np.array(list(self._pairs), np.int64).reshape(-1, 2).T
        return StepGraph.of_pairs(operations, (waiting, needed), groups, synced)
