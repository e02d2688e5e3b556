"""What a training step consists of, for all steps and replicas at once: the operations, their times, and their graph.

Operation i is the same work in every replica and step: a micro-batch's forward on a stage, the send after it, the
optimizer. Steps whose operations differ from those of most steps are left out, which `left_out` says.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from trace_export.schedules.step_graph import Ints, StepGraph

Times = npt.NDArray[np.int64]
Step = tuple[int | None, int | None]
"""The run and the step; None where the profile does not number them."""


@dataclass(frozen=True)
class Operations:
    """`types` (see `schedules.operation_types`), `stage`, `chunk`, `microbatch` (-1: none), `sequence` (among those
    with the same numbers) and `peer` (the stage on the other side of a transfer, -1: none) are per operation.

    `start_ns`, `end_ns`: operation × replica × step, from `origin_ns`, the first start of the step. `span`: the row of
    the block in the profile's `spans`, -1 for what is no block. `ranks`: replica × stage; `replicas`: their names, the
    data-parallel numbers where they are known; `steps`: (run, step). `loss_stages`: the stages at whose end the loss
    is computed. `single`: the times were recorded as 32-bit seconds from the start of the step. `level`: what was
    recorded: all `operations`; blocks and `messages`; or `blocks` only, and transfers are estimated. `circular`:
    what points back in time was left out of the graph, for the blocks waited for each other in a circle. `left_out`:
    steps that are not here, and why.
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
    single: bool = False
    level: str = "blocks"
    circular: bool = False
    left_out: tuple[tuple[int | None, int | None, str], ...] = ()

    @property
    def stages(self) -> int:
        return int(self.ranks.shape[1])

    def of_steps(self, wanted: Collection[Step]) -> Operations:
        """Only the steps (run, step) of `wanted`."""
        at = [n for n, step in enumerate(self.steps) if step in wanted]
        if len(at) == len(self.steps):
            return self
        return replace(
            self, start_ns=self.start_ns[:, :, at], end_ns=self.end_ns[:, :, at], origin_ns=self.origin_ns[at],
            span=self.span[:, :, at], steps=[self.steps[n] for n in at],
            left_out=tuple(row for row in self.left_out if row[:2] in wanted),
        )  # fmt: skip
