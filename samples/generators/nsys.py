"""Write Nsight Systems exports of a made-up zero-bubble (ZB-H1) run, with the truth beside them.

    python -m samples.generators.nsys            # writes samples/nsys/two_hosts again

Two hosts, one session and two ranks on each. Forward and weight-gradient kernels are launched from the main thread,
which holds the NVTX ranges, backward kernels from autograd's thread; activations and gradients go through NCCL kernels
that run until both sides have met. Durations are made up; the order obeys the pipeline. A host's clock may be off.
"""

from __future__ import annotations

import csv
import random
from dataclasses import dataclass, replace
from pathlib import Path

from samples.generators.nsys_export import Export

US, MS = 1_000, 1_000_000
LENGTH = {"F": 2 * MS, "B": 2_100 * US, "W": 1_800 * US, "OPT": 4 * MS}
HOP, LEAD, GAP = 300 * US, 90 * US, 3 * MS
KERNELS = 4
AUTOGRAD = 9
"""What autograd's thread id is above the main thread's."""


@dataclass(frozen=True)
class Block:
    """One block as it really ran; times in nanoseconds since the start of the run, on the true clock."""

    rank: int
    step: int
    kind: str
    microbatch: int
    start_ns: int
    end_ns: int

    @property
    def marker(self) -> str:
        return "Optimizer" if self.kind == "OPT" else f"{self.kind}{self.microbatch}.0.0"


def order(stage: int, stages: int, microbatches: int) -> list[tuple[str, int]]:
    """ZB-H1: as 1F1B, but weight gradients wait until the pipeline would idle: `stage` of them are kept back."""
    ahead = min(stages - stage, microbatches)
    blocks = [("F", m) for m in range(ahead)]
    for m in range(microbatches):
        blocks.append(("B", m))
        if m >= stage:
            blocks.append(("W", m - stage))
        if ahead + m < microbatches:
            blocks.append(("F", ahead + m))
    return blocks + [("W", m) for m in range(microbatches - min(stage, microbatches), microbatches)]


def simulate(stages: int, microbatches: int, steps: int, chance: random.Random) -> list[Block]:
    """Blocks of all ranks (one rank a stage): one starts when its rank is free and its input has arrived."""
    blocks: list[Block] = []
    free = [20 * MS] * stages
    for step in range(steps):
        todo = [order(s, stages, microbatches) for s in range(stages)]
        ends: dict[tuple[str, int, int], int] = {}
        while any(todo):
            for stage in range(stages):
                while todo[stage]:
                    kind, microbatch = todo[stage][0]
                    before = {"F": stage - 1, "B": stage + 1, "W": -1}[kind]
                    needed = ends.get((kind, before, microbatch)) if 0 <= before < stages else 0
                    if needed is None:
                        break
                    start = max(free[stage] + LEAD, needed + HOP) + chance.randrange(20, 90) * US
                    end = start + LENGTH[kind] + chance.randrange(-150, 150) * US
                    ends[kind, stage, microbatch] = free[stage] = end
                    blocks.append(Block(stage, step, kind, microbatch, start, end))
                    todo[stage].pop(0)
        for stage in range(stages):
            start = max(free) + LEAD + chance.randrange(50, 250) * US
            blocks.append(Block(stage, step, "OPT", 0, start, start + LENGTH["OPT"]))
        free = [max(free) + LENGTH["OPT"] + GAP] * stages
    return blocks


class Rank:
    """Puts the ranges, launches and kernels of one rank into its host's export."""

    def __init__(self, export: Export, rank: int, stages: int, clock_ns: int) -> None:
        self.export, self.rank, self.stages, self.clock_ns = export, rank, stages, clock_ns
        self.process = 4_000 + 11 * rank

    def block(self, block: Block, chance: random.Random) -> None:
        """The range stands LEAD before the first kernel, when the launches are made."""
        start, end = block.start_ns + self.clock_ns, block.end_ns + self.clock_ns
        thread = self.process + AUTOGRAD if block.kind == "B" else None
        cuts = sorted(chance.sample(range(start + US, end - US), KERNELS - 1))
        launch = start - 60 * US
        self.export.range(self.process, launch - 4 * US, launch + KERNELS * 5 * US, block.marker)
        for i, (begin, until) in enumerate(zip([start, *cuts], [*cuts, end], strict=True)):
            name = "cuLaunchKernelEx" if i % 2 else "cudaLaunchKernel_v7000"
            call = self.export.call(self.process, launch + i * 5 * US, thread=thread, name=name)
            self.export.kernel(self.process, begin, until, call, name=f"{block.kind.lower()}_kernel_{i}")

    def transfer(self, kind: str, block: Block, launch_ns: int, start_ns: int, end_ns: int, stream: int) -> None:
        launch, start, end = (t + self.clock_ns for t in (launch_ns, start_ns, end_ns))
        way = "FORWARD" if block.kind == "F" else "BACKWARD"
        self.export.range(self.process, launch - 2 * US, launch + 4 * US, f"{kind}_{way}.{block.microbatch}.0.0")
        call = self.export.call(self.process, launch)
        self.export.kernel(self.process, start, end, call, name="ncclDevKernel_SendRecv", stream=stream)

    def steps(self, blocks: list[Block]) -> None:
        for step in sorted({b.step for b in blocks}):
            mine = [b for b in blocks if b.step == step]
            start, end = mine[0].start_ns - 2 * LEAD, mine[-1].end_ns
            self.export.range(self.process, start + self.clock_ns, end + self.clock_ns, f"iter_{self.rank}_{step}")


def write(folder: Path, *, stages: int = 4, microbatches: int = 6, steps: int = 2, hosts: int = 2,
          clock_errors_ns: tuple[int, ...] = (0, 2_700_000), seed: int = 1) -> list[Block]:  # fmt: skip
    """One export per host in `folder`, and truth.csv. Returns the truth."""
    chance = random.Random(seed)
    blocks = simulate(stages, microbatches, steps, chance)
    exports = [Export(host=f"node{h}") for h in range(hosts)]
    per_host = stages // hosts
    ranks = [Rank(exports[r // per_host], r, stages, clock_errors_ns[r // per_host]) for r in range(stages)]
    at = {(b.rank, b.step, b.kind, b.microbatch): b for b in blocks}
    for rank in ranks:
        for block in (mine := [b for b in blocks if b.rank == rank.rank]):
            rank.block(block, chance)
            source = at.get((block.rank + (-1 if block.kind == "F" else 1), block.step, block.kind, block.microbatch))
            if block.kind in "FB" and source:
                met = block.start_ns - 7 * US
                end = met + chance.randrange(200, 3_000)
                rank.transfer("RECV", block, block.start_ns - 80 * US, block.start_ns - 75 * US, end, 20)
                ranks[source.rank].transfer("SEND", source, source.start_ns - 35 * US, source.end_ns + 3 * US, met, 21)
        rank.steps(mine)
    folder.mkdir(parents=True, exist_ok=True)
    for export in exports:
        export.write(folder / f"{export.host}.sqlite")
    with (folder / "truth.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["rank", "step", "kind", "microbatch", "marker", "true_start_ns", "true_end_ns"])
        for b in (replace(b, start_ns=b.start_ns + Export.epoch_ns, end_ns=b.end_ns + Export.epoch_ns) for b in blocks):
            microbatch = "" if b.kind == "OPT" else b.microbatch
            table.writerow([b.rank, b.step, b.kind, microbatch, b.marker, b.start_ns, b.end_ns])
    return blocks


if __name__ == "__main__":
    write(Path(__file__).parent.parent / "nsys" / "two_hosts")
