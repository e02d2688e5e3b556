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
from dataclasses import dataclass
from pathlib import Path

from samples.generators.ascend_export import Kernel, Mark, Operator, Recording, write_database, write_text

US, MS = 1_000, 1_000_000
EPOCH_NS = 1_764_246_877_000_000_000
LENGTH = {"F": 4 * MS, "B": 8 * MS}
HOP, LAUNCH, REDUCE, UPDATE = 150 * US, 5 * US, 2 * MS, 3 * MS
MARKER = {"F": "forward_step", "B": "backward_step"}
KERNELS = {
    "F": ("RmsNorm", "MatMulV3", "FlashAttentionScore", "SwiGlu", "Add"),
    "B": ("SwiGluGrad", "MatMulV3", "FlashAttentionScoreGrad", "RmsNormGrad", "Cast"),
    "OPT": ("ApplyAdamWV2",) * 3,
}
PIPELINE, WORLD = "group_name_19", "group_name_0"
BYTES = 8 << 20


@dataclass(frozen=True)
class Block:
    """One block as it really ran; times in ns since the start of the run, on the true clock."""

    stage: int
    step: int
    kind: str
    microbatch: int | None
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Transfer:
    """A message between neighbouring stages: when each side posted its operator, and when both were done."""

    step: int
    sender: int
    receiver: int
    sent_ns: int
    posted_ns: int
    done_ns: int


def order(stage: int, stages: int, microbatches: int) -> list[tuple[str, int]]:
    """1F1B: warm-up forwards, then a forward and a backward in turn, then the backwards that are left."""
    lead = min(stages - 1 - stage, microbatches)
    blocks = [("F", m) for m in range(lead)]
    for m in range(lead, microbatches):
        blocks += [("F", m), ("B", m - lead)]
    return blocks + [("B", m) for m in range(microbatches - lead, microbatches)]


def simulate(
    stages: int, microbatches: int, steps: int, chance: random.Random
) -> tuple[list[Block], list[Transfer], list[int]]:
    """All blocks and transfers, and when each step's gradients are reduced: a block starts when its input is there."""
    blocks: list[Block] = []
    transfers: list[Transfer] = []
    reduced: list[int] = []
    free = [0] * stages
    for step in range(steps):
        todo = [order(s, stages, microbatches) for s in range(stages)]
        ends: dict[tuple[str, int, int], int] = {}
        while any(todo):
            for stage in range(stages):
                while todo[stage]:
                    kind, microbatch = todo[stage][0]
                    source = stage - 1 if kind == "F" else stage + 1
                    ready = free[stage]
                    if 0 <= source < stages:
                        sent = ends.get((kind, source, microbatch))
                        if sent is None:
                            break
                        ready = max(free[stage], sent) + HOP
                        transfers.append(Transfer(step, source, stage, sent, free[stage], ready))
                    start = ready + LAUNCH
                    end = start + LENGTH[kind] + chance.randrange(-200, 200) * US
                    ends[kind, stage, microbatch] = free[stage] = end
                    blocks.append(Block(stage, step, kind, microbatch, start, end))
                    todo[stage].pop(0)
        reduced.append(max(free) + REDUCE)
        for stage in range(stages):
            blocks.append(Block(stage, step, "OPT", None, reduced[-1] + LAUNCH, reduced[-1] + UPDATE))
        free = [reduced[-1] + UPDATE + MS] * stages
    return blocks, transfers, reduced


def write(
    folder: Path, stages: int = 4, microbatches: int = 6, steps: int = 2, hosts: int = 2, skew_ns: int = 0,
    text: bool = False, seed: int = 1,
) -> list[Block]:  # fmt: skip
    """Writes one capture per rank (a rank a stage) and `truth.csv`; the clock of each host is `skew_ns` ahead of the
    one before it. Returns the blocks."""
    chance = random.Random(seed)
    blocks, transfers, reduced = simulate(stages, microbatches, steps, chance)
    per_host = -(-stages // hosts)
    for rank in range(stages):
        host, device = divmod(rank, per_host)

        def clock(true_ns: int, offset_ns: int = host * skew_ns) -> int:
            return EPOCH_NS + true_ns + offset_ns

        rec = Recording(rank, device, f"node{host}", _metadata(rank, stages, text))
        _fill(rec, [b for b in blocks if b.stage == rank], clock)
        _communicate(rec, transfers, blocks, reduced, clock, chance)
        name = f"node{host}_{4000 + rank}_20251127120000{rank:03d}_ascend_{'ms' if text else 'pt'}"
        (write_text if text else write_database)(rec, folder / name)
    with (folder / "truth.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["rank", "stage", "step", "kind", "microbatch", "start_ns", "end_ns"])
        for b in sorted(blocks, key=lambda b: (b.stage, b.start_ns)):
            table.writerow([b.stage, b.stage, b.step, b.kind, b.microbatch, EPOCH_NS + b.start_ns, EPOCH_NS + b.end_ns])
    return blocks


def _metadata(rank: int, stages: int, text: bool) -> dict[str, object]:
    """What the training script adds; MindSpore's profiler does not know the groups."""
    sizes = {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": stages, "data_parallel_size": 1}
    members = list(range(stages))
    groups = {
        WORLD: {"group_name": "default_group", "group_rank": rank, "global_ranks": members},
        PIPELINE: {"group_name": "pp", "group_rank": rank, "global_ranks": members},
    }
    return {"distributed_args": sizes} | ({} if text else {"parallel_group_info": groups})


def _fill(rec: Recording, blocks: list[Block], clock: Callable[[int], int]) -> None:
    """Marks, kernels and steps; the host issues a step's work long before the device is through with it."""
    first = {b.step: min(o.start_ns for o in blocks if o.step == b.step) for b in blocks}
    issued = dict.fromkeys(first, 0)
    for b in blocks:
        if b.kind in MARKER:
            host = first[b.step] - MS + issued[b.step] * 20 * US
            issued[b.step] += 1
            text = str({"name": MARKER[b.kind]})
            rec.marks.append(Mark(text, clock(b.start_ns), clock(b.end_ns), clock(host), clock(host + 15 * US)))
        types = KERNELS[b.kind]
        length = (b.end_ns - b.start_ns - 4 * US) // len(types)
        for place, name in enumerate(types):
            start = b.start_ns + 2 * US + place * length
            rec.kernels.append((b.step, Kernel(name, clock(start), clock(start + length - US))))
    for step, start in first.items():
        end = max(b.end_ns for b in blocks if b.step == step)
        rec.steps.append((step, clock(start - 2 * MS), clock(end)))


def _communicate(
    rec: Recording, transfers: list[Transfer], blocks: list[Block], reduced: list[int], clock: Callable[[int], int],
    chance: random.Random,
) -> None:  # fmt: skip
    """Operators of the pipeline's group in the order of their posting, and one all-reduce of all ranks a step."""
    own = [t for t in transfers if rec.rank in (t.sender, t.receiver)]
    own.sort(key=lambda t: t.sent_ns if t.sender == rec.rank else t.posted_ns)
    for index, t in enumerate(own):
        what, posted, peer = (
            ("send", t.sent_ns, t.receiver) if t.sender == rec.rank else ("receive", t.posted_ns, t.sender)
        )
        done = t.done_ns - chance.randrange(20) * US
        rec.operators.append(
            (t.step, Operator(what, PIPELINE, index, clock(posted), clock(done), rec.rank, peer, BYTES))
        )
    for step, done in enumerate(reduced):
        last = max(b.end_ns for b in blocks if b.stage == rec.rank and b.step == step and b.kind != "OPT")
        end = clock(done - chance.randrange(20) * US)
        rec.operators.append((step, Operator("allReduce", WORLD, step, clock(last + 10 * US), end)))


def main() -> None:
    here = Path(__file__).resolve().parent.parent
    write(here / "ascend", skew_ns=2_300_000)
    write(here / "mindspore", microbatches=4, steps=1, skew_ns=-1_400_000, text=True, seed=2)


if __name__ == "__main__":
    main()
