"""Which rank each process of an Nsight Systems export is.

Processes are distinguished by their own id and never by the device's: every rank may call its GPU device 0.
Precedence: names of step ranges, MPI's ranks, the environment of a session around a single rank, pipeline stages in
the names of ranges, the file's name, and at last the order of devices and processes.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import polars as pl

from trace_export.model import Note
from trace_export.sources.nsys.session import environment_rank
from trace_export.sources.ranges.blocks import stages_of
from trace_export.sources.ranges.ranges import Ranges
from trace_export.sources.shared.names import rank_in
from trace_export.sources.shared.sqlite import Database
from trace_export.sources.source import Source

Numbers = dict[int, int]
"""Process → rank, of the processes that the evidence covers."""


def read_ranks(
    db: Database, ranges: Ranges, processes: list[int], source: Source, devices_of: Numbers
) -> tuple[pl.DataFrame, list[Note]]:
    """process, rank, rank_origin, stage, stage_origin, device of the `processes`, and notes on it.

    A process whose recorded rank another one has too is left out. `devices_of`: process → its own number of its GPU.
    """
    devices = _physical(db, {process: devices_of.get(process, -1) for process in processes})
    stages = stages_of(ranges)
    places = {**{p: min(own) for p, own in stages.items()}, **_from_names(ranges, "place")}
    alone = processes[0] if len(processes) == 1 else None
    numbers, origins = _first_known(
        processes,
        ("recorded", lambda: _from_names(ranges)),
        ("recorded", lambda: _from_mpi(db)),
        ("recorded", lambda: _of(alone, environment_rank(db))),
        ("assumed", lambda: _from_stages(stages)),
        ("assumed", lambda: _of(alone, rank_in(source.path.stem))),
        ("assumed", lambda: {p: i for i, p in enumerate(sorted(processes, key=lambda p: (devices[p], p)))}),
    )
    kept, twice = _unique(numbers, ranges)
    text = "second process of rank {} in the file, left out"
    notes = [Note("rank-duplicate", "warning", text.format(numbers[process]), str(source.path)) for process in twice]
    frame = pl.DataFrame(
        {
            "process": kept,
            "rank": [numbers[p] for p in kept],
            "rank_origin": [origins[p] for p in kept],
            "stage": [places.get(p) for p in kept],
            "stage_origin": ["recorded" if p in places else None for p in kept],
            "device": [devices[p][0] if 0 <= devices[p][0] < 2**31 else None for p in kept],
        },
        schema_overrides={"process": pl.Int64, "stage": pl.Int32, "stage_origin": pl.String, "device": pl.Int32},
    )
    return frame.sort("rank"), notes


def _first_known(processes: list[int], *evidence: tuple[str, Callable[[], Numbers]]) -> tuple[Numbers, dict[int, str]]:
    """Rank and origin of each of `processes` from the first evidence (origin, numbers) that knows it. An assumed number
    that another process has already becomes the next free one."""
    numbers: Numbers = {}
    origins: dict[int, str] = {}
    wanted = set(processes)
    for origin, find in evidence:
        known = {p: rank for p, rank in find().items() if p in wanted and p not in numbers}
        for process, rank in sorted(known.items(), key=lambda item: item[::-1]):
            taken = set(numbers.values()) if origin == "assumed" else set()
            numbers[process] = next(number for number in count(rank) if number not in taken)
            origins[process] = origin
    return numbers, origins


def _of(process: int | None, rank: int | None) -> Numbers:
    return {} if process is None or rank is None else {process: rank}


def _from_names(ranges: Ranges, number: str = "rank") -> Numbers:
    """`iter_{rank}_{step}`, or a mark with rank=… (and with `number` place, the stage=… of a mark)."""
    recorded = ranges.frame.select("process", number).drop_nulls()
    return dict(recorded.unique("process", keep="first", maintain_order=True).iter_rows())


def _from_mpi(db: Database) -> Numbers:
    if not db.has("MPI_RANKS", "globalTid", "rank"):
        return {}
    rows = db.texts("SELECT DISTINCT globalTid >> 24, rank FROM MPI_RANKS WHERE globalTid IS NOT NULL ORDER BY 1, 2")
    return {process: rank for process, rank in rows if isinstance(rank, int) and 0 <= rank < 10**9}


def _from_stages(stages: dict[int, list[int]]) -> Numbers:
    """The smallest stage, unless several replicas of the pipeline are in the file."""
    numbers = {process: min(own) for process, own in stages.items()}
    return numbers if len(set(numbers.values())) == len(numbers) else {}


def _unique(numbers: Numbers, ranges: Ranges) -> tuple[list[int], list[int]]:
    """The processes to keep, and those whose rank a process with more ranges has."""
    sizes = dict(ranges.frame.group_by("process").len().iter_rows())
    kept: dict[int, int] = {}
    for process in sorted(numbers, key=lambda p: (-sizes.get(p, 0), p)):
        kept.setdefault(numbers[process], process)
    return list(kept.values()), [p for p in numbers if p not in kept.values()]


def _physical(db: Database, devices: Numbers) -> dict[int, tuple[int, int]]:
    """Process → (physical GPU, the process's own number of it), -1 where unknown."""
    physical: dict[tuple[int, int], int] = {}
    if db.has("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid"):
        rows = db.texts("SELECT pid, cudaId, gpuId FROM TARGET_INFO_CUDA_DEVICE")
        physical = {(pid, cuda): gpu for pid, cuda, gpu in rows if isinstance(gpu, int) and isinstance(cuda, int)}
    return {
        process: (physical.get((process & 0xFFFFFF, device), device), device) for process, device in devices.items()
    }
