"""Simulate a made-up pipeline: when every block and every transfer of a run really happened.

All generators of profiles write what this simulator gives, each in the format of its profiler. A rank is a stage; times
are integer nanoseconds of the true clock.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

US, MS = 1_000, 1_000_000

Operation = tuple[str, int]
"""Kind (F, B, W) and micro-batch of a block."""


@dataclass(frozen=True)
class Block:
    """A block as it really ran, from `start_ns` to `end_ns`. An optimizer step (OPT) has no micro-batch."""

    rank: int
    step: int
    kind: str
    microbatch: int | None
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Transfer:
    """An activation (F) or gradient (B): posted by the sender and the receiver, and received by `done_ns`."""

    step: int
    kind: str
    microbatch: int
    sender: int
    receiver: int
    sent_ns: int
    posted_ns: int
    done_ns: int


@dataclass(frozen=True)
class Timing:
    """How long everything takes, in nanoseconds; ranges are of random microseconds, drawn for every block.

    `hop` lies between the end of a block and the start of the one that needs its output, `lead` between two blocks of
    a rank, `gap` between two steps, `reduce` between the last block of a step and its optimizers. With
    `blocking_receives` a transfer begins only when its receiver is free.
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


@dataclass
class Simulation:
    """What happened: blocks and transfers in an order that obeys all dependencies; when each step's reduce ended."""

    blocks: list[Block] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    reduced: list[int] = field(default_factory=list)


def one_f_one_b(stage: int, stages: int, microbatches: int) -> list[Operation]:
    """1F1B: `stages - stage` warm-up forwards, then one backward and one forward in turn, then the other backwards."""
    ahead = min(stages - stage, microbatches)
    operations = [("F", m) for m in range(ahead)]
    for m in range(microbatches):
        operations.append(("B", m))
        if ahead + m < microbatches:
            operations.append(("F", ahead + m))
    return operations


def zb_h1(stage: int, stages: int, microbatches: int) -> list[Operation]:
    """ZB-H1: as 1F1B, but weight gradients wait until the pipeline would idle: `stage` of them are kept back."""
    ahead = min(stages - stage, microbatches)
    operations = [("F", m) for m in range(ahead)]
    for m in range(microbatches):
        operations.append(("B", m))
        if m >= stage:
            operations.append(("W", m - stage))
        if ahead + m < microbatches:
            operations.append(("F", ahead + m))
    return operations + [("W", m) for m in range(microbatches - min(stage, microbatches), microbatches)]


def source_of(kind: str, stage: int, stages: int) -> int | None:
    """The stage whose block of the same kind and micro-batch a block needs, None where it needs none."""
    source = {"F": stage - 1, "B": stage + 1}.get(kind, -1)
    return source if 0 <= source < stages else None


def in_feasible_order(orders: Sequence[Sequence[Operation]]) -> Iterator[tuple[int, Operation]]:
    """Stage and operation of all blocks of a step, each after the block that it needs, in each stage's own order."""
    todo = [list(reversed(order)) for order in orders]
    done: set[tuple[int, Operation]] = set()
    while any(todo):
        before = len(done)
        for stage, operations in enumerate(todo):
            while operations:
                source = source_of(operations[-1][0], stage, len(todo))
                if source is not None and (source, operations[-1]) not in done:
                    break
                operation = operations.pop()
                done.add((stage, operation))
                yield stage, operation
        if len(done) == before:
            raise ValueError("these orders wait for each other for ever")


def simulate(orders: Sequence[Sequence[Operation]], timing: Timing, steps: range, chance: random.Random) -> Simulation:
    """Runs `steps` steps of the pipeline whose stages work through `orders`: a block starts when its rank is free and
    its input has arrived. Raises ValueError for orders that wait for each other."""
    ranks = range(len(orders))
    found = Simulation()
    free = [timing.first for _ in ranks]
    for step in steps:
        ends: dict[tuple[int, Operation], int] = {}
        for rank, (kind, microbatch) in in_feasible_order(orders):
            start = free[rank] + timing.lead
            source = source_of(kind, rank, len(orders))
            if source is not None:
                sent = ends[source, (kind, microbatch)]
                arrived = (max(free[rank], sent) if timing.blocking_receives else sent) + timing.hop
                found.transfers.append(Transfer(step, kind, microbatch, source, rank, sent, free[rank], arrived))
                start = max(start, arrived + (timing.lead if timing.blocking_receives else 0))
            start += _drawn(timing.start_jitter, chance)
            end = start + timing.lengths[kind] + _drawn(timing.length_jitter, chance)
            ends[rank, (kind, microbatch)] = free[rank] = end
            found.blocks.append(Block(rank, step, kind, microbatch, start, end))
        reduced = max(free) + timing.reduce
        found.reduced.append(reduced)
        for rank in ranks:
            start = reduced + timing.lead + _drawn(timing.optimizer_jitter, chance)
            found.blocks.append(Block(rank, step, "OPT", None, start, start + timing.lengths["OPT"]))
        free = [reduced + timing.lead + timing.lengths["OPT"] + timing.gap for _ in ranks]
    return found


def _drawn(microseconds: range, chance: random.Random) -> int:
    return chance.choice(microseconds) * US if len(microseconds) > 1 else microseconds[0] * US
