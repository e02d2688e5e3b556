"""Write Paddle worker logs of a made-up 1F1B run, with the truth beside them.

    python -m samples.generators.paddle          # writes samples/paddle/single and samples/paddle/two_machines again

The logs look like those of `paddle.distributed.launch`: free text, progress bars, and one record per job in the order
in which the executor launches them. Times obey the pipeline's dependencies; every machine's clock may be off.
"""

from __future__ import annotations

import csv
import random
from pathlib import Path

from samples.generators.pipeline import MS, US, Block, Timing, one_f_one_b, simulate

TIMING = Timing(
    lengths={"F": 9 * MS, "B": 17_500 * US, "OPT": 21 * MS},
    hop=600 * US,
    gap=4 * MS,
    first=1_760_000_000_000_000_000,
    start_jitter=range(20, 120),
    length_jitter=range(-400, 400),
    optimizer_jitter=range(50, 250),
)


def blocks_of(stages: int, microbatches: int, steps: range, chance: random.Random) -> list[Block]:
    """The blocks of a 1F1B run, as `write` logs them."""
    orders = [one_f_one_b(stage, stages, microbatches) for stage in range(stages)]
    return simulate(orders, TIMING, steps, chance).blocks


def record(thread: int, block: Block, clock_error_us: int) -> str:
    """The executor's line; the digits below a microsecond are the noise of its double."""
    job = {"F": "forward", "B": "backward", "OPT": "optimizer"}[block.kind]
    microbatch = block.microbatch or 0
    start, end = ((t + clock_error_us * US) / MS for t in (block.start_ns, block.end_ns))
    return (
        f"I1009 08:53:20.000000 {thread:5d} standalone_executor.cc:246] Profiler Info: "
        f"Job ({microbatch}), type = {job}, micro_batch_id = {microbatch}, "
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
    blocks = blocks_of(stages, microbatches, range(first_step, first_step + steps), random.Random(seed))
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
        table.writerows([b.rank, b.step, b.kind, b.microbatch or 0, b.start_ns // US, b.end_ns // US] for b in blocks)
    return blocks


if __name__ == "__main__":
    here = Path(__file__).parent.parent / "paddle"
    write(here / "single")
    write(here / "two_machines", machines=2, clock_errors_us=(0, 3_200), seed=2)
