"""Write Paddle's worker logs and profiler records of a made-up run, with the truth beside them.

    python -m samples.generators.paddle          # writes samples/paddle/single and samples/paddle/two_machines again

A `Job` says what was trained. The logs look like those of `paddle.distributed.launch`: free text, progress bars, and
one record per job in the order in which the executor launches them. Times obey the pipeline's dependencies; every
machine's clock may be off.
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from samples.generators.pipeline import MS, US, Block, Order, Timing, one_f_one_b, simulate, with_evaluations

TIMING = Timing(
    lengths={"F": 9 * MS, "B": 17_500 * US, "W": 8 * MS, "OPT": 21 * MS},
    hop=600 * US,
    gap=4 * MS,
    first=1_760_000_000_000_000_000,
    start_jitter=range(20, 120),
    length_jitter=range(-400, 400),
    optimizer_jitter=range(50, 250),
)
KINDS = {"F": "forward", "B": "backward", "W": "backward_w", "OPT": "optimizer"}


@dataclass(frozen=True)
class Job:
    """What was trained, and how it was logged.

    `orders`: the operations of each stage, 1F1B where None; `split`: backwards are input gradients (backward_b). There
    are `tensor` ranks for each place in a pipeline and `data` replicas of it; ranks are numbered tp fastest, then pp,
    then dp, or where `stages_last`, as Megatron-LM numbers them, tp, dp, pp. `slow`: stage and replica → how many times
    as long the blocks take there. `communication`: Paddle 3's jobs without a computation, at time 0. `announced`: each
    step is announced. `rotated`: the first half of each log was moved to `workerlog.N.1`. `lost`: how many lines of its
    beginning the log of a rank lacks. `evaluated`: an evaluation of as many forwards precedes these steps.
    """

    stages: int = 4
    microbatches: int = 8
    steps: range = range(2, 5)
    orders: Sequence[Order] | None = None
    chunks: int = 1
    vee: bool = False
    split: bool = False
    tensor: int = 1
    data: int = 1
    slow: Mapping[tuple[int, int], float] = field(default_factory=dict)
    machines: int = 1
    clock_errors_us: tuple[int, ...] = (0,)
    communication: bool = False
    announced: bool = True
    stages_last: bool = False
    rotated: bool = False
    lost: Mapping[int, int] = field(default_factory=dict)
    evaluated: tuple[int, ...] = ()
    seed: int = 1

    @property
    def ranks(self) -> int:
        return self.stages * self.tensor * self.data

    @property
    def workers(self) -> int:
        """The ranks of one machine."""
        return self.ranks // self.machines

    def rank(self, stage: int, replica: int, tensor: int = 0) -> int:
        place = stage * self.data + replica if self.stages_last else replica * self.stages + stage
        return place * self.tensor + tensor

    def stage(self, rank: int) -> int:
        place = rank // self.tensor
        return place // self.data if self.stages_last else place % self.stages

    def replica(self, rank: int) -> int:
        place = rank // self.tensor
        return place % self.data if self.stages_last else place // self.stages

    def clock_error_us(self, rank: int) -> int:
        return self.clock_errors_us[rank // self.workers]

    def blocks(self) -> list[Block]:
        """The blocks of all ranks on the true clock. Replicas have durations of their own, tensor ranks not."""
        orders = self.orders or [one_f_one_b(stage, self.stages, self.microbatches) for stage in range(self.stages)]
        chance = random.Random(self.seed)
        found = []
        for replica in range(self.data):
            timing = replace(TIMING, slow={stage: times for (stage, n), times in self.slow.items() if n == replica})
            run = simulate(orders, timing, self.steps, chance, chunks=self.chunks, vee=self.vee).blocks
            if self.evaluated:
                run = with_evaluations(run, self.evaluated, self.microbatches, timing)
            for tensor in range(self.tensor):
                found += [replace(b, rank=self.rank(b.rank, replica, tensor)) for b in run]
        return found

    def type(self, block: Block) -> str:
        """The name of the job that runs a block."""
        name = KINDS[block.kind] + ("_b" if self.split and block.kind == "B" else "")
        return name + (str(block.chunk) if self.chunks > 1 and block.kind != "OPT" else "")


def blocks_of(stages: int, microbatches: int, steps: range, chance: random.Random) -> list[Block]:
    """The blocks of a 1F1B run, as `write` logs them."""
    orders = [one_f_one_b(stage, stages, microbatches) for stage in range(stages)]
    return simulate(orders, TIMING, steps, chance).blocks


def line(thread: int, job: str, microbatch: int, start_ms: float, end_ms: float) -> str:
    """The executor's line; the digits below a microsecond are the noise of its double."""
    return (
        f"I1009 08:53:20.000000 {thread:5d} standalone_executor.cc:246] Profiler Info: "
        f"Job ({microbatch}), type = {job}, micro_batch_id = {microbatch}, "
        f"job_start_time = {start_ms:.6f}, job_end_time = {end_ms:.6f}\n"
    )


def _records(job: Job, block: Block, thread: int) -> list[str]:
    microbatch, error = block.microbatch or 0, job.clock_error_us(block.rank) * US
    start, end = ((t + error) / MS for t in (block.start_ns, block.end_ns))
    own = line(thread, job.type(block), microbatch, start, end)
    chunk = job.type(block).removeprefix(KINDS[block.kind])
    if job.communication and block.kind == "F":
        return [line(thread, f"recv_forward{chunk}", microbatch, 0, 0), own]
    if job.communication and block.kind == "B":
        return [own, line(thread, f"send_backward{chunk}", microbatch, 0, 0)]
    return [own]


def log(job: Job, blocks: Sequence[Block], rank: int, thread: int = 22300) -> str:
    """The whole worker log of a rank; `thread` is that of rank 0."""
    lines = ["LAUNCH INFO -----------  Configuration  ----------------------\n", "loading checkpoint shards\n"]
    first, end = job.steps.start, job.steps.stop
    for step in [*job.steps, end]:
        for block in blocks:
            if (block.rank, block.step) == (rank, -1 - step):  # an evaluation
                lines += _records(job, block, thread + rank)
        if step == end:
            break
        bar = f"  {step * 10}%|#         | {step}/10 [00:0{step}<00:09,  2.31it/s]" if not rank % job.workers else ""
        if job.announced:
            lines.append(f"{bar}INFO:root:Schedule Profiler start at step {first} and end at step {end}\n")
        for block in blocks:
            if (block.rank, block.step) == (rank, step):
                lines += _records(job, block, thread + rank)
        lines.append(f"[INFO] loss: {10 / (step + 1):.6f}, learning_rate: 3e-05, global_step: {step}\n")
    return "".join(lines)


def write_logs(folder: Path, job: Job) -> list[Block]:
    """Logs of a job below `folder`: `machineN/` folders when there are several machines. Returns the blocks of all
    ranks on the true clock."""
    blocks = job.blocks()
    for rank in range(job.ranks):
        machine, worker = divmod(rank, job.workers)
        place = folder / f"machine{machine}" if job.machines > 1 else folder
        place.mkdir(parents=True, exist_ok=True)
        lines = log(job, blocks, rank).splitlines(keepends=True)[job.lost.get(rank, 0) :]
        first = len(lines) // 2 if job.rotated else 0
        if first:
            (place / f"workerlog.{worker}.1").write_text("".join(lines[:first]), encoding="utf-8")
        (place / f"workerlog.{worker}").write_text("".join(lines[first:]), encoding="utf-8")
    return blocks


def write_records(folder: Path, job: Job) -> list[Block]:
    """The files of dynamic-graph training, whose times are whole milliseconds. Returns the blocks as the files hold
    them, without optimizers, which are not recorded."""
    folder.mkdir(parents=True, exist_ok=True)
    blocks = [
        replace(b, step=b.step - job.steps.start + 1, start_ns=b.start_ns // MS * MS, end_ns=b.end_ns // MS * MS)
        for b in job.blocks()
        if b.kind != "OPT"
    ]
    for rank in range(job.ranks):
        (folder / f"profile_record_tmp_file_for_rank_{rank}").write_text(records(job, blocks, rank))
    return blocks


def records(job: Job, blocks: Sequence[Block], rank: int) -> str:
    """The file of a rank's dynamic-graph training."""
    category = "virtual pipeline timeline" if job.chunks > 1 else "pipeline timeline"
    thread = {"pid": 0, "tid": job.stage(rank) + 1}
    events = [
        {"name": name, "cat": category, "ph": phase, **thread, "ts": time // MS, "cname": "thread_state_running"}
        for b in blocks
        if b.rank == rank
        for name in (f"{b.kind}{b.microbatch}" + (f"_VP{b.chunk}" if job.chunks > 1 else ""),)
        for phase, time in (("B", b.start_ns), ("E", b.end_ns))
    ]
    return "".join(json.dumps(event) + "\n" for event in events)


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
    """The logs of a 1F1B job, and `truth.csv` on the true clock. Returns the truth."""
    numbered = range(first_step, first_step + steps)
    job = Job(stages, microbatches, numbered, machines=machines, clock_errors_us=clock_errors_us, seed=seed)
    blocks = write_logs(folder, job)
    with (folder / "truth.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["rank", "step", "kind", "microbatch", "true_start_us", "true_end_us"])
        table.writerows([b.rank, b.step, b.kind, b.microbatch or 0, b.start_ns // US, b.end_ns // US] for b in blocks)
    return blocks


if __name__ == "__main__":
    here = Path(__file__).parent.parent / "paddle"
    write(here / "single")
    write(here / "two_machines", machines=2, clock_errors_us=(0, 3_200), seed=2)
