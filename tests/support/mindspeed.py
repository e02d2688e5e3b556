"""DualPipeV as MindSpeed runs it, and what msprof-analyze's StepTaskInfo calls each block: name and type of the phase.

Counts of each phase: MindSpeed's dualpipev_schedules.py. Weight gradients are apart in one phase only.
"""

from samples.generators.pipeline import Operation

Named = tuple[Operation, str, int]


class _Stage:
    """Counts forwards and backwards of both chunks while the order is written down."""

    def __init__(self, stage: int, microbatches: int, fused: bool) -> None:
        self.first, self.microbatches, self.fused = stage == 0, microbatches, fused
        self.forwards, self.backwards = [0, 0], [0, 0]
        self.named: list[Named] = []

    def forward(self, chunk: int, phase: int, name: str = "{}") -> None:
        m = self.forwards[chunk]
        self.forwards[chunk] += 1
        number = m + chunk * self.microbatches
        self.named.append((Operation("F", m, chunk), name.format(number), phase))

    def backward(self, chunk: int, phase: int, name: str = "{}B") -> int:
        m = self.backwards[chunk]
        self._loss_head(chunk, m, phase)
        self.backwards[chunk] += 1
        number = m + chunk * self.microbatches
        self.named.append((Operation("B", m, chunk), name.format(number), phase))
        return m

    def weight(self, chunk: int, microbatch: int, phase: int) -> None:
        name = f"{microbatch + chunk * self.microbatches}w"
        self.named.append((Operation("W", microbatch, chunk), name, phase))

    def pair(self, forward: int, backward: int, phase: int) -> None:
        if not self.fused:
            self.forward(forward, phase)
            self.backward(backward, phase)
            return
        f, b = self.forwards[forward], self.backwards[backward]
        self._loss_head(backward, b, phase)
        self.forwards[forward] += 1
        self.backwards[backward] += 1
        name = f"{f + forward * self.microbatches}F+{b + backward * self.microbatches}B"
        self.named.append((Operation("FB", f, forward, b, backward), name, phase))

    def _loss_head(self, chunk: int, microbatch: int, phase: int) -> None:
        """With fused blocks the first stage marks the backward of the loss head before each backward of chunk 1."""
        if self.first and chunk == 1 and self.fused:
            self.named.append((Operation("L", microbatch, chunk), "logits", phase))


def dualpipev(stages: int, microbatches: int, *, fused: bool = True) -> list[list[Named]]:
    """The blocks of each stage; `fused`: with moe_fb_overlap."""
    return [_order(stage, stages, microbatches, fused) for stage in range(stages)]


def _order(stage: int, stages: int, microbatches: int, fused: bool) -> list[Named]:
    run = _Stage(stage, microbatches, fused)
    for _ in range(2 * (stages - 1 - stage)):
        run.forward(0, 0)
    for _ in range(stage + 1):
        run.forward(0, 1)
        run.forward(1, 1)
    for _ in range(stages - stage - 1):
        run.weight(1, run.backward(1, 2, "{}b"), 2)
        run.forward(1, 2)
    for place in range(microbatches - 2 * stages + stage + 1):
        if stage == stages - 1 and place == 0:
            run.forward(0, 3, "{}F")
            run.backward(1, 3)
        else:
            run.pair(0, 1, 3)
        run.pair(1, 0, 3)
    for _ in range(stages - stage - 1):
        run.backward(1, 4)
        run.pair(1, 0, 4)
    chunk = 1
    for _ in range(stage + 1):
        run.backward(chunk, 5)
        chunk = 1 - chunk
    while min(run.backwards) < microbatches:
        if run.backwards[chunk] >= microbatches:
            chunk = 1 - chunk
        run.backward(chunk, 6)
        chunk = 1 - chunk
    return run.named
