"""Write Nsight Systems exports of a made-up zero-bubble (ZB-H1) run, with the truth beside them.

    python -m samples.generators.nsys            # writes samples/nsys/two_hosts again

Two hosts, one session and two ranks on each. Forward and weight-gradient kernels are launched from the main thread,
which holds the NVTX ranges, backward kernels from autograd's thread; activations and gradients go through NCCL kernels
that run until both sides have met. Durations are made up; the order obeys the pipeline. A host's clock may be off.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from samples.generators.block_kernels import Cut
from samples.generators.layer_ranges import LayerRanges
from samples.generators.nsys_export import Export
from samples.generators.pipeline import (
    MS,
    US,
    Block,
    Simulation,
    Timing,
    Transfer,
    WrongTimes,
    one_f_one_b,
    recorded,
    simulate,
    zb_h1,
)

LEAD = 90 * US
TIMING = Timing(
    lengths={"F": 2 * MS, "B": 2_100 * US, "W": 1_800 * US, "OPT": 4 * MS},
    hop=300 * US,
    lead=LEAD,
    gap=3 * MS - LEAD,
    first=20 * MS,
    start_jitter=range(20, 90),
    length_jitter=range(-150, 150),
    optimizer_jitter=range(50, 250),
)
AUTOGRAD = 9
"""What autograd's thread id is above the main thread's."""
STREAMS = 7, 13
"""Those of computing: a block that begins before the last one of a stream has ended runs on the other one."""


def free_stream(ends: dict[int, int], block: Block) -> int:
    """The first of `STREAMS` that has ended its work when the block begins, else the last; it is then at work until the
    block ends."""
    stream = next((stream for stream in STREAMS if ends.get(stream, 0) <= block.start_ns), STREAMS[-1])
    ends[stream] = block.end_ns
    return stream


def blocks_of(stages: int, microbatches: int, steps: int, chance: random.Random, *, split: bool = True) -> list[Block]:
    """The blocks of a ZB-H1 run, or where backwards are not `split` of a 1F1B run; times begin with the session."""
    order = zb_h1 if split else one_f_one_b
    orders = [order(stage, stages, microbatches) for stage in range(stages)]
    return simulate(orders, TIMING, range(steps), chance).blocks


class Dialect:
    """How a framework names its ranges: here the zero-bubble runtime of Sea AI Lab, F3.0.0 and SEND_FORWARD.3.0.0."""

    split = True
    registered = False
    domain = 0
    steps = True
    """Whether steps have ranges, iter_RANK_STEP."""
    lost: Collection[int] = ()
    """The steps of which no range was kept, as of those that are open when the profiler begins or ends."""

    def block(self, block: Block, stage: int) -> str:
        return "Optimizer" if block.kind == "OPT" else f"{block.kind}{block.microbatch}.{block.chunk or 0}.0"

    def names(self, block: Block, stage: int) -> list[str]:
        """Those of all ranges around a block, the outermost first."""
        return [self.block(block, stage)]

    def transfer(self, what: str, block: Block, stage: int) -> str:
        direction = "FORWARD" if block.kind == "F" else "BACKWARD"
        return f"{what}_{direction}.{block.microbatch}.0.0"

    def batch(self, sides: Sequence[tuple[str, Transfer]]) -> str:
        """The name of what sends and receives all `sides` at once."""
        words = {"F": "FORWARD", "B": "BACKWARD"}
        return "_".join(f"{what}_{words[t.kind]}.{t.microbatch}.{t.chunk}.0" for what, t in sides)


class Unnamed(Dialect):
    """The same without ranges around blocks of some `kinds`."""

    def __init__(self, *kinds: str) -> None:
        self.kinds = kinds

    def names(self, block: Block, stage: int) -> list[str]:
        return [] if block.kind in self.kinds else super().names(block, stage)


class Torch(Dialect):
    """torch.distributed.pipelining below emit_nvtx, which numbers every operation."""

    def block(self, block: Block, stage: int) -> str:
        if block.kind == "OPT":
            return "Optimizer.step#AdamW.step, op_id = 7"
        return (
            f"PP:{stage}{'I' if block.kind == 'B' else block.kind}{block.microbatch}, op_id = {block.start_ns % 9973}"
        )

    def transfer(self, what: str, block: Block, stage: int) -> str:
        return f"PP:{stage}{what}_{block.kind}{block.microbatch}, op_id = 3"


class DeepSpeed(Dialect):
    """DeepSpeed's engine: registered names in a domain of their own, without numbers."""

    split, registered, domain = False, True, 2

    def block(self, block: Block, stage: int) -> str:
        names = {"F": "DeepSpeedEngine.forward", "B": "DeepSpeedEngine.backward", "OPT": "DeepSpeedEngine.step"}
        return names[block.kind]

    def transfer(self, what: str, block: Block, stage: int) -> str:
        direction = "forward" if block.kind == "F" else "backward"
        return f"megatron.core.pipeline_parallel.p2p_communication.{what.lower()}_{direction}"


class Plain(DeepSpeed):
    """Megatron's own function names."""

    registered, domain = False, 0

    def block(self, block: Block, stage: int) -> str:
        return {"F": "forward_step", "B": "backward_step", "OPT": "Optimizer"}[block.kind]


class Mapping(Plain):
    """MindSpeed's dictionaries; forwards have a number."""

    def block(self, block: Block, stage: int) -> str:
        if block.kind == "F":
            return str({"name": "forward_step", "current_microbatch": block.microbatch})
        return str({"name": "backward_step"}) if block.kind == "B" else "Optimizer"


class Megatron(Plain):
    """Megatron's function names and PyTorch's optimizer, with MindSpeed's or DualPipe's store of weight gradients."""

    split = True

    def block(self, block: Block, stage: int) -> str:
        names = {"F": "forward_step", "B": "backward_step", "W": "WeightGradStore.pop"}
        return names.get(block.kind, "Optimizer.step#Adam.step")


class Together(Plain):
    """Several runtimes in one program: `parts` are their dialects, the outermost first, and which kinds each names, as
    in {"F", "OPT"}; of a dialect in `last` only the last stage has the kinds given there. A block that none names has
    no range."""

    def __init__(self, stages: int, parts: Sequence[tuple[Dialect, set[str]]],
                 last: Sequence[tuple[Dialect, set[str]]] = ()) -> None:  # fmt: skip
        self.stages, self.parts, self.last = stages, parts, last

    def names(self, block: Block, stage: int) -> list[str]:
        parts = [*self.parts, *(self.last if stage == self.stages - 1 else ())]
        return [dialect.block(block, stage) for dialect, kinds in parts if block.kind in kinds]


class PithTrain(Plain):
    """PithTrain's DualPipeV: the number of the micro-batch, and its chunk of the V as a phase."""

    steps = False

    def block(self, block: Block, stage: int) -> str:
        f, b = (f"{word} chunk {{}} (phase{{}})" for word in ("forward", "backward"))
        names = {"F": f.format(block.microbatch, block.chunk), "B": b.format(block.microbatch, block.chunk),
                 "W": "weight chunk", "OPT": "Optimizer.step#Adam.step"}  # fmt: skip
        return names.get(block.kind) or f"{names['F']} {b.format(block.microbatch_b, block.chunk_b)}"


def at_random(block: Block, count: int, chance: random.Random) -> list[tuple[str, int, int]]:
    """A block as this many kernels, one after another."""
    cuts = sorted(chance.sample(range(block.start_ns + US, block.end_ns - US), count - 1))
    times = zip([block.start_ns, *cuts], [*cuts, block.end_ns], strict=True)
    return [(f"{block.kind.lower()}_kernel_{i}", begin, until) for i, (begin, until) in enumerate(times)]


class Recorder(Protocol):
    """What a profiler records of a process; times are those of its clock."""

    host: str

    def range(self, process: int, start: int, end: int | None, text: str, *, thread: int | None = None,
              registered: bool = False, domain: int = 0) -> None: ...  # fmt: skip
    def call(self, process: int, start: int, *, thread: int | None = None, name: str = ...) -> int: ...
    def kernel(self, process: int, start: int, end: int, correlation: int | None, *, name: str = ...,
               stream: int = ..., device: int = ...) -> None: ...  # fmt: skip
    def write(self, path: Path) -> Path: ...


class Rank:
    """Puts the ranges, launches and kernels of one rank into its host's export."""

    def __init__(self, export: Recorder, rank: int, clock_ns: int, kernels: int = 4, dialect: Dialect | None = None,
                 wrong: WrongTimes | None = None, process: int | None = None, devices: int = 1,
                 threads: bool = True, cut: Cut | None = None, layers: LayerRanges | None = None,
                 stage: int | None = None, stages: int = 1):  # fmt: skip
        """`kernels`: how many in each block, at random unless `cut` says which; `devices`: how many ranks are devices
        of one process, each with `threads` of its own or all with one; `layers`: those of its `stage`, one of
        `stages`, have ranges."""
        self.wrong, self.cut = wrong or {}, cut
        self.layers, self.stage, self.stages = layers, rank if stage is None else stage, stages
        self.export, self.rank, self.clock_ns, self.kernels = export, rank, clock_ns, kernels
        self.dialect = dialect or Dialect()
        self.ends: dict[int, int] = {}
        self.job, self.device = divmod(rank, devices)
        self.process = 4_000 + 11 * self.job if process is None else process
        self.thread = self.process + (100 * self.device if threads else 0)

    def range(self, start: int, end: int, name: str) -> None:
        registered, domain = self.dialect.registered, self.dialect.domain
        self.export.range(self.process, start, end, name, thread=self.thread, registered=registered, domain=domain)

    def block(self, block: Block, chance: random.Random) -> None:
        """The range stands LEAD before the first kernel, when the launches are made."""
        thread = self.thread + AUTOGRAD * (block.kind == "B")
        kernels = self.cut(block) if self.cut else at_random(block, self.kernels, chance)
        launch, stream = block.start_ns + self.clock_ns - 60 * US, free_stream(self.ends, block)
        for depth, name in enumerate(self.dialect.names(block, self.rank)):
            self.range(launch - 4 * US + depth, launch + len(kernels) * 5 * US - depth, name)
        if self.layers:
            part = (block.chunk or 0) * self.stages + self.stage
            self.layers.write(block, part, self.stages, launch, launch + len(kernels) * 5 * US - US, self.of_layer)
        for i, (name, *times) in enumerate(kernels):
            launched = "cuLaunchKernelEx" if i % 2 else "cudaLaunchKernel_v7000"
            call = self.export.call(self.process, launch + i * 5 * US, thread=thread, name=launched)
            times = recorded(block, i, *(t + self.clock_ns for t in times), self.wrong)
            self.export.kernel(self.process, *times, call, name=name, stream=stream, device=self.device)

    def of_layer(self, start: int, end: int, name: str, autograd: bool) -> None:
        self.export.range(self.process, start, end, name, thread=self.thread + AUTOGRAD * autograd)

    def transfer(self, kind: str, block: Block, launch_ns: int, start_ns: int, end_ns: int, stream: int) -> None:
        name = self.dialect.transfer(kind, block, self.rank)
        self.send_or_receive(name, launch_ns, start_ns, end_ns, stream)

    def send_or_receive(self, text: str, launch_ns: int, start_ns: int, end_ns: int, stream: int) -> None:
        launch, start, end = (t + self.clock_ns for t in (launch_ns, start_ns, end_ns))
        self.range(launch - 2 * US, launch + 4 * US, text)
        call = self.export.call(self.process, launch, thread=self.thread)
        name = "ncclDevKernel_SendRecv"
        self.export.kernel(self.process, start, end, call, name=name, stream=stream, device=self.device)

    def steps(self, blocks: list[Block]) -> None:
        steps = {b.step for b in blocks if b.step >= 0 and self.dialect.steps and self.device == 0}
        for step in sorted(steps - set(self.dialect.lost)):
            mine = [b for b in blocks if b.step == step]
            start, end = mine[0].start_ns - 2 * LEAD, mine[-1].end_ns
            self.export.range(self.process, start + self.clock_ns, end + self.clock_ns, f"iter_{self.job}_{step}")


def record(folder: Path, blocks: list[Block], hosts: int, clock_errors_ns: tuple[int, ...], chance: random.Random,
           dialect: Dialect | None = None, wrong: WrongTimes | None = None
           ) -> list[tuple[int, str, str, int, int]]:  # fmt: skip
    """One export per host in `folder`. Returns all transfers' sides: rank, send or recv, direction, start, end, in
    session time of the host."""
    stages = 1 + max(b.rank for b in blocks)
    exports = [Export(host=f"node{h}") for h in range(hosts)]
    per_host = stages // hosts
    ranks = [
        Rank(exports[r // per_host], r, clock_errors_ns[r // per_host], dialect=dialect, wrong=wrong)
        for r in range(stages)
    ]
    sides = fill(ranks, blocks, chance)
    folder.mkdir(parents=True, exist_ok=True)
    for export in exports:
        export.write(folder / f"{export.host}.sqlite")
    return sides


def planted(
    timing: Timing, chance: random.Random, stages: int = 8, microbatches: int = 8, steps: int = 3
) -> Simulation:
    """A 1F1B run with the causes of lost time that are planted in `timing`. A rank posts a receive when it is free, so
    that the NCCL kernels of a transfer last as long as it takes."""
    orders = [one_f_one_b(stage, stages, microbatches) for stage in range(stages)]
    return simulate(orders, replace(timing, blocking_receives=True), range(steps), chance)


def write_planted(folder: Path, timing: Timing, *, stages: int = 8, microbatches: int = 8, steps: int = 3,
                  hosts: int = 4) -> list[Block]:  # fmt: skip
    """An export per host of the run that `planted` simulates. Returns the truth."""
    chance = random.Random(1)
    run = planted(timing, chance, stages, microbatches, steps)
    exports = [Export(host=f"node{host}") for host in range(hosts)]
    ranks = [Rank(exports[rank * hosts // stages], rank, 0) for rank in range(stages)]
    fill_met(ranks, run, chance)
    folder.mkdir(parents=True, exist_ok=True)
    for export in exports:
        export.write(folder / f"{export.host}.sqlite")
    return run.blocks


def fill_met(ranks: Sequence[Rank], run: Simulation, chance: random.Random, *, batched: bool = False) -> None:
    """Puts the blocks and transfers of a run into the exports of the ranks; both sides of a transfer end with it. With
    `batched` what a rank sends and receives at once is one kernel, which ends with the last of it."""
    for rank in ranks:
        mine = [b for b in run.blocks if b.rank == rank.rank]
        for block in mine:
            rank.block(block, chance)
        rank.steps(mine)
    if batched:
        for rank, at, end, sides in batches(run.transfers):
            ranks[rank].send_or_receive(ranks[rank].dialect.batch(sides), at - 6 * US, at + 3 * US, end, 20)
        return
    made = {(b.rank, b.step, b.kind, b.microbatch): b for b in run.blocks}
    for t in run.transfers:
        sent, received = (made[rank, t.step, t.kind, t.microbatch] for rank in (t.sender, t.receiver))
        ranks[t.receiver].transfer("RECV", received, t.posted_ns + 6 * US, t.posted_ns + 12 * US, t.done_ns, 20)
        ranks[t.sender].transfer("SEND", sent, t.sent_ns - 6 * US, t.sent_ns + 3 * US, t.done_ns, 21)


def batches(transfers: Sequence[Transfer]) -> Iterator[tuple[int, int, int, list[tuple[str, Transfer]]]]:
    """Of all that a rank posts at once: rank, when, when the last of it is done, and the sides of transfers."""
    posted: dict[tuple[int, int], list[tuple[str, Transfer]]] = {}
    for t in transfers:
        posted.setdefault((t.sender, t.sent_ns), []).append(("SEND", t))
        posted.setdefault((t.receiver, t.posted_ns), []).append(("RECV", t))
    for (rank, at), sides in posted.items():
        yield rank, at, max(t.done_ns for _, t in sides), sides


def fill(ranks: Sequence[Rank], blocks: list[Block], chance: random.Random) -> list[tuple[int, str, str, int, int]]:
    """Puts the blocks and their transfers into the exports of the ranks. Returns the transfers as `record` does."""
    at = {(b.rank, b.step, b.kind, b.microbatch): b for b in blocks}
    sides = []
    for rank in ranks:
        for block in (mine := [b for b in blocks if b.rank == rank.rank]):
            rank.block(block, chance)
            source = at.get((block.rank + (-1 if block.kind == "F" else 1), block.step, block.kind, block.microbatch))
            if block.kind in "FB" and source:
                met, sender = block.start_ns - 7 * US, ranks[source.rank]
                end = met + chance.randrange(200, 3_000)
                rank.transfer("RECV", block, block.start_ns - 80 * US, block.start_ns - 75 * US, end, 20)
                sender.transfer("SEND", source, source.start_ns - 35 * US, source.end_ns + 3 * US, met, 21)
                received = block.start_ns - 75 * US + rank.clock_ns, end + rank.clock_ns
                sent = source.end_ns + 3 * US + sender.clock_ns, met + sender.clock_ns
                sides += [(rank.rank, "recv", block.kind, *received), (sender.rank, "send", block.kind, *sent)]
        rank.steps(mine)
    return sides


def write(folder: Path, *, stages: int = 4, microbatches: int = 6, steps: int = 2, hosts: int = 2,
          clock_errors_ns: tuple[int, ...] = (0, 2_700_000), seed: int = 1) -> list[Block]:  # fmt: skip
    """A ZB-H1 run: one export per host in `folder`, and truth.csv. Returns the truth."""
    chance, dialect = random.Random(seed), Dialect()
    blocks = blocks_of(stages, microbatches, steps, chance)
    record(folder, blocks, hosts, clock_errors_ns, chance, dialect)
    with (folder / "truth.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["rank", "step", "kind", "microbatch", "marker", "true_start_ns", "true_end_ns"])
        for b in (replace(b, start_ns=b.start_ns + Export.epoch_ns, end_ns=b.end_ns + Export.epoch_ns) for b in blocks):
            microbatch = "" if b.kind == "OPT" else b.microbatch
            table.writerow([b.rank, b.step, b.kind, microbatch, dialect.block(b, b.rank), b.start_ns, b.end_ns])
    return blocks


if __name__ == "__main__":
    write(Path(__file__).parent.parent / "nsys" / "two_hosts")
