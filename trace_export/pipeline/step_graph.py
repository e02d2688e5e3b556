"""The operations of a training step as a graph: what each waits for, and which end together.

Simulation, what-if and critical path walk over this one graph. An operation is a block, one side of a transfer, one
rank's part of a collective; its number is its row in `pipeline.operations.Operations`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


class Node(NamedTuple):
    """An operation, or those of a group, that begin together: once all operations of `needs` have ended.

    `synced`: once they have ended in all replicas.
    """

    members: list[int]
    needs: list[int]
    synced: bool


@dataclass(frozen=True)
class StepGraph:
    """`waits[i]`: the operations that must have ended before operation i starts. `groups`: communication, whose members
    end after the last of them has started; `synced[g]`: the last in all replicas. An operation is in one group at
    most."""

    waits: Sequence[Sequence[int]]
    groups: Sequence[Sequence[int]]
    synced: Sequence[bool]

    @cached_property
    def group_of(self) -> Ints:
        """The group of each operation, -1 where it is in none."""
        group = np.full(len(self.waits), -1, np.int64)
        for number, members in enumerate(self.groups):
            group[list(members)] = number
        return group

    @cached_property
    def plan(self) -> list[Node]:
        """All operations in an order in which they can run, groups as one. Raises ValueError for a circle.

        Of the operations that a node needs, those are left out for which another one of them, which is no
        communication, has waited already: that changes no maximum where no length is negative.
        """
        nodes = [list(g) for g in self.groups] + [[i] for i in np.flatnonzero(self.group_of < 0).tolist()]
        node_of = {i: n for n, members in enumerate(nodes) for i in members}
        needs = [list(dict.fromkeys(w for i in members for w in self.waits[i])) for members in nodes]
        order = _sorted([{node_of[w] for w in need} for need in needs])
        alone = self.group_of < 0
        plan = []
        for n in order:
            implied = {w for need in needs[n] if alone[need] for w in self.waits[need]}
            synced = n < len(self.groups) and self.synced[n]
            plan.append(Node(nodes[n], [w for w in needs[n] if w not in implied], synced))
        return plan

    @property
    def is_acyclic(self) -> bool:
        """Whether there is a `plan`."""
        try:
            return bool(self.plan) or not self.waits
        except ValueError:
            return False


def _sorted(before: list[set[int]]) -> list[int]:
    """The numbers of `before` in an order in which each comes after those it names. Raises ValueError for a circle."""
    count = [len(b) for b in before]
    after: list[list[int]] = [[] for _ in before]
    for n, sources in enumerate(before):
        for source in sources:
            after[source].append(n)
    ready = [n for n, c in enumerate(count) if not c]
    order = []
    while ready:
        n = ready.pop()
        order.append(n)
        for m in after[n]:
            count[m] -= 1
            if not count[m]:
                ready.append(m)
    if len(order) != len(before):
        raise ValueError("the operations of the step wait for each other in a circle")
    return order


class Waits:
    """The `waits` of a `StepGraph` under construction."""

    def __init__(self, operations: int) -> None:
        self._of: list[dict[int, None]] = [{} for _ in range(operations)]

    def add(self, operation: int, *needed: int) -> None:
        self._of[operation].update(dict.fromkeys(needed))

    def chain(self, operations: Iterable[int]) -> None:
        """Each of `operations` waits for the one before."""
        before = None
        for operation in operations:
            if before is not None:
                self.add(operation, before)
            before = operation

    def lists(self) -> list[list[int]]:
        return [list(waits) for waits in self._of]
