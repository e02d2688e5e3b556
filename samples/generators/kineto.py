"""Write torch.profiler traces of a made-up zero-bubble (ZB-H1) run, with the truth beside them.

    python -m samples.generators.kineto            # writes samples/kineto/two_hosts again

Four ranks on two hosts, a gzipped trace each; the blocks are those of `nsys.py`, marked as
`trace_export.instrument` marks them. Backward kernels are launched from autograd's thread, beside operators that say
nothing; activations and gradients go through NCCL kernels that know their group and the other side, and every step ends
with an all-reduce. The second host's clock is 2.7 ms ahead.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Sequence
from pathlib import Path

from samples.generators import nsys
from samples.generators.block_kernels import Cut
from samples.generators.kineto_trace import MAIN, Trace
from samples.generators.layer_ranges import LayerRanges
from samples.generators.nsys import LEAD, blocks_of, free_stream, planted
from samples.generators.pipeline import MS, US, Block, Simulation, Timing, WrongTimes, recorded

STAGES, MICROBATCHES, STEPS = 4, 6, 2
CLOCK_ERRORS_NS = (0, 0, 2_700_000, 2_700_000)
KERNELS = 3
AUTOGRAD = MAIN + 9
ELEMENTS = 8 << 20
COLLECTIVES = {
    "allreduce": "AllReduce_Sum_bf16_RING_LL", "_reduce_scatter_base": "ReduceScatter_Sum_bf16_RING_LL",
    "_allgather_base": "AllGather_RING_LL",
}  # fmt: skip
"""PyTorch's names of collectives, and NCCL's kernels."""


class Rank:
    """One rank's trace, in its host's clock."""

    def __init__(self, rank: int, clock_ns: int, stage: int | None = None, world: int = STAGES,
                 wrong: WrongTimes | None = None, pid: int = MAIN, cut: Cut | None = None,
                 layers: LayerRanges | None = None, stages: int = 1) -> None:  # fmt: skip
        """`stage`: where the rank is none of a pipeline by itself; `cut`: the kernels of a block, which are random
        without it; `layers`: the ranges of those of its stage of so many."""
        self.layers, self.stages, self.cut = layers, stages, cut
        self.wrong = wrong or {}
        self.rank, self.clock_ns, self.stage = rank, clock_ns, rank if stage is None else stage
        self.trace = Trace(rank=rank, world=world, host=f"node{rank // 2}", pid=pid)
        self.ends: dict[int, int] = {}

    def block(self, block: Block, chance: random.Random) -> None:
        kernels = self.cut(block) if self.cut else nsys.at_random(block, KERNELS, chance)
        launch = block.start_ns + self.clock_ns - 60 * US
        kind = "Optimizer" if block.kind == "OPT" else f"{block.kind}{block.microbatch}.{block.chunk or 0}"
        mark = f"te:{kind} stage={self.stage} step={block.step} rank={self.rank}"
        self.trace.range(launch - 4 * US, launch + len(kernels) * 5 * US, mark, cat="cpu_op")
        if self.layers:
            part = (block.chunk or 0) * self.stages + self.stage
            self.layers.write(block, part, self.stages, launch, launch + len(kernels) * 5 * US - US, self.of_layer)
        thread, stream = AUTOGRAD if block.kind == "B" else MAIN, free_stream(self.ends, block)
        for i, (name, *times) in enumerate(kernels):
            at = launch + i * 5 * US
            self.trace.range(at - US, at + 3 * US, "aten::mm", thread=thread, cat="cpu_op")
            call = self.trace.call(at, thread=thread)
            times = recorded(block, i, *(t + self.clock_ns for t in times), self.wrong)
            self.trace.kernel(*times, call, name=name, stream=stream)

    def of_layer(self, start: int, end: int, name: str, autograd: bool) -> None:
        cat = "python_function" if name.startswith("nn.Module") else "user_annotation"
        self.trace.range(start, end, name, thread=AUTOGRAD if autograd else MAIN, cat=cat)

    def nccl(self, what: str, launch_ns: int, start_ns: int, end_ns: int, *, group: str = "1", **args: int) -> None:
        launch, start, end = (t + self.clock_ns for t in (launch_ns, start_ns, end_ns))
        described = {
            "Collective name": what, "Process Group Name": group, "dtype": "BFloat16", "In msg nelems": ELEMENTS,
        }  # fmt: skip
        name = f"ncclDevKernel_{COLLECTIVES.get(what, 'SendRecv')}"
        # A transfer waits for its other side, so each peer has a stream for each way.
        sent, received = args.get("Dst Rank"), args.get("Src Rank")
        stream = 20 if sent is None and received is None else 21 + 2 * received if sent is None else 22 + 2 * sent
        self.trace.kernel(start, end, self.trace.call(launch), name=name, stream=stream, **described, **args)


class Recorder:
    """A trace, filled as `nsys.Rank` fills a capture."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.host = trace, trace.host or ""

    def range(self, process: int, start: int, end: int | None, text: str, *, thread: int | None = None,
              registered: bool = False, domain: int = 0) -> None:  # fmt: skip
        assert end is not None  # torch.profiler ends its annotations with the recording
        self.trace.range(start, end, text, thread=thread or MAIN)

    def call(self, process: int, start: int, *, thread: int | None = None, name: str = "cudaLaunchKernel") -> int:
        return self.trace.call(start, thread=thread or MAIN, name=name.split("_v")[0])

    def kernel(self, process: int, start: int, end: int, correlation: int | None, *, name: str = "gemm",
               stream: int = 7, device: int = 0) -> None:  # fmt: skip
        assert correlation is not None
        self.trace.kernel(start, end, correlation, name=name, stream=stream, device=device)

    def write(self, path: Path) -> Path:
        return self.trace.write(path)


def record(folder: Path, blocks: list[Block], chance: random.Random, dialect: nsys.Dialect,
           clock_errors_ns: tuple[int, ...] = (0,)) -> list[tuple[int, str, str, int, int]]:  # fmt: skip
    """A trace for each rank, in which the ranges have the names of a dialect. Returns all transfers' sides as
    `nsys.record` does."""
    stages = 1 + max(b.rank for b in blocks)
    ranks = []
    for rank in range(stages):
        host = rank * len(clock_errors_ns) // stages
        recorder = Recorder(Trace(rank=rank, world=stages, host=f"node{host}"))
        ranks.append(nsys.Rank(recorder, rank, clock_errors_ns[host], dialect=dialect))
    sides = nsys.fill(ranks, blocks, chance)
    for rank, one in enumerate(ranks):
        one.export.write(folder / f"{one.export.host}_{700 + rank}.1760000000000000000.pt.trace.json.gz")
    return sides


def transfers(ranks: list[Rank], blocks: list[Block], chance: random.Random) -> None:
    """From the end of each F and B to the start of the next one: both kernels run until both sides have met. A send
    begins when the one before to the same rank has ended."""
    free: dict[tuple[int, int], int] = {}
    at = {(b.rank, b.step, b.kind, b.microbatch): b for b in blocks}
    for block in blocks:
        source = at.get((block.rank + (-1 if block.kind == "F" else 1), block.step, block.kind, block.microbatch))
        if block.kind not in "FB" or source is None:
            continue
        met = block.start_ns - 7 * US
        sent = met + chance.randrange(200, 3_000)
        posted = block.start_ns - 80 * US, block.start_ns - 75 * US
        ranks[block.rank].nccl("recv", *posted, sent, **{"Src Rank": source.rank})
        link = source.rank, block.rank
        start = max(source.end_ns + 3 * US, free.get(link, 0))
        free[link] = met + US
        ranks[source.rank].nccl("send", source.start_ns - 35 * US, start, met, **{"Dst Rank": block.rank})


def fill_met(ranks: Sequence[Rank], run: Simulation, chance: random.Random, *, batched: bool = False) -> None:
    """Puts the blocks and transfers of a run into the traces; both sides of a transfer end with it. With `batched` what
    a rank sends and receives at once is one kernel, of which PyTorch tells no peer."""
    for block in run.blocks:
        ranks[block.rank].block(block, chance)
    if batched:
        for rank, at, end, _ in nsys.batches(run.transfers):
            ranks[rank].nccl("coalesced", at - 6 * US, at + 3 * US, end)
        return
    for t in run.transfers:
        ranks[t.receiver].nccl("recv", t.posted_ns + 6 * US, t.posted_ns + 12 * US, t.done_ns, **{"Src Rank": t.sender})
        ranks[t.sender].nccl("send", t.sent_ns - 6 * US, t.sent_ns + 3 * US, t.done_ns, **{"Dst Rank": t.receiver})


def write_planted(folder: Path, timing: Timing) -> list[Block]:
    """A trace per rank of the run that `nsys.planted` simulates. Returns the truth."""
    chance = random.Random(1)
    run = planted(timing, chance)
    stages = 1 + max(block.rank for block in run.blocks)
    ranks = [Rank(rank, 0, rank, stages) for rank in range(stages)]
    fill_met(ranks, run, chance)
    for rank in ranks:
        rank.trace.write(folder / f"{rank.trace.host}_{700 + rank.rank}.1760000000000000000.pt.trace.json")
    return run.blocks


def write(folder: Path, seed: int = 1, wrong: WrongTimes | None = None) -> list[Block]:
    """A trace per rank in `folder`, and truth.csv. Returns the truth."""
    chance = random.Random(seed)
    blocks = blocks_of(STAGES, MICROBATCHES, STEPS, chance)
    ranks = [Rank(r, CLOCK_ERRORS_NS[r], wrong=wrong) for r in range(STAGES)]
    for block in blocks:
        ranks[block.rank].block(block, chance)
    transfers(ranks, blocks, chance)
    for step in range(STEPS):
        met = max(b.end_ns for b in blocks if b.step == step) + MS
        for rank in ranks:
            own = max(b.end_ns for b in blocks if b.step == step and b.rank == rank.rank) + LEAD
            rank.nccl("allreduce", own - 20 * US, own, met + chance.randrange(200, 4_000), Seq=step + 1)
    for rank in ranks:
        rank.trace.write(folder / f"node{rank.rank // 2}_{700 + rank.rank}.1760000000000000000.pt.trace.json.gz")
    with (folder / "truth.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["rank", "step", "kind", "microbatch", "true_start_ns", "true_end_ns"])
        base = Trace.base_ns or 0
        for b in blocks:
            microbatch = "" if b.kind == "OPT" else b.microbatch
            table.writerow([b.rank, b.step, b.kind, microbatch, b.start_ns + base, b.end_ns + base])
    return blocks


if __name__ == "__main__":
    write(Path(__file__).parent.parent / "kineto" / "two_hosts")
