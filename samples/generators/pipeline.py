"""Simulate a made-up pipeline: when every block and every transfer of a run really happened.

All generators of profiles write what this simulator gives, each in the format of its profiler. Times are integer
nanoseconds of the true clock. The orders of operations are written here anew, or read from golden files: none comes
from the program under test.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

US, MS = 1_000, 1_000_000


class Half(NamedTuple):
    """The forward (F) or backward (B) of a micro-batch through a chunk of a stage."""

    kind: str
    microbatch: int
    chunk: int = 0


class Operation(NamedTuple):
    """What a stage does next: F, B, W (weight gradient), FB (a fused pair; the backward's numbers are `*_b`), or L, the
    backward of the loss head, which nothing waits for."""

    kind: str
    microbatch: int
    chunk: int = 0
    microbatch_b: int | None = None
    chunk_b: int | None = None

    def halves(self) -> tuple[Half, ...]:
        """The forwards and backwards that other stages wait for."""
        if self.kind == "FB":
            assert self.microbatch_b is not None
            assert self.chunk_b is not None
            return Half("F", self.microbatch, self.chunk), Half("B", self.microbatch_b, self.chunk_b)
        return (Half(self.kind, self.microbatch, self.chunk),) if self.kind in "FB" else ()


Order = Sequence[Operation]
"""The operations of one stage in one step."""


@dataclass(frozen=True)
class Block:
    """An operation as it really ran on a rank, from `start_ns` to `end_ns`. An optimizer (OPT) has no micro-batch. The
    step of an evaluation is negative: it is not a step."""

    rank: int
    step: int
    kind: str
    microbatch: int | None
    start_ns: int
    end_ns: int
    chunk: int | None = None
    microbatch_b: int | None = None
    chunk_b: int | None = None


WrongTimes = Mapping[tuple[int, int, str, int | None, int], int]
"""Kernels whose times a profiler got wrong, by the rank, step, kind and micro-batch of their block and their place in
it: by how many ns their end is too late, or where that is negative, both their times are too early."""


def recorded(block: Block, place: int, start: int, end: int, wrong: WrongTimes) -> tuple[int, int]:
    """The times that a profiler records of the kernel at a place in a block."""
    by = wrong.get((block.rank, block.step, block.kind, block.microbatch, place), 0)
    return start + min(by, 0), end + by


@dataclass(frozen=True)
class Transfer:
    """An activation (F) or gradient (B): posted by the sender and the receiver, and received by `done_ns`. The chunk is
    that of the receiver."""

    step: int
    kind: str
    microbatch: int
    sender: int
    receiver: int
    sent_ns: int
    posted_ns: int
    done_ns: int
    chunk: int = 0

    def issued_ns(self, rank: int) -> int:
        """When the sender or receiver `rank` posted its side."""
        return self.sent_ns if rank == self.sender else self.posted_ns


@dataclass(frozen=True)
class Timing:
    """How long everything takes, in nanoseconds; ranges are of random microseconds, drawn for every block.

    `hop` lies between the end of a block and the start of the one that needs its output, `lead` between two blocks of
    a rank, `gap` between two steps, `reduce` between the last block of a step and its optimizers. With
    `blocking_receives` a transfer begins only when its receiver is free.

    Causes of lost time may be planted: `slow` (rank → how many times as long its blocks take), `late` (rank → how long
    after it could each of its blocks starts) and `slow_links` (sender and receiver → what is added to `hop`).
    """

    lengths: Mapping[str, int]
    hop: int
    lead: int = 0
    gap: int = 0
    reduce: int = 0
    first: int = 0
    start_jitter: range = range(1)
    length_jitter: range = range(1)
    optimizer_jitter: range = range(1)
    blocking_receives: bool = False
    slow: Mapping[int, float] = field(default_factory=dict)
    late: Mapping[int, int] = field(default_factory=dict)
    slow_links: Mapping[tuple[int, int], int] = field(default_factory=dict)


@dataclass
class Simulation:
    """What happened: blocks and transfers in an order that obeys all dependencies; when each step's reduce ended."""

    blocks: list[Block] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    reduced: list[int] = field(default_factory=list)


def one_f_one_b(stage: int, stages: int, microbatches: int) -> list[Operation]:
    """1F1B: `stages - stage` warm-up forwards, then one backward and one forward in turn, then the other backwards."""
    ahead = min(stages - stage, microbatches)
    operations = [Operation("F", m) for m in range(ahead)]
    for m in range(microbatches):
        operations.append(Operation("B", m))
        if ahead + m < microbatches:
            operations.append(Operation("F", ahead + m))
    return operations


def zb_h1(stage: int, stages: int, microbatches: int) -> list[Operation]:
    """ZB-H1: as 1F1B, but weight gradients wait until the pipeline would idle: `stage` of them are kept back."""
    ahead = min(stages - stage, microbatches)
    operations = [Operation("F", m) for m in range(ahead)]
    for m in range(microbatches):
        operations.append(Operation("B", m))
        if m >= stage:
            operations.append(Operation("W", m - stage))
        if ahead + m < microbatches:
            operations.append(Operation("F", ahead + m))
    held = range(microbatches - min(stage, microbatches), microbatches)
    return operations + [Operation("W", m) for m in held]


def source_of(half: Half, stage: int, stages: int, chunks: int = 1, vee: bool = False) -> tuple[int, Half] | None:
    """The stage and half whose output a half needs; None for the first forward and the last backward of the model.

    Chunk c of stage s is part c·P + s of the model; with `vee` the parts of chunk 1 run back: 2P - 1 - s.
    """
    part = half.chunk * stages + (stages - 1 - stage if vee and half.chunk else stage)
    source = part - 1 if half.kind == "F" else part + 1
    if not 0 <= source < chunks * stages:
        return None
    chunk, at = divmod(source, stages)
    return stages - 1 - at if vee and chunk else at, half._replace(chunk=chunk)


def in_feasible_order(orders: Sequence[Order], chunks: int = 1, vee: bool = False) -> Iterator[tuple[int, Operation]]:
    """Stage and operation of all blocks of a step, each after the blocks that it needs, in each stage's own order.

    Raises ValueError for orders that wait for each other.
    """
    todo = [list(reversed(order)) for order in orders]
    done: set[tuple[int, Half]] = set()
    moved = True
    while moved:
        moved = False
        for stage, operations in enumerate(todo):
            while operations:
                halves = operations[-1].halves()
                sources = (source_of(half, stage, len(todo), chunks, vee) for half in halves)
                if any(source is not None and source not in done for source in sources):
                    break
                yield stage, operations.pop()
                done.update((stage, half) for half in halves)
                moved = True
    if any(todo):
        raise ValueError("these orders wait for each other for ever")


def simulate(
    orders: Sequence[Order],
    timing: Timing,
    steps: range,
    chance: random.Random,
    *,
    chunks: int = 1,
    vee: bool = False,
) -> Simulation:
    """Runs `steps` of the pipeline whose stages work through `orders`; a rank is a stage. A block starts when its rank
    is free and its inputs have arrived. Raises ValueError for orders that wait for each other."""
    run = Replica(len(orders), timing, chance, chunks, vee)
    for step in steps:
        for rank, operation in in_feasible_order(orders, chunks, vee):
            run.block(step, rank, operation)
        run.optimizers(step)
    return run.found


class Replica:
    """The state of a simulation: until when each rank is busy, and when each half of the step at hand ended."""

    def __init__(self, stages: int, timing: Timing, chance: random.Random, chunks: int = 1, vee: bool = False) -> None:
        self.stages, self.timing, self.chance, self.chunks, self.vee = stages, timing, chance, chunks, vee
        self.found = Simulation()
        self.free = [timing.first] * stages
        self.ready = [timing.first] * stages
        """When each rank has what its blocks need besides their inputs."""
        self.ends: dict[tuple[int, Half], int] = {}

    def block(self, step: int, rank: int, operation: Operation) -> None:
        start = max(self.free[rank], self.ready[rank]) + self.timing.lead
        for half in operation.halves():
            source = source_of(half, rank, self.stages, self.chunks, self.vee)
            if source is not None:
                start = max(start, self.arrival(step, rank, half, source))
        start += _drawn(self.timing.start_jitter, self.chance) + self.timing.late.get(rank, 0)
        length = self.timing.lengths[operation.kind] + _drawn(self.timing.length_jitter, self.chance)
        end = start + round(length * self.timing.slow.get(rank, 1))
        for half in operation.halves():
            self.ends[rank, half] = end
        self.free[rank] = end
        numbers = operation.chunk, operation.microbatch_b, operation.chunk_b
        self.found.blocks.append(Block(rank, step, operation.kind, operation.microbatch, start, end, *numbers))

    def arrival(self, step: int, rank: int, half: Half, source: tuple[int, Half]) -> int:
        """When a block may start that needs `source`; records the transfer, if it is one between ranks."""
        sent, free = self.ends[source], self.free[rank]
        if source[0] == rank:
            return sent + self.timing.lead
        hop = self.timing.hop + self.timing.slow_links.get((source[0], rank), 0)
        arrived = (max(free, sent) if self.timing.blocking_receives else sent) + hop
        transfer = Transfer(step, half.kind, half.microbatch, source[0], rank, sent, free, arrived, half.chunk)
        self.found.transfers.append(transfer)
        return arrived + (self.timing.lead if self.timing.blocking_receives else 0)

    def optimizers(self, step: int) -> None:
        """Ends the step: all ranks reduce their gradients together, then each runs its optimizer."""
        timing, reduced = self.timing, max(self.free) + self.timing.reduce
        self.found.reduced.append(reduced)
        for rank in range(self.stages):
            start = reduced + timing.lead + _drawn(timing.optimizer_jitter, self.chance)
            self.found.blocks.append(Block(rank, step, "OPT", None, start, start + timing.lengths["OPT"]))
        self.free = [reduced + timing.lead + timing.lengths["OPT"] + timing.gap] * self.stages
        self.ends.clear()


def with_evaluations(blocks: Sequence[Block], before: Sequence[int], forwards: int, timing: Timing) -> list[Block]:
    """The blocks of a run, with an evaluation of this many forwards before each of some steps (the one after the last
    is one more): all ranks finish the step, run the forwards, and go on when the last rank has."""
    stages, steps = 1 + max(b.rank for b in blocks), sorted({b.step for b in blocks})
    begins = {step: min(b.start_ns for b in blocks if b.step == step) for step in steps}
    end = max(b.end_ns for b in blocks)
    length, found, late = timing.lengths["F"] // 2, [], 0
    for step in [*steps, steps[-1] + 1]:
        if step in before:
            start = begins.get(step, end + 2 * timing.hop) + late
            late += timing.hop * (stages + 2) + length * (stages + forwards) + forwards * timing.lead
            for rank in range(stages):
                for number in range(forwards):
                    at = start + rank * (length + timing.hop) + number * (length + timing.lead)
                    found.append(Block(rank, -1 - step, "F", number, at, at + length))
        found += [replace(b, start_ns=b.start_ns + late, end_ns=b.end_ns + late) for b in blocks if b.step == step]
    return found


def _drawn(microseconds: range, chance: random.Random) -> int:
    return chance.choice(microseconds) * US if len(microseconds) > 1 else microseconds[0] * US
