"""Simulate data-parallel replicas of a 1F1B pipeline, and write it as profiles of the readers that know collectives.

In each step the later stages gather their parameters from all replicas before their first forward, every stage reduces
its gradients over the replicas after its last backward, all ranks reduce the norm of the gradients, and the optimizers
run. A collective ends on all of its members at once, its length after the last of them has started. Nothing of the
program under test is used.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from samples.generators import ascend, kineto, nsys
from samples.generators.ascend_export import Operator, Recording
from samples.generators.nsys_export import Export
from samples.generators.pipeline import MS, US, Block, Replica, Simulation, Timing, in_feasible_order, one_f_one_b

GATHER, REDUCE, NORM = "all_gather", "reduce_scatter", "all_reduce"
LEAD = 90 * US
Place = tuple[str, int]
"""A collective of a step, and its stage."""


class Collective(NamedTuple):
    """What a rank has of a collective: its part starts with the rank and ends with the others. `stage`: that of the
    replicas that take part, None where all ranks do."""

    op: str
    stage: int | None
    step: int
    rank: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Job:
    """A run of `stages` × `replicas` ranks, rank = stage · replicas + replica.

    Causes of lost time may be planted: `slow` ((replica, stage) → how many times as long its blocks take), `longer`
    (collective and stage → what is added to its length) and `late` (collective, replica and stage → how long after it
    could the rank starts it). `lead`: between what a rank waits for and what it does next.
    """

    stages: int = 4
    microbatches: int = 8
    replicas: int = 2
    steps: int = 3
    forward: int = 4 * MS
    backward: int = 8 * MS
    hop: int = 150 * US
    gather: int = 2 * MS
    reduce: int = 6 * MS
    norm: int = MS
    optimizer: int = 3 * MS
    gap: int = 4 * MS
    lead: int = LEAD
    slow: Mapping[tuple[int, int], float] = field(default_factory=dict)
    longer: Mapping[Place, int] = field(default_factory=dict)
    late: Mapping[tuple[str, int, int], int] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        return self.stages * self.replicas

    def rank(self, replica: int, stage: int) -> int:
        return stage * self.replicas + replica


@dataclass
class Run(Simulation):
    """What happened; ranks are global."""

    collectives: list[Collective] = field(default_factory=list)


def simulate(job: Job) -> Run:
    """Runs the job."""
    found, begin = Run(), 20 * MS
    cells = [(a, s) for a in range(job.replicas) for s in range(job.stages)]

    def collective(op: str, step: int, members: list[tuple[int, int]], ready: list[int], length: int) -> int:
        """The end of a collective whose `members` (replica, stage) could start it at `ready`."""
        starts = [at + job.lead + job.late.get((op, *cell), 0) for cell, at in zip(members, ready, strict=True)]
        stages = {s for _, s in members}
        stage = stages.pop() if len(stages) == 1 else None
        end = max(starts) + length + job.longer.get((op, stage if stage is not None else -1), 0)
        for cell, start in zip(members, starts, strict=True):
            found.collectives.append(Collective(op, stage, step, job.rank(*cell), start, end))
        return end

    for step in range(job.steps):
        free: dict[tuple[int, int], int] = {}
        gathered = [begin] * job.stages
        for stage in range(1, job.stages):
            members = [(a, stage) for a in range(job.replicas)]
            gathered[stage] = collective(GATHER, step, members, [begin + job.lead] * job.replicas, job.gather)
        for a in range(job.replicas):
            ends = _pipeline(job, a, step, begin, gathered, found)
            free |= {(a, s): end for s, end in enumerate(ends)}
        for stage in range(job.stages):
            members = [(a, stage) for a in range(job.replicas)]
            end = collective(REDUCE, step, members, [free[m] for m in members], job.reduce)
            free |= dict.fromkeys(members, end)
        end = collective(NORM, step, cells, [free[cell] for cell in cells], job.norm) + job.lead
        found.blocks += [Block(job.rank(*cell), step, "OPT", None, end, end + job.optimizer) for cell in cells]
        begin = end + job.optimizer + job.gap
    return found


def _pipeline(job: Job, replica: int, step: int, begin: int, gathered: list[int], found: Run) -> list[int]:
    """Adds the blocks and transfers of a replica in a step that begins at `begin`, and whose stages have gathered their
    parameters at `gathered`; returns until when the stages are busy."""
    slow = {s: job.slow.get((replica, s), 1.0) for s in range(job.stages)}
    lengths = {"F": job.forward, "B": job.backward}
    timing = Timing(lengths, job.hop, lead=job.lead, first=begin, blocking_receives=True, slow=slow)
    orders = [one_f_one_b(stage, job.stages, job.microbatches) for stage in range(job.stages)]
    one = Replica(job.stages, timing, random.Random(0))
    one.ready = gathered
    for stage, operation in in_feasible_order(orders):
        one.block(step, stage, operation)
    found.blocks += [replace(b, rank=job.rank(replica, b.rank)) for b in one.found.blocks]
    found.transfers += [
        replace(t, sender=job.rank(replica, t.sender), receiver=job.rank(replica, t.receiver))
        for t in one.found.transfers
    ]
    return one.free


def write_kineto(folder: Path, job: Job) -> Run:
    """A trace of torch.profiler for each rank."""
    run, chance = simulate(job), random.Random(1)
    ranks = [kineto.Rank(rank, 0, rank // job.replicas, job.ranks) for rank in range(job.ranks)]
    kineto.fill_met(ranks, run, chance)
    names = {GATHER: "_allgather_base", REDUCE: "_reduce_scatter_base", NORM: "allreduce"}
    for each in run.collectives:
        seq = 1 + each.step
        group = "0" if each.stage is None else f"{1 + each.stage}"
        times = each.start_ns - 20 * US, each.start_ns, each.end_ns
        ranks[each.rank].nccl(names[each.op], *times, group=group, Seq=2 * seq + (each.op == REDUCE))
    for rank in ranks:
        rank.trace.write(folder / f"{rank.trace.host}_{700 + rank.rank}.1760000000000000000.pt.trace.json")
    return run


NCCL_DOMAIN = 7


def write_nsys(folder: Path, job: Job) -> Run:
    """An export of Nsight Systems with NCCL's payloads, all ranks in one session."""
    run, export = simulate(job), Export()
    ranks = [nsys.Rank(export, rank, 0) for rank in range(job.ranks)]
    nsys.fill_met(ranks, run, random.Random(1))
    names = {GATHER: "AllGather", REDUCE: "ReduceScatter", NORM: "AllReduce"}
    for rank in ranks:
        stage, replica = divmod(rank.rank, job.replicas)
        for group, size, member in ((1, job.ranks, rank.rank), (2 + stage, job.replicas, replica)):
            opened = export.payload(NCCL_DOMAIN, 1_000, communicator=group, ranks=size, rank=member)
            _call(export, rank.process, group * 10 * US, "ncclCommInitRank", opened)
    for each in sorted(run.collectives, key=lambda one: one.start_ns):
        process, launch = ranks[each.rank].process, each.start_ns - 20 * US
        group = 1 if each.stage is None else 2 + each.stage
        moved = export.payload(NCCL_DOMAIN, 1_001, communicator=group, bytes=8 << 20)
        _call(export, process, launch, f"nccl{names[each.op]}", moved)
        kernel = f"ncclDevKernel_{names[each.op]}_RING_LL"
        export.kernel(
            process, each.start_ns, each.end_ns, export.call(process, launch + 2 * US), name=kernel, stream=22
        )
    folder.mkdir(parents=True, exist_ok=True)
    export.write(folder / "node0.sqlite")
    return run


def _call(export: Export, process: int, at: int, text: str, payload: bytes) -> None:
    export.range(process, at, at + 6 * US, text, registered=True, domain=NCCL_DOMAIN, payload=payload)


_ASCEND = {"F": "forward_step", "B": "backward_step", "OPT": "Optimizer"}
"""The marks of blocks."""


def write_ascend(folder: Path, job: Job) -> Run:
    """A database of torch_npu for each rank."""
    run, chance, sides = simulate(job), random.Random(1), ascend.Sides()
    recorded = ascend.Job(
        job.stages, job.microbatches, job.steps, data=job.replicas, hosts=1, marker=lambda b: _ASCEND.get(b.kind)
    )
    names = {GATHER: "allGather", REDUCE: "reduceScatter", NORM: "allReduce"}
    for rank in range(job.ranks):
        stage, replica = divmod(rank, job.replicas)
        own = _of_replica(run, job, replica)
        rec = Recording(rank, rank, "node0", ascend.metadata(recorded, rank))
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
    blocks = [b for b in run.blocks if b.rank % job.replicas == replica]
    transfers = [t for t in run.transfers if t.sender % job.replicas == replica]
    return Simulation(
        [replace(b, rank=b.rank // job.replicas) for b in blocks],
        [replace(t, sender=t.sender // job.replicas, receiver=t.receiver // job.replicas) for t in transfers],
    )
