"""Write Ascend and MindSpore profiles of a made-up 1F1B run, with the truth beside them.

    python -m samples.generators.ascend          # writes samples/ascend and samples/mindspore again

Two hosts, two stages on each. Every block is marked as MindSpeed's wrappers do it, without a micro-batch number;
activations and gradients go through hcom_send and hcom_receive, whose ends meet on both sides. Durations are made up;
the order obeys the pipeline. A host's clock may be off.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable
from pathlib import Path

from samples.generators.ascend_export import Kernel, Mark, Operator, Recording, write_database, write_text
from samples.generators.pipeline import MS, US, Block, Simulation, Timing, one_f_one_b, simulate

EPOCH_NS = 1_764_246_877_000_000_000
LAUNCH = 5 * US
TIMING = Timing(
    lengths={"F": 4 * MS, "B": 8 * MS, "OPT": 3 * MS - LAUNCH},
    hop=150 * US,
    lead=LAUNCH,
    gap=MS,
    reduce=2 * MS,
    length_jitter=range(-200, 200),
    blocking_receives=True,
)
MARKER = {"F": "forward_step", "B": "backward_step"}
KERNELS = {
    "F": ("RmsNorm", "MatMulV3", "FlashAttentionScore", "SwiGlu", "Add"),
    "B": ("SwiGluGrad", "MatMulV3", "FlashAttentionScoreGrad", "RmsNormGrad", "Cast"),
    "OPT": ("ApplyAdamWV2",) * 3,
}
WORLD = "group_name_0"
BYTES = 8 << 20


def write(
    folder: Path, stages: int = 4, microbatches: int = 6, steps: int = 2, hosts: int = 2, skew_ns: int = 0,
    text: bool = False, seed: int = 1, replicas: int = 1, kernels: int = 5,
) -> list[Block]:  # fmt: skip
    """Writes one capture per rank and `truth.csv`; returns the blocks of one replica.

    The ranks of a pipeline are neighbours: rank = replica · stages + stage. The clock of each host is `skew_ns` ahead
    of the one before it. `kernels` is the least number of kernels in a forward or backward.
    """
    chance = random.Random(seed)
    orders = [one_f_one_b(stage, stages, microbatches) for stage in range(stages)]
    run = simulate(orders, TIMING, range(steps), chance)
    ranks = stages * replicas
    per_host = -(-ranks // hosts)
    for rank in range(ranks):
        host, device = divmod(rank, per_host)

        def clock(true_ns: int, offset_ns: int = host * skew_ns) -> int:
            return EPOCH_NS + true_ns + offset_ns

        rec = Recording(rank, device, f"node{host}", _metadata(rank, stages, ranks, text))
        _fill(rec, [b for b in run.blocks if b.rank == rank % stages], clock, kernels)
        _communicate(rec, run, rank % stages, _pipeline(rank, stages), clock, chance)
        name = f"node{host}_{4000 + rank}_20251127120000{rank:03d}_ascend_{'ms' if text else 'pt'}"
        (write_text if text else write_database)(rec, folder / name)
    with (folder / "truth.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["rank", "stage", "step", "kind", "microbatch", "start_ns", "end_ns"])
        for b in sorted(run.blocks, key=lambda b: (b.rank, b.start_ns)):
            table.writerow([b.rank, b.rank, b.step, b.kind, b.microbatch, EPOCH_NS + b.start_ns, EPOCH_NS + b.end_ns])
    return run.blocks


def _metadata(rank: int, stages: int, ranks: int, text: bool) -> dict[str, object]:
    """What the training script adds; MindSpore's profiler does not know the groups."""
    sizes = {
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": stages,
        "data_parallel_size": ranks // stages,
    }
    first = rank - rank % stages
    pipeline = {"group_name": "pp", "group_rank": rank % stages, "global_ranks": list(range(first, first + stages))}
    world = {"group_name": "default_group", "group_rank": rank, "global_ranks": list(range(ranks))}
    groups = {WORLD: world, _pipeline(rank, stages): pipeline}
    return {"distributed_args": sizes} | ({} if text else {"parallel_group_info": groups})


def _pipeline(rank: int, stages: int) -> str:
    """The identifier of the rank's pipeline group."""
    return f"group_name_{19 + rank // stages}"


def _fill(rec: Recording, blocks: list[Block], clock: Callable[[int], int], kernels: int) -> None:
    """Marks, kernels and steps; the host issues a step's work long before the device is through with it."""
    first = {b.step: min(o.start_ns for o in blocks if o.step == b.step) for b in blocks}
    issued = dict.fromkeys(first, 0)
    for b in blocks:
        if b.kind in MARKER:
            host = first[b.step] - MS + issued[b.step] * 20 * US
            issued[b.step] += 1
            text = str({"name": MARKER[b.kind]})
            rec.marks.append(Mark(text, clock(b.start_ns), clock(b.end_ns), clock(host), clock(host + 15 * US)))
        types = KERNELS[b.kind] * (-(-kernels // len(KERNELS[b.kind])) if b.kind in MARKER else 1)
        length = (b.end_ns - b.start_ns - 4 * US) // len(types)
        for place, name in enumerate(types):
            start = b.start_ns + 2 * US + place * length
            rec.kernels.append((b.step, Kernel(name, clock(start), clock(start + length - US))))
    for step, start in first.items():
        end = max(b.end_ns for b in blocks if b.step == step)
        rec.steps.append((step, clock(start - 2 * MS), clock(end)))


def _communicate(
    rec: Recording, run: Simulation, stage: int, group: str, clock: Callable[[int], int], chance: random.Random
) -> None:
    """Operators of the pipeline's `group` in the order of their posting, and one all-reduce of all ranks a step."""
    own = [t for t in run.transfers if stage in (t.sender, t.receiver)]
    own.sort(key=lambda t: t.sent_ns if t.sender == stage else t.posted_ns)
    for index, t in enumerate(own):
        what, posted, peer = (
            ("send", t.sent_ns, t.receiver) if t.sender == stage else ("receive", t.posted_ns, t.sender)
        )
        done = t.done_ns - chance.randrange(20) * US
        rec.operators.append((t.step, Operator(what, group, index, clock(posted), clock(done), stage, peer, BYTES)))
    for step, done in enumerate(run.reduced):
        last = max(b.end_ns for b in run.blocks if b.rank == stage and b.step == step and b.kind != "OPT")
        end = clock(done - chance.randrange(20) * US)
        rec.operators.append((step, Operator("allReduce", WORLD, step, clock(last + 10 * US), end)))


def main() -> None:
    here = Path(__file__).resolve().parent.parent
    write(here / "ascend", skew_ns=2_300_000)
    write(here / "mindspore", microbatches=4, steps=1, skew_ns=-1_400_000, text=True, seed=2)


if __name__ == "__main__":
    main()
