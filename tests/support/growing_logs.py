"""A Paddle job that runs: its worker logs grow by a step at a time."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from samples.generators.paddle import Job, log
from samples.generators.pipeline import Block


@dataclass(frozen=True)
class GrowingLogs:
    """The logs of `job` below `folder`. `write` appends the next steps of some ranks."""

    folder: Path
    job: Job

    @cached_property
    def blocks(self) -> list[Block]:
        """Of all steps and ranks, on the true clock."""
        return self.job.blocks()

    def path(self, rank: int) -> Path:
        machine, worker = divmod(rank, self.job.workers)
        return (self.folder / f"machine{machine}" if self.job.machines > 1 else self.folder) / f"workerlog.{worker}"

    def text(self, rank: int, step: int) -> str:
        steps = self.job.steps
        announced = f"INFO:root:Schedule Profiler start at step {steps.start} and end at step {steps.stop}\n"
        of_step = log(replace(self.job, steps=range(step, step + 1), announced=False), self.blocks, rank)
        return (announced if self.job.announced else "") + of_step

    def write(self, *steps: int, ranks: range | None = None) -> None:
        """Appends `steps` to the logs of `ranks` (None: all)."""
        for rank in range(self.job.ranks) if ranks is None else ranks:
            self.path(rank).parent.mkdir(parents=True, exist_ok=True)
            with self.path(rank).open("a", encoding="utf-8") as file:
                file.writelines(self.text(rank, step) for step in steps)
