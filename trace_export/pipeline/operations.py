"""What a training step consists of, for all steps and replicas at once: the operations, their times, and their graph.

Operation i is the same work in every replica and step: a micro-batch's forward on a stage, the send after it, the
optimizer. Steps whose operations differ from those of most steps are left out, which `left_out` says.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from trace_export.schedules.step_graph import Ints, StepGraph

Times = npt.NDArray[np.int64]
Step = tuple[int | None, int | None]
"""The run and the step; None where the profile does not number them."""


@dataclass(frozen=True)
class LeftOut:
    """`parts` recorded parts of the collective `op` that are no operations of the steps, and why."""

    op: str
    parts: int
    reason: str


@dataclass(frozen=True)
class Part:
    """Some of the operations, numbered from 0, with arrays as in `Operations` (-1: none)."""

    types: list[str]
    stage: Ints
    start_ns: Times
    end_ns: Times
    numbers: dict[str, Ints] = field(default_factory=dict)
    """chunk, microbatch, peer and sequence, as far as they have them."""
    groups: Sequence[Sequence[int]] = ()
    synced: Sequence[bool] = ()

    def __len__(self) -> int:
        return len(self.types)


def numbers_of(parts: Sequence[Part], name: str, default: int = -1) -> Ints:
    """The numbers of all `parts`, one after the other."""
    return np.concatenate([part.numbers.get(name, np.full(len(part), default)) for part in parts])


def groups_of(parts: Sequence[Part]) -> tuple[list[list[int]], list[bool]]:
    """The groups of all `parts`, whose operations are numbered one after the other; and whether each is synced."""
    firsts = np.cumsum([0, *map(len, parts)]).tolist()
    groups = [[first + i for i in group] for first, part in zip(firsts, parts, strict=False) for group in part.groups]
    return groups, [synced for part in parts for synced in part.synced]


@dataclass(frozen=True)
class Operations:
    """`types` (see `schedules.operation_types`), `stage`, `chunk`, `microbatch` (-1: none), `sequence` (among those
    with the same numbers) and `peer` (the stage on the other side of a transfer, -1: none) are per operation.

    `start_ns`, `end_ns`: operation × replica × step, from `origin_ns`, the first start of the step. `span`: the row of
    the block in the profile's `spans`, -1 for what is no block. `ranks`: replica × stage; `replicas`: their names, the
    data-parallel numbers where they are known; `steps`: (run, step). `loss_stages`: the stages at whose end the loss
    is computed. `recorded_from_ns`: the moment of each step from which its times were recorded as 32-bit seconds, from
    `origin_ns` too; None: they were recorded otherwise. `level`: what was
    recorded: all `operations`; blocks and `messages`; or `blocks` only, and transfers are estimated. `circular`:
    what points back in time was left out of the graph, for the blocks waited for each other in a circle. `left_out`:
    steps that are not here, and why; `without`: collectives that are not. `missing`: what a source that records every
    operation did not, such as a type of operation.
    """

    types: list[str]
    stage: Ints
    chunk: Ints
    microbatch: Ints
    sequence: Ints
    start_ns: Times
    end_ns: Times
    origin_ns: Times
    span: Ints
    peer: Ints
    ranks: Ints
    replicas: list[int]
    steps: list[Step]
    graph: StepGraph
    loss_stages: tuple[int, ...]
    recorded_from_ns: Times | None = None
    level: str = "blocks"
    circular: bool = False
    left_out: tuple[tuple[int | None, int | None, str], ...] = ()
    without: tuple[LeftOut, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def stages(self) -> int:
        return int(self.ranks.shape[1])

    @property
    def single(self) -> bool:
        """Whether the times were recorded as 32-bit seconds."""
        return self.recorded_from_ns is not None

    def of_steps(self, wanted: Collection[Step]) -> Operations:
        """Only the steps (run, step) of `wanted`."""
        at = [n for n, step in enumerate(self.steps) if step in wanted]
        if len(at) == len(self.steps):
            return self
        return replace(
            self, start_ns=self.start_ns[:, :, at], end_ns=self.end_ns[:, :, at], origin_ns=self.origin_ns[at],
            recorded_from_ns=None if self.recorded_from_ns is None else self.recorded_from_ns[at],
            span=self.span[:, :, at], steps=[self.steps[n] for n in at],
            left_out=tuple(row for row in self.left_out if row[:2] in wanted),
        )  # fmt: skip
