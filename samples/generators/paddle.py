"""Write Paddle worker logs of a made-up 1F1B run, with the truth beside them.

    python -m samples.generators.paddle          # writes samples/paddle/single and samples/paddle/two_machines again

The logs look like those of `paddle.distributed.launch`: free text, progress bars, and one record per job in the order
in which the executor launches them. Times obey the pipeline's dependencies; every machine's clock may be off.
"""

from __future__ import annotations

import csv
import random
from dataclasses import dataclass
from pathlib import Path

EPOCH_US = 1_760_000_000_000_000
FORWARD_US, BACKWARD_US, OPTIMIZER_US, HOP_US, GAP_US = 9_000, 17_500, 21_000, 600, 4_000


@dataclass(frozen=True)
class Block:
    """One job as it really ran; times in microseconds of the true clock."""

    rank: int
    step: int
    kind: str
    microbatch: int
    start_us: int
    end_us: int


def order(stage: int, stages: int, microbatches: int) -> list[tuple[str, int]]:
    """1F1B: stages - stage forwards first, then one backward and one forward in turn, then the backwards left."""
    ahead = min(stages - stage, microbatches)
    jobs = [("F", m) for m in range(ahead)]
    for m in range(microbatches):
        jobs.append(("B", m))
        if ahead + m < microbatches:
            jobs.append(("F", ahead + m))
    return jobs


def simulate(stages: int, microbatches: int, steps: int, first_step: int, chance: random.Random) -> list[Block]:
    """Blocks of all ranks (one rank a stage): a job starts when its rank is free and its input has arrived."""
    blocks: list[Block] = []
    free = [EPOCH_US] * stages
    for step in range(first_step, first_step + steps):
        todo = [order(s, stages, microbatches) for s in range(stages)]
        ends: dict[tuple[str, int, int], int] = {}
        while any(todo):
            for stage in range(stages):
                while todo[stage]:
                    kind, microbatch = todo[stage][0]
                    before = stage - 1 if kind == "F" else stage + 1
                    needed = ends.get((kind, before, microbatch)) if 0 <= before < stages else 0
                    if needed is None:
                        break
                    length = FORWARD_US if kind == "F" else BACKWARD_US
                    start = max(free[stage], needed + HOP_US) + chance.randrange(20, 120)
                    end = start + length + chance.randrange(-400, 400)
                    ends[kind, stage, microbatch] = free[stage] = end
                    blocks.append(Block(stage, step, kind, microbatch, start, end))
                    todo[stage].pop(0)
        for stage in range(stages):
            start = max(free) + chance.randrange(50, 250)
            blocks.append(Block(stage, step, "OPT", 0, start, start + OPTIMIZER_US))
        free = [max(free) + OPTIMIZER_US + GAP_US] * stages
    return blocks


def record(thread: int, block: Block, clock_error_us: int) -> str:
    """The executor's line; the digits below a microsecond are the noise of its double."""
    job = {"F": "forward", "B": "backward", "OPT": "optimizer"}[block.kind]
    start, end = ((t + clock_error_us) / 1000 for t in (block.start_us, block.end_us))
    return (
        f"I1009 08:53:20.000000 {thread:5d} standalone_executor.cc:246] Profiler Info: "
        f"Job ({block.microbatch}), type = {job}, micro_batch_id = {block.microbatch}, "
        f"job_start_time = {start:.6f}, job_end_time = {end:.6f}\n"
    )


def write(
    folder: Path,
    *,
    stages: int = 4,
    microbatches: int = 8,
    steps: int = 3,
    machines: int = 1,
    clock_errors_us: tuple[int, ...] = (0,),
    first_step: int = 2,
    seed: int = 1,
) -> list[Block]:
    """Logs of one run below `folder`: `machineN/` folders when there are several machines. Returns the truth."""
    blocks = simulate(stages, microbatches, steps, first_step, random.Random(seed))
    per_machine = stages // machines
    for rank in range(stages):
        machine, worker = divmod(rank, per_machine)
        place = folder / f"machine{machine}" if machines > 1 else folder
        place.mkdir(parents=True, exist_ok=True)
        lines = ["LAUNCH INFO -----------  Configuration  ----------------------\n", "loading checkpoint shards\n"]
        for step in range(first_step, first_step + steps):
            bar = f"  {step * 10}%|#         | {step}/10 [00:0{step}<00:09,  2.31it/s]" if worker == 0 else ""
            lines.append(
                f"{bar}INFO:root:Schedule Profiler start at step {first_step} and end at step {first_step + steps}\n"
            )
            mine = [b for b in blocks if b.rank == rank and b.step == step]
            lines += [record(22300 + rank, b, clock_errors_us[machine]) for b in mine]
            lines.append(f"[INFO] loss: {10 / (step + 1):.6f}, learning_rate: 3e-05, global_step: {step}\n")
        (place / f"workerlog.{worker}").write_text("".join(lines), encoding="utf-8")
    with (folder / "truth.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["rank", "step", "kind", "microbatch", "true_start_us", "true_end_us"])
        table.writerows([b.rank, b.step, b.kind, b.microbatch, b.start_us, b.end_us] for b in blocks)
    return blocks


if __name__ == "__main__":
    here = Path(__file__).parent.parent / "paddle"
    write(here / "single")
    write(here / "two_machines", machines=2, clock_errors_us=(0, 3_200), seed=2)
