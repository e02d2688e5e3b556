"""Write what profilers leave in one folder of a job that was started or recorded several times, with the truth.

A `Plan` says which recordings there are; `WRITERS` writes them as each profiler does, and gives the blocks of each, in
the clock of its host.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from samples.generators import ascend, nsys, paddle
from samples.generators import kineto as torch
from samples.generators.kineto_trace import Trace
from samples.generators.nsys_export import Export
from samples.generators.pipeline import MS, Block, one_f_one_b, simulate
from samples.generators.rocpd_export import Export as RocpdExport

STAGES, MICROBATCHES = 2, 4
EPOCH_NS = Trace().base_ns or 0
ATTEMPT = "PT_PROFILER_JOB_ATTEMPT_INDEX"
NAMED = ("torch: handler", "rocpd", "ascend")
"""The writers that record which start of the job it is."""


@dataclass(frozen=True)
class Recorded:
    """One window of one start of the job: the start is the `run`-th, the recording of `ranks` begins `at_s` seconds
    after the first one and has the steps `first_step` and the one after it. `attempt`: what the environment of its
    processes calls the start, if anything."""

    run: int
    at_s: float
    ranks: Sequence[int] = range(STAGES)
    first_step: int = 0
    folder: str = "."
    attempt: int | None = None

    @property
    def at_ns(self) -> int:
        return round(self.at_s * 1e9)

    @property
    def begun_us(self) -> int | None:
        """When its start began, where that is recorded."""
        return None if self.attempt is None else 1_760_000_000_000_000 + 60_000_000 * self.attempt

    def pid(self, rank: int) -> int:
        return 4000 + 1000 * self.run + rank

    def blocks(self) -> list[Block]:
        """The blocks of its ranks, from the first moment of the folder."""
        orders = [one_f_one_b(stage, STAGES, MICROBATCHES) for stage in range(STAGES)]
        steps = range(self.first_step, self.first_step + 2)
        made = simulate(orders, nsys.TIMING, steps, random.Random(1)).blocks
        moved = (replace(b, start_ns=b.start_ns + self.at_ns, end_ns=b.end_ns + self.at_ns) for b in made)
        return [b for b in moved if b.rank in self.ranks]


Plan = Sequence[Recorded]
Writer = Callable[[Path, Plan], list[list[Block]]]


def _later(blocks: Sequence[Block], by_ns: int) -> list[Block]:
    return [replace(b, start_ns=b.start_ns + by_ns, end_ns=b.end_ns + by_ns) for b in blocks]


def _torch(name: str, *, pid: bool = True) -> Writer:
    """torch.profiler's traces; their `name` may have rank, pid, the first step and the end. Without `pid` all processes
    have one number, as in containers."""

    def write(folder: Path, plan: Plan) -> list[list[Block]]:
        for one in plan:
            blocks = one.blocks()
            for rank in one.ranks:
                trace = torch.Rank(rank, 0, rank, STAGES, pid=one.pid(rank) if pid else 7)
                trace.trace.host = "node0"
                if one.attempt is not None:
                    trace.trace.environment = {"PT_PROFILER_JOB_NAME": "pretrain", ATTEMPT: str(one.attempt)}
                for block in (b for b in blocks if b.rank == rank):
                    trace.block(block, random.Random(1))
                end = EPOCH_NS + max(b.end_ns for b in blocks)
                words = {"rank": rank, "pid": one.pid(rank), "step": one.first_step, "end": end}
                trace.trace.write(folder / one.folder / name.format(**words))
        return [_later(one.blocks(), EPOCH_NS) for one in plan]

    return write


def _nsys(file: str) -> Writer:
    """A report for each rank and range of `cudaProfilerApi`, numbered on. If the name of the `file` has no number of
    the range, all ranges of a rank are in one report, as where they follow each other too fast to be closed; if it has
    no rank either, all of the job, as `nsys profile torchrun` records it."""

    def write(folder: Path, plan: Plan) -> list[list[Block]]:
        exports: dict[Path, Export] = {}
        for number, one in enumerate(plan):
            (folder / one.folder).mkdir(parents=True, exist_ok=True)
            for rank in one.ranks:
                name = file.format(rank=rank, number=number)
                export = exports.setdefault(folder / one.folder / name, Export(host="node0"))
                made = nsys.Rank(export, rank, 0, dialect=nsys.Plain(), process=one.pid(rank))
                for block in (b for b in one.blocks() if b.rank == rank):
                    made.block(block, random.Random(1))
        for path, export in exports.items():
            export.write(path)
        return [_later(one.blocks(), Export.epoch_ns) for one in plan]

    return write


def _rocpd(folder: Path, plan: Plan) -> list[list[Block]]:
    """A database for each process, with all of its collection periods, in the time since the host's boot."""
    exports: dict[Path, RocpdExport] = {}
    for one in plan:
        (folder / one.folder).mkdir(parents=True, exist_ok=True)
        for rank in one.ranks:
            facts = {"RANK": str(rank), "WORLD_SIZE": str(STAGES)}
            if one.attempt is not None:
                facts |= {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": str(29500 + one.attempt)}
            path = folder / one.folder / f"{one.pid(rank)}_results.db"
            new = RocpdExport(host="node0", pid=one.pid(rank), gpu=rank, environment=facts)
            made = nsys.Rank(exports.setdefault(path, new), rank, 0, process=one.pid(rank))
            for block in (b for b in one.blocks() if b.rank == rank):
                made.block(block, random.Random(1))
    for path, export in exports.items():
        export.write(path)
    return [one.blocks() for one in plan]


def _ascend(framework: str) -> Writer:
    def write(folder: Path, plan: Plan) -> list[list[Block]]:
        job = ascend.Job(STAGES, MICROBATCHES, 2, hosts=1, framework=framework)
        return [
            ascend.record(
                folder / one.folder,
                replace(job, begun_us=one.begun_us),
                at_ns=one.at_ns,
                ranks=one.ranks,
                first_step=one.first_step,
                pid=one.pid(0),
            ).blocks
            for one in plan
        ]

    return write


def _logs(folder: Path, plan: Plan) -> list[list[Block]]:
    """Paddle's worker logs, to which each start appends."""
    found = []
    for one in plan:
        job = paddle.Job(STAGES, MICROBATCHES, range(one.first_step, one.first_step + 2))
        blocks = [b for b in _later(job.blocks(), one.at_ns) if b.rank in one.ranks]
        for rank in one.ranks:
            _append(folder / one.folder / f"workerlog.{rank}", paddle.log(job, blocks, rank, one.pid(0)))
        found.append(blocks)
    return found


def _records(folder: Path, plan: Plan) -> list[list[Block]]:
    """Paddle's dynamic-graph records, to which each start appends."""
    found = []
    for one in plan:
        job = paddle.Job(STAGES, MICROBATCHES, range(1, 3))
        blocks = [
            replace(b, start_ns=b.start_ns // MS * MS, end_ns=b.end_ns // MS * MS)
            for b in _later(job.blocks(), one.at_ns)
            if b.rank in one.ranks and b.kind != "OPT"
        ]
        for rank in one.ranks:
            _append(folder / one.folder / f"profile_record_tmp_file_for_rank_{rank}", paddle.records(job, blocks, rank))
        found.append(blocks)
    return found


def _append(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


WRITERS: dict[str, Writer] = {
    "nsys": _nsys("rank{rank}.{number}.sqlite"),
    "nsys: all ranges in one": _nsys("rank{rank}.sqlite"),
    "nsys: around the launcher": _nsys("node0.sqlite"),
    "rocpd": _rocpd,
    "torch: handler": _torch("node0_{pid}.{end}.pt.trace.json"),
    "torch: folders of windows": _torch("iteration_{step}/rank{rank}_trace.json"),
    "torch: windows in names": _torch("trace_{step}_rank{rank}.json", pid=False),
    "ascend": _ascend("pytorch"),
    "mindspore": _ascend("mindspore"),
    "paddle": _logs,
    "paddle: dynamic graph": _records,
}
APPENDED = ("paddle", "paddle: dynamic graph")
"""Formats of one file for each rank, whatever was recorded."""
ONE_FILE = {"nsys: all ranges in one": STAGES, "nsys: around the launcher": 1, "rocpd": STAGES, "paddle": STAGES}
"""Formats that have all windows of a process in one file, and how many files of a job they write."""
OVERWRITTEN = ("torch: folders of windows", "torch: windows in names")
"""Formats whose names do not tell the starts of a job apart."""
