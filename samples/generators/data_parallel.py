"""Simulate a training job of many ranks, and write it as profiles of the readers.

In each step the later stages gather their parameters from all replicas before their first forward, every stage reduces
its gradients over the replicas after its last backward, all ranks reduce the norm of the gradients, and the optimizers
run. A collective ends on all of its members at once, its length after the last of them has started. Causes of lost time
may be planted; two jobs that differ in what is planted draw the same chances, so that the difference of their steps is
what the cause costs. Nothing of the program under test is used.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import polars as pl

from samples.generators import ascend, kineto, nsys, paddle, rocpd
from samples.generators.ascend_export import Operator, Recording
from samples.generators.block_kernels import USUAL, Shape, cut_by
from samples.generators.layer_ranges import LayerRanges
from samples.generators.nsys_export import Export
from samples.generators.pipeline import (
    MS,
    US,
    Block,
    Half,
    Operation,
    Order,
    Simulation,
    Transfer,
    in_feasible_order,
    one_f_one_b,
    source_of,
    zb_h1,
)

GATHER, REDUCE, NORM = "all_gather", "reduce_scatter", "all_reduce"
LEAD = 90 * US
EXCHANGED = 0.95
"""The share of a block after which the slowest of a tensor group waits for its data."""
FIRST_NS = 1_760_000_000_000_000_000
Place = tuple[str, int]
"""A collective of a step, and its stage."""
Cell = tuple[int, int]
"""Replica and stage: one lane of blocks, which all its tensor ranks run together."""
Receives = Literal["early", "at once", "late", "random"]
ALL_RANKS, TIED, INNER = -1, -2, -3


class Collective(NamedTuple):
    """What a rank has of a collective: its part starts with the rank and ends with the others. `stage`: that of the
    replicas that take part, None where all ranks do, `TIED` where the first and the last of a replica do, `INNER`
    where those of a tensor group."""

    op: str
    stage: int | None
    step: int
    rank: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Job:
    """A run of `stages` × `replicas` × `tensor` ranks, which lie on `hosts` one after the other.

    Ranks are numbered tensor fastest, then replica, then stage (Megatron's default); with `stages_first` tensor, stage,
    replica (Megatron's tp-pp-dp, Paddle). The ranks of a tensor group run each block together, as long as the slowest
    of them needs, but for some microseconds.

    A receive is posted `at once`, when its rank is free; `early`, when the block before begins, in a step's first
    blocks right after the previous optimizer; or it is recorded `late`, after the send; or each by chance. `jitter`:
    standard deviation of a block's length; `spread`: that of the speed of a lane, in all steps alike; `uneven`: that of
    the length of a micro-batch, in all its blocks alike; a step has the same work with and without. `lead`: between
    what a rank waits for and what it does next; `launch`: what that is longer after a block of its own, `unsteady` the
    standard deviation of that, as a share of it. `overlap`: so long before its end does a block release its rank, as
    streams do. With `rendezvous` a lane sends and receives in batches, as Megatron does without overlap: after a block,
    in the steady state of `interleaved` after a forward and a backward, it waits until all that these sent is taken and
    what the next ones need is there; what it sends is taken once the receiver has come to the batch of its receive.
    There one kernel sends and receives (nsys and kineto), unless they are `apart`. Unless gradients are `clipped`, all
    ranks reduce no norm, and nothing but data joins the stages. With `together` all ranks begin a step when the last
    has ended the one before; nothing records that.

    Causes of lost time may be planted: `slow` ((replica, stage) → how many times as long its blocks take), `slow_ranks`
    (rank → the same), `optimizers` (rank → the same of its optimizer), `longer` (collective and stage → what is added
    to its length), `late` (collective, replica and stage → how long after it could the rank starts it), `held`
    ((replica, stage) → how long after it could each block starts), `links` (sender and receiver → what is added to the
    hop), `loading` (replica → how long its first stage waits for data before each step), `fed` (replica → the same
    before each forward of the first chunk), `pause` (the same of all; `loads`: its standard deviation and that of
    `loading`, as a share of them, over steps and replicas), `shapes` (rank → what its blocks hold, and how long they
    are by that; only where it is given do blocks have kernels of layers), `collected` (rank → how much later one block
    of it in eight starts, by chance, as in a garbage collection; `inside`: how much longer it takes), `head` (how many
    times as long the blocks of the last chunk of the last stage take: it has the loss), `throttled` ((replica, stage) →
    how many times as long its blocks take in the last step, growing evenly from the first). What is planted is there in
    the steps `during` alone, where these are given.

    `buckets`: into how many parts of equal size the gradients of each chunk of a stage are divided; each is reduced as
    soon as its share of the chunk's last backward is done and the part before is reduced (overlapped reduction). Where
    there is one, all gradients of a stage are reduced at once, after its last block. `tied`: how long the first and the
    last stage of a replica then reduce the gradients of the embedding that they share (kineto and tables).

    `grid`: by so much later a collective is recorded to end, because the tool's times lie on a grid. With
    `unnumbered` weight gradients have no micro-batch (tables).

    With `gathers_last` the parameters are gathered right after the optimizer, and the next step begins a `gap` later:
    a gather belongs to the step before.

    `unrecorded`: how many of the first steps are not: the recording begins in a running job.

    `exchanges`: how many times in each block the ranks of a tensor group add up their results (kineto and tables); all
    go on when the slowest of them has come.

    No cause: `costs` (of each stage, how many times as long its blocks take, for it has other layers), `parts` (the
    same of each chunk of each stage, chunk by chunk), `warm_up` (of each of the first steps, how many times as long
    all blocks take). `layers`: ranges around the layers of each part (nsys and kineto).
    """

    stages: int = 4
    microbatches: int = 8
    replicas: int = 2
    steps: int = 3
    forward: int = 4 * MS
    backward: int = 8 * MS
    weight: int = 4 * MS
    hop: int = 150 * US
    gather: int = 2 * MS
    reduce: int = 6 * MS
    norm: int = MS
    tied: int = 0
    optimizer: int = 3 * MS
    gap: int = 4 * MS
    lead: int = LEAD
    launch: int = 0
    unsteady: float = 0.0
    exchanges: int = 0
    slow: Mapping[Cell, float] = field(default_factory=dict)
    longer: Mapping[Place, int] = field(default_factory=dict)
    late: Mapping[tuple[str, int, int], int] = field(default_factory=dict)
    tensor: int = 1
    hosts: int = 1
    stages_first: bool = False
    schedule: Literal["1f1b", "zb-h1", "gpipe", "interleaved", "vee"] = "1f1b"
    receives: Receives = "at once"
    jitter: float = 0.0
    spread: float = 0.0
    uneven: float = 0.0
    overlap: int = 0
    rendezvous: bool = False
    apart: bool = False
    clipped: bool = True
    together: bool = False
    buckets: int = 1
    gathers_last: bool = False
    grid: int = 0
    unnumbered: bool = False
    unrecorded: int = 0
    seed: int = 1
    slow_ranks: Mapping[int, float] = field(default_factory=dict)
    optimizers: Mapping[int, float] = field(default_factory=dict)
    held: Mapping[Cell, int] = field(default_factory=dict)
    links: Mapping[tuple[int, int], int] = field(default_factory=dict)
    loading: Mapping[int, int] = field(default_factory=dict)
    fed: Mapping[int, int] = field(default_factory=dict)
    pause: int = 0
    loads: float = 0.0
    collected: Mapping[int, int] = field(default_factory=dict)
    inside: bool = False
    head: float = 1.0
    throttled: Mapping[Cell, float] = field(default_factory=dict)
    during: frozenset[int] | None = None
    costs: tuple[float, ...] = ()
    parts: tuple[float, ...] = ()
    warm_up: tuple[float, ...] = ()
    shapes: Mapping[int, Shape] | None = None
    layers: LayerRanges | None = None

    @property
    def ranks(self) -> int:
        return self.stages * self.replicas * self.tensor

    @property
    def chunks(self) -> int:
        return 2 if self.schedule in ("interleaved", "vee") else 1

    @property
    def cells(self) -> list[Cell]:
        return [(a, s) for a in range(self.replicas) for s in range(self.stages)]

    def rank(self, replica: int, stage: int, tensor: int = 0) -> int:
        lane = replica * self.stages + stage if self.stages_first else stage * self.replicas + replica
        return lane * self.tensor + tensor

    def lane(self, replica: int, stage: int) -> list[int]:
        """The ranks of a tensor group."""
        return [self.rank(replica, stage, t) for t in range(self.tensor)]

    def place(self, rank: int) -> tuple[int, int, int]:
        """Replica, stage and tensor of a rank."""
        lane, tensor = divmod(rank, self.tensor)
        high, low = divmod(lane, self.stages if self.stages_first else self.replicas)
        return (high, low, tensor) if self.stages_first else (low, high, tensor)

    def host(self, rank: int) -> int:
        return rank * self.hosts // self.ranks

    def of_host(self, host: int) -> list[int]:
        return [rank for rank in range(self.ranks) if self.host(rank) == host]

    def orders(self) -> list[Order]:
        """The operations of each stage in a step."""
        stages, count = self.stages, self.microbatches
        if self.schedule == "interleaved":
            return [_interleaved(stage, stages, count) for stage in range(stages)]
        if self.schedule == "vee":
            return [_vee(stage, stages, count) for stage in range(stages)]
        if self.schedule == "gpipe":
            gpipe = [Operation(kind, m) for kind in "FB" for m in range(count)]
            return [gpipe for _ in range(stages)]
        order = zb_h1 if self.schedule == "zb-h1" else one_f_one_b
        return [order(stage, stages, count) for stage in range(stages)]


@dataclass
class Run(Simulation):
    """What happened; ranks are global."""

    collectives: list[Collective] = field(default_factory=list)

    @cached_property
    def begins(self) -> list[int]:
        """When the first block of each step started."""
        begins: dict[int, int] = {}
        for block in self.blocks:
            begins[block.step] = min(begins.get(block.step, block.start_ns), block.start_ns)
        return [begins[step] for step in sorted(begins)]

    @property
    def step_ns(self) -> float:
        """The mean time from the first block of a step to the first of the next."""
        return (self.begins[-1] - self.begins[0]) / (len(self.begins) - 1)

    def bubble(self, job: Job) -> float:
        """1 - busy / window over all lanes of all steps; the window of a replica is from the first to the last work. A
        lane that runs two blocks at a time is busy once."""
        busy = window = 0
        work = [b for b in self.blocks if b.kind != "OPT" and job.place(b.rank)[2] == 0]
        groups: dict[tuple[int, int], list[Block]] = {}
        for block in work:
            groups.setdefault((block.step, job.place(block.rank)[0]), []).append(block)
        for blocks in groups.values():
            ends: dict[int, int] = {}
            for b in sorted(blocks, key=lambda b: b.start_ns):
                busy += max(b.end_ns - max(b.start_ns, ends.get(b.rank, 0)), 0)
                ends[b.rank] = max(b.end_ns, ends.get(b.rank, 0))
            window += job.stages * (max(b.end_ns for b in blocks) - min(b.start_ns for b in blocks))
        return 1 - busy / window


def _interleaved(stage: int, stages: int, microbatches: int) -> list[Operation]:
    """Megatron's interleaved 1F1B with two chunks: groups of `stages` micro-batches go through one chunk after the
    other."""

    def unit(n: int, kind: str) -> Operation:
        group, inside = divmod(n, 2 * stages)
        chunk, low = divmod(inside, stages)
        return Operation(kind, group * stages + low, chunk if kind == "F" else 1 - chunk)

    total = 2 * microbatches
    warm = min((stages - stage - 1) * 2 + stages, total)
    order = [unit(n, "F") for n in range(warm)]
    for n in range(total - warm):
        order += [unit(warm + n, "F"), unit(n, "B")]
    return order + [unit(n, "B") for n in range(total - warm, total)]


def _vee(stage: int, stages: int, microbatches: int) -> list[Operation]:
    """Two chunks in a V: chunk 0 goes down the stages, chunk 1 back up. A stage runs the forwards of a pair of chunks,
    then in the steady state a forward of one chunk together with a backward of the other as one block (FB)."""
    down, up = [Operation("F", m, 0) for m in range(microbatches)], [Operation("F", m, 1) for m in range(microbatches)]
    warm = min(2 * (stages - stage - 1) + 1, microbatches)
    order = down[:warm]
    rest, back = down[warm:], list(range(microbatches))
    for m in range(microbatches):
        order.append(up[m])
        order.append(Operation("B", back[m], 1))
        if m < len(rest):
            order.append(Operation("FB", rest[m].microbatch, 0, m, 0))
        else:
            order.append(Operation("B", m, 0))
    return order


@dataclass(frozen=True)
class _Batches:
    """When the sends and receives before the blocks of a batch are `done`, and when those after them are `sent`, by
    stage and number."""

    done: Mapping[tuple[int, int], int]
    sent: Mapping[tuple[int, int], int]


def _batch_of(order: Order, schedule: str) -> list[int]:
    """The batch of each operation of a stage: a pair of a forward and a backward in the steady state of `interleaved`,
    else one alone."""
    kinds = [operation.kind for operation in order]
    if schedule != "interleaved" or "B" not in kinds:
        return list(range(len(order)))
    warm = kinds.index("B") - 1
    pairs = kinds.count("F") - warm
    steady = [warm + n // 2 for n in range(2 * pairs)]
    return [*range(warm), *steady, *range(warm + pairs, len(order) - pairs)]


_LAST: deque[tuple[Job, Run]] = deque(maxlen=8)


def simulate(job: Job) -> Run:
    """Runs the job. The last runs are kept: who draws, writes and judges a job gets the same one; nobody may change
    it."""
    run = next((run for kept, run in _LAST if kept == job), None)
    if run is None:
        run = _Simulator(job).run()
        _LAST.append((job, run))
    return run


class _Simulator:
    def __init__(self, job: Job) -> None:
        self.job, self.found, orders, vee = job, Run(), job.orders(), job.schedule == "vee"
        self.lanes = {cell: job.lane(*cell) for cell in job.cells}
        self.batch_of = [_batch_of(order, job.schedule) for order in orders]
        self.operations = [
            (stage, operation, [(h, source_of(h, stage, job.stages, job.chunks, vee)) for h in operation.halves()])
            for stage, operation in in_feasible_order(orders, job.chunks, vee)
        ]
        """Stage, operation, and its halves with the stage and half whose output each needs."""
        draw = np.random.default_rng(job.seed)
        cells, most = len(job.cells), max(len(order) for order in orders)
        self.noise = (draw.standard_normal((job.steps, cells, most)) * job.jitter).tolist()
        speeds = 1 + draw.standard_normal(cells) * job.spread
        sizes = np.exp(draw.standard_normal((job.steps, job.replicas, job.microbatches)) * job.uneven)
        self.sizes = (sizes / sizes.mean(axis=(1, 2), keepdims=True)).tolist()
        self.posts = draw.integers(0, 3, (job.steps, cells, most)).tolist()
        self.apart = draw.integers(0, 3 * US, (2, job.steps, cells, most, job.tensor)) * (job.tensor > 1)
        shapes = job.shapes or {}
        slow = {r: job.slow_ranks.get(r, 1.0) * shapes.get(r, USUAL).factor for r in range(job.ranks)}
        self.slower = {cell: job.slow.get(cell, 1.0) * max(slow[r] for r in job.lane(*cell)) for cell in job.cells}
        self.speeds = dict(zip(job.cells, speeds.tolist(), strict=True))
        self.collections = (draw.random((job.steps, cells, most)) < 1 / 8).tolist()
        self.launches = (np.exp(draw.standard_normal((job.steps, cells, most)) * job.unsteady) * job.launch).tolist()
        self.loads = np.exp(draw.standard_normal((job.steps, job.replicas)) * job.loads)
        self.lasts: dict[tuple[Cell, int], tuple[int, int]] = {}
        """When the last backward (or weight half) of each chunk of a lane began and ended."""
        self.lengths = {"F": job.forward, "B": job.backward, "W": job.weight, "FB": job.forward + job.backward}

    def _planted(self, step: int) -> bool:
        """Whether what is planted is there in a step."""
        return self.job.during is None or step in self.job.during

    def _loaded(self, replica: int, step: int) -> int:
        """How long the first stage of a replica waits for data before a step."""
        return round((self.job.pause + self.job.loading.get(replica, 0)) * float(self.loads[step, replica]))

    def _speed(self, cell: Cell, step: int) -> float:
        """How many times as long as usual the blocks of a lane take in a step."""
        job = self.job
        usual = self.speeds[cell] * (job.costs[cell[1]] if job.costs else 1.0)
        usual *= job.warm_up[step] if step < len(job.warm_up) else 1.0
        if not self._planted(step):
            return usual
        throttled = 1 + (job.throttled.get(cell, 1.0) - 1) * step / max(job.steps - 1, 1)
        return usual * throttled * self.slower[cell]

    def run(self) -> Run:
        job = self.job
        begin = dict.fromkeys(job.cells, 20 * MS)
        posted = dict.fromkeys(job.cells, 20 * MS)
        for step in range(job.steps):
            loaded = {
                cell: at + (self._loaded(cell[0], step) if cell[1] == 0 and self._planted(step) else 0)
                for cell, at in begin.items()
            }
            gathered = dict(loaded)
            for stage in range(1, job.stages):
                members = [(a, stage) for a in range(job.replicas)]
                if job.gathers_last:
                    ready = [posted[m] + job.lead for m in members]
                    end = self._collective(GATHER, step - 1, members, ready, job.gather)
                    posted |= dict.fromkeys(members, end)
                    gathered |= dict.fromkeys(members, end + job.gap)
                    continue
                end = self._collective(GATHER, step, members, [begin[m] + job.lead for m in members], job.gather)
                gathered |= dict.fromkeys(members, end)
            free: dict[Cell, int] = {}
            for a in range(job.replicas):
                free |= self._settled(partial(self._pipeline, a, step, loaded, gathered, posted))
            for stage in range(job.stages):
                members = [(a, stage) for a in range(job.replicas)]
                end = self._reduced(step, members, free)
                free |= {m: max(end, free[m]) for m in members}
            for a in range(job.replicas if job.tied else 0):
                ends = [(a, 0), (a, job.stages - 1)]
                free |= dict.fromkeys(ends, self._collective(NORM, step, ends, [free[c] for c in ends], job.tied))
            if job.clipped:
                free = dict.fromkeys(
                    job.cells, self._collective(NORM, step, job.cells, [free[c] for c in job.cells], job.norm)
                )
            for cell in job.cells:
                done = end = free[cell] + job.lead
                for rank in job.lane(*cell):
                    longer = job.optimizers.get(rank, 1.0) if self._planted(step) else 1.0
                    until = end + round(job.optimizer * longer)
                    self.found.blocks.append(Block(rank, step, "OPT", None, end, until))
                    done = max(done, until)
                posted[cell], begin[cell] = done, done + job.gap
            if job.together:
                begin = dict.fromkeys(job.cells, max(begin.values()))
        found, first = self.found, job.unrecorded
        recorded = ([one for one in some if one.step >= first] for some in (found.blocks, found.transfers))
        return Run(*recorded, collectives=[one for one in found.collectives if one.step >= first])

    def _reduced(self, step: int, members: list[Cell], free: Mapping[Cell, int]) -> int:
        """When the gradients of a stage are reduced, whose ranks are `free` after their last blocks."""
        job, end = self.job, 0
        if job.buckets == 1:
            return self._collective(REDUCE, step, members, [free[cell] for cell in members], job.reduce)
        stage, length = members[0][1], job.reduce // job.buckets // job.chunks
        for chunk in sorted({chunk for cell, chunk in self.lasts if cell[1] == stage}, reverse=True):
            for part in range(1, job.buckets + 1):
                lasts = [self.lasts[cell, chunk] for cell in members]
                made = [a + (b - a) * part // job.buckets for a, b in lasts]
                end = self._collective(REDUCE, step, members, [max(at, end) for at in made], length)
        return end

    def _collective(self, op: str, step: int, members: list[Cell], ready: list[int], length: int) -> int:
        """The end of a collective whose `members` could start it at `ready`; a rank alone needs none."""
        job = self.job
        if len(members) == 1:
            return ready[0]
        late, longer = (job.late, job.longer) if self._planted(step) else ({}, {})
        starts = [at + job.lead + late.get((op, *cell), 0) for cell, at in zip(members, ready, strict=True)]
        stages = {s for _, s in members}
        tied = op == NORM and len(members) < len(job.cells)
        stage = TIED if tied else stages.pop() if len(stages) == 1 and op != NORM else None
        end = max(starts) + length + longer.get((op, ALL_RANKS if stage is None else stage), 0)
        for cell, start in zip(members, starts, strict=True):
            for rank in job.lane(*cell):
                self.found.collectives.append(Collective(op, stage, step, rank, start, end + job.grid))
        return end

    def _settled(self, pipeline: Callable[[_Batches], tuple[dict[Cell, int], _Batches]]) -> dict[Cell, int]:
        """What `pipeline` returns first, once no batch ends later than it did when blocks waited for it."""
        blocks, transfers = len(self.found.blocks), len(self.found.transfers)
        batches = _Batches({}, {})
        while True:
            free, now = pipeline(batches)
            if now == batches or not self.job.rendezvous:
                return free
            batches = now
            del self.found.blocks[blocks:], self.found.transfers[transfers:]

    def _pipeline(
        self,
        replica: int,
        step: int,
        begin: Mapping[Cell, int],
        gathered: Mapping[Cell, int],
        posted: Mapping[Cell, int],
        batches: _Batches,
    ) -> tuple[dict[Cell, int], _Batches]:
        """Adds the blocks and transfers of a replica in a step; returns until when its stages are busy. Stages are free
        from `begin`, blocks start once their stage has `gathered` its parameters, and the first receives may be
        `posted` before. Batches are done as they are in `batches`; also returns when they are done by that."""
        job = self.job
        free = [begin[replica, s] for s in range(job.stages)]
        before = [posted[replica, s] for s in range(job.stages)]
        """When the block before the one at hand started."""
        begins = list(free)
        """When the batch before the one at hand began."""
        count, ends = Counter[int](), dict[tuple[int, Half], int]()
        number: dict[tuple[int, Half], int] = {}
        """The batch before which a block is."""
        done, sent = dict[Cell, int](), dict[Cell, int]()
        speeds = [self._speed((replica, s), step) for s in range(job.stages)]
        for stage, operation, halves in self.operations:
            cell = replica, stage
            lane, at, n = self.lanes[cell], replica * job.stages + stage, count[stage]
            batch = self.batch_of[stage][n]
            if n == 0 or batch != self.batch_of[stage][n - 1]:
                begins[stage] = free[stage]
            start = (
                max(
                    free[stage] + round(self.launches[step][at][n]), gathered[cell], batches.done.get((stage, batch), 0)
                )
                + job.lead
            )
            for half, source in halves:
                if source is None:
                    continue
                if source[0] == stage:
                    start = max(start, ends[source] + job.lead)
                    continue
                modes = ("early", "at once", "late")
                mode = modes[self.posts[step][at][n]] if job.receives == "random" else job.receives
                post = before[stage] if mode == "early" else free[stage]
                made = ends[source]
                if job.rendezvous:
                    post, made = begins[stage], max(made, batches.sent.get((source[0], number[source]), 0))
                arrived = self._transfer(step, half, cell, source[0], made, post, mode)
                for one in ((stage, batch), (source[0], number[source] + 1)):
                    done[one] = max(done.get(one, 0), arrived)
                start = max(start, arrived + job.lead)
            if self._planted(step):
                start += job.held.get(cell, 0)
                if any(half.kind == "F" and source is None for half, source in halves):
                    start += job.fed.get(replica, 0)
            stop = 0
            if self._planted(step) and self.collections[step][at][n]:
                stop = max(job.collected.get(rank, 0) for rank in lane)
            start += 0 if job.inside else stop
            size = self.sizes[step][replica][operation.microbatch]
            length = self.lengths[operation.kind] * speeds[stage] * size * (1 + self.noise[step][at][n])
            if self._planted(step) and stage == job.stages - 1 and operation.chunk == job.chunks - 1:
                length *= job.head
            length *= job.parts[(operation.chunk or 0) * job.stages + stage] if job.parts else 1.0
            end = start + round(length) + (stop if job.inside else 0)
            ends |= {(stage, half): end for half, _ in halves}
            before[stage], free[stage] = start, end - job.overlap
            chunks = [half.chunk for half, _ in halves if half.kind == "B"] or [operation.chunk] * (
                operation.kind == "W"
            )
            self.lasts |= {(cell, chunk): (start, end) for chunk in chunks}
            number |= {(stage, half): batch for half, _ in halves}
            sent[stage, batch] = free[stage]
            count[stage] += 1
            numbers = operation.chunk, operation.microbatch_b, operation.chunk_b
            for rank, late, early in zip(lane, *self.apart[:, step, at, n].tolist(), strict=True):
                times = start + late, end - early
                self.found.blocks.append(Block(rank, step, operation.kind, operation.microbatch, *times, *numbers))
            self._exchanges(step, lane, start, end)
        return {(replica, s): at for s, at in enumerate(free)}, _Batches(done, sent)

    def _exchanges(self, step: int, lane: list[int], start: int, end: int) -> None:
        """Adds the collectives in a block of a tensor group: each ends a little after the slowest has come."""
        factors = [self.job.slow_ranks.get(rank, 1.0) if self._planted(step) else 1.0 for rank in lane]
        for n in range(self.job.exchanges if len(lane) > 1 else 0):
            begin, until = (start + (end - start) * k // self.job.exchanges for k in (n, n + 1))
            for rank, factor in zip(lane, factors, strict=True):
                came = begin + round((until - begin) * EXCHANGED * factor / max(factors))
                self.found.collectives.append(Collective(NORM, INNER, step, rank, came, until))

    def _transfer(self, step: int, half: Half, cell: Cell, source: int, sent: int, posted: int, mode: str) -> int:
        """When the transfer from stage `source` has arrived. Each tensor rank has its own, all alike."""
        job, (replica, stage) = self.job, cell
        done = 0
        pairs = list(zip(self.lanes[replica, source], self.lanes[replica, stage], strict=True))
        for pair in pairs:
            done = max(done, max(sent, posted) + job.hop + (job.links.get(pair, 0) if self._planted(step) else 0))
        recorded = min(max(posted, sent + 30 * US), done - US) if mode == "late" else posted
        for pair in pairs:
            self.found.transfers.append(
                Transfer(step, half.kind, half.microbatch, *pair, sent, recorded, done, half.chunk)
            )
        return done


def write_kineto(folder: Path, job: Job) -> Run:
    """A trace of torch.profiler for each rank."""
    run, chance = simulate(job), random.Random(1)
    cut = cut_by(job.shapes)
    ranks = [
        kineto.Rank(rank, 0, job.place(rank)[1], job.ranks, cut=cut, layers=job.layers, stages=job.stages)
        for rank in range(job.ranks)
    ]
    for rank in ranks:
        rank.trace.host = f"node{job.host(rank.rank)}"
    kineto.fill_met(ranks, run, chance, batched=job.rendezvous and not job.apart)
    names = {GATHER: "_allgather_base", REDUCE: "_reduce_scatter_base", NORM: "allreduce"}
    count = Counter[tuple[int, str]]()
    for each in run.collectives:
        group = "0" if each.stage is None else str(_group(job, each))
        times = each.start_ns - 20 * US, each.start_ns, each.end_ns
        count[each.rank, group] += 1
        ranks[each.rank].nccl(names[each.op], *times, group=group, Seq=count[each.rank, group])
    for rank in ranks:
        rank.trace.write(folder / f"{rank.trace.host}_{700 + rank.rank}.1760000000000000000.pt.trace.json")
    return run


def _group(job: Job, collective: Collective) -> int:
    """The number of a group that is not that of all ranks, from 1 on."""
    replica, stage, tensor = job.place(collective.rank)
    if collective.stage == INNER:
        return 1 + job.tensor * (job.stages + job.replicas) + collective.rank // job.tensor
    return 1 + tensor + job.tensor * (job.stages + replica if collective.stage == TIED else stage)


NCCL_DOMAIN = 7


def write_nsys(folder: Path, job: Job) -> Run:
    """Exports of Nsight Systems with NCCL's payloads, a session for each host."""
    run = simulate(job)
    exports = [Export(host=f"node{host}") for host in range(job.hosts)]
    ranks = [
        nsys.Rank(
            exports[job.host(rank)], rank, 0, cut=cut_by(job.shapes), layers=job.layers, stage=job.place(rank)[1],
            stages=job.stages,
        )
        for rank in range(job.ranks)
    ]  # fmt: skip
    nsys.fill_met(ranks, run, random.Random(1), batched=job.rendezvous and not job.apart)
    names = {GATHER: "AllGather", REDUCE: "ReduceScatter", NORM: "AllReduce"}
    groups = {rank.rank: 2 + stage + job.stages * t for rank in ranks for _, stage, t in (job.place(rank.rank),)}
    for rank in ranks:
        export = exports[job.host(rank.rank)]
        members = (1, job.ranks, rank.rank), (groups[rank.rank], job.replicas, job.place(rank.rank)[0])
        for group, size, member in members:
            opened = export.payload(NCCL_DOMAIN, 1_000, communicator=group, ranks=size, rank=member)
            _call(export, rank.process, group * 10 * US, "ncclCommInitRank", opened)
    for each in sorted(run.collectives, key=lambda one: one.start_ns):
        export, process, launch = exports[job.host(each.rank)], ranks[each.rank].process, each.start_ns - 20 * US
        group = 1 if each.stage is None else groups[each.rank]
        moved = export.payload(NCCL_DOMAIN, 1_001, communicator=group, bytes=8 << 20)
        _call(export, process, launch, f"nccl{names[each.op]}", moved)
        kernel = f"ncclDevKernel_{names[each.op]}_RING_LL"
        export.kernel(
            process, each.start_ns, each.end_ns, export.call(process, launch + 2 * US), name=kernel, stream=22
        )
    folder.mkdir(parents=True, exist_ok=True)
    for export in exports:
        export.write(folder / f"{export.host}.sqlite")
    return run


def _call(export: Export, process: int, at: int, text: str, payload: bytes) -> None:
    export.range(process, at, at + 6 * US, text, registered=True, domain=NCCL_DOMAIN, payload=payload)


_ASCEND = {"F": "forward_step", "B": "backward_step", "OPT": "Optimizer"}
"""The marks of blocks."""


def write_ascend(folder: Path, job: Job) -> Run:
    """A database of torch_npu for each rank. For jobs of one chunk without tensor ranks."""
    run, chance, sides = simulate(job), random.Random(1), ascend.Sides()
    recorded = ascend.Job(
        job.stages, job.microbatches, job.steps, data=job.replicas, hosts=job.hosts,
        marker=lambda b: _ASCEND.get(b.kind), pipelines_first=job.stages_first, cut=cut_by(job.shapes),
    )  # fmt: skip
    names = {GATHER: "allGather", REDUCE: "reduceScatter", NORM: "allReduce"}
    for rank in range(job.ranks):
        replica, stage, _ = job.place(rank)
        device = rank - job.of_host(job.host(rank))[0]
        own = _of_replica(run, job, replica)
        rec = Recording(rank, device, f"node{job.host(rank)}", ascend.metadata(recorded, rank))
        ascend.fill(rec, recorded, own, ascend.EPOCH_NS)
        ascend.transfer(rec, recorded, own, ascend.EPOCH_NS, chance, sides)
        count = Counter[str]()  # of the operators of each group
        for each in (one for one in run.collectives if one.rank == rank):
            group = ascend.WORLD if each.stage is None else f"group_name_{50 + stage}"
            times = ascend.EPOCH_NS + each.start_ns, ascend.EPOCH_NS + each.end_ns
            rec.operators.append((each.step, Operator(names[each.op], group, count[group], *times)))
            count[group] += 1
        ascend.save(rec, recorded, folder)
    return run


def _of_replica(run: Run, job: Job, replica: int) -> Simulation:
    """The blocks and transfers of a replica, whose ranks are its stages."""
    stage = {job.rank(replica, s): s for s in range(job.stages)}
    return Simulation(
        [replace(b, rank=stage[b.rank]) for b in run.blocks if b.rank in stage],
        [replace(t, sender=stage[t.sender], receiver=stage[t.receiver]) for t in run.transfers if t.sender in stage],
    )


def write_rocpd(folder: Path, job: Job) -> Run:
    """A database of rocprofv3 for each rank. For jobs of one replica, which reduces nothing."""
    run = simulate(job)
    rocpd.write_run(folder, run, job.stages, cut_by(job.shapes))
    return run


def write_paddle(folder: Path, job: Job) -> Run:
    """Worker logs below `machineN/`, in which only blocks are recorded."""
    run = simulate(job)
    logs: dict[int, list[str]] = {rank: [] for rank in range(job.ranks)}
    steps = dict.fromkeys(logs, ALL_RANKS)
    for block in run.blocks:
        lines = logs[block.rank]
        if block.step != steps[block.rank]:
            lines.append(f"INFO:root:Schedule Profiler start at step 1 and end at step {1 + job.steps}\n")
            steps[block.rank] = block.step
        times = ((FIRST_NS + t) / MS for t in (block.start_ns, block.end_ns))
        kind = paddle.KINDS[block.kind] + ("_b" if job.schedule == "zb-h1" and block.kind == "B" else "")
        name = kind + (str(block.chunk) if job.chunks > 1 and block.kind != "OPT" else "")
        lines.append(paddle.line(22300 + block.rank, name, block.microbatch or 0, *times))
    for rank, lines in logs.items():
        first = job.of_host(job.host(rank))[0]
        place = folder / f"machine{job.host(rank)}" if job.hosts > 1 else folder
        place.mkdir(parents=True, exist_ok=True)
        (place / f"workerlog.{rank - first}").write_text("".join(lines), encoding="utf-8")
    return run


def write_table(folder: Path, job: Job) -> Run:
    """Span tables, one for each host: blocks and collectives, without messages."""
    run = simulate(job)
    _save(folder, job, pl.DataFrame(_rows(job, run), infer_schema_length=None))
    return run


def write_work(folder: Path, job: Job) -> Run:
    """Span tables, one for each host, of the forwards, backwards and weight gradients alone."""
    run = simulate(job)
    rows = pl.DataFrame(_rows(job, run), infer_schema_length=None)
    _save(folder, job, rows.filter(pl.col("kind") != "OPT").drop("group", "op", "sequence"))
    return run


def _save(folder: Path, job: Job, rows: pl.DataFrame) -> None:
    for host in range(job.hosts):
        place = folder / f"node{host}"
        place.mkdir(parents=True, exist_ok=True)
        rows.filter(pl.col("host") == f"node{host}").write_parquet(place / "blocks.spans.parquet")


def _rows(job: Job, run: Run) -> Iterable[dict[str, object]]:
    def placed(rank: int, start: int, end: int) -> dict[str, object]:
        replica, stage, tensor = job.place(rank)
        return {
            "rank": rank, "host": f"node{job.host(rank)}", "stage": stage, "dp": replica, "tp": tensor,
            "start_ns": FIRST_NS + start, "end_ns": FIRST_NS + end,
        }  # fmt: skip

    nothing = {"group": None, "op": None, "sequence": None}
    rows = [
        placed(b.rank, b.start_ns, b.end_ns)
        | {"step": b.step, "kind": b.kind, "chunk": b.chunk}
        | {"microbatch": None if job.unnumbered and b.kind == "W" else b.microbatch}
        | {"microbatch_b": b.microbatch_b, "chunk_b": b.chunk_b}
        | nothing
        for b in run.blocks
    ]
    none = dict.fromkeys(("step", "kind", "microbatch", "chunk", "microbatch_b", "chunk_b"))
    count = Counter[tuple[int, str, int | None]]()
    for c in run.collectives:
        group = "all" if c.stage is None else f"group {_group(job, c)}"
        sequence = count[c.rank, c.op, c.stage]
        count[c.rank, c.op, c.stage] += 1
        of_group = {"group": group, "op": c.op, "sequence": sequence}
        rows.append(placed(c.rank, c.start_ns, c.end_ns) | none | of_group)
    return rows


WRITERS = {
    "nsys": write_nsys,
    "kineto": write_kineto,
    "ascend": write_ascend,
    "paddle": write_paddle,
    "table": write_table,
    "work": write_work,
}
"""What writes a job in the form of each reader."""
