"""Nsight Systems: `nsys export --type sqlite` files → the time that each pipeline block spent on the GPU.

A block is an NVTX range on a CPU thread; it lasts as long as the GPU work launched while it was open, from the first
kernel's start to the last one's end. Work is kernels and CUDA graphs, but not NCCL's kernels, which wait for their
partners, nor copies, which run beside the block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import polars as pl

from trace_export.errors import SourceError
from trace_export.model import TIME, KernelFile, Note
from trace_export.sources.nsys import cupti, nvtx
from trace_export.sources.nsys.cupti import GRAPH_TABLE, KERNEL_TABLE, LAUNCH_TABLE, is_named
from trace_export.sources.nsys.device_tasks import write_tasks
from trace_export.sources.nsys.export_report import export_notes, opened
from trace_export.sources.nsys.nvtx import world_of
from trace_export.sources.nsys.session import (
    NAMES,
    THREAD_BITS,
    autograd_threads,
    environment_rank,
    interruptions,
    is_export,
    read_session,
)
from trace_export.sources.ranges import notes as range_notes
from trace_export.sources.ranges import reader
from trace_export.sources.ranges.by_launch import KERNEL_LAUNCHES, Piece
from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.ranges.named import NameCounts, Named
from trace_export.sources.ranges.ranges import Ranges
from trace_export.sources.ranges.ranks import ByProcess, assigned, from_names, from_stages
from trace_export.sources.shared.batch import Result
from trace_export.sources.shared.names import rank_of
from trace_export.sources.shared.sqlite import PIECE_ROWS, Database
from trace_export.sources.source import ReadOptions, Source, TaskRequest

if TYPE_CHECKING:
    from trace_export.inference.process import Process

REMEDY = "capture again with the passes marked by trace-export run, or in torch.cuda.nvtx.range(f'F{microbatch}.0.0')"
SECOND_PROCESS = 0.1
"""A process computes as others do if it has at least this part of the GPU tasks of the busiest one."""
EVENTS = (nvtx.TABLE, LAUNCH_TABLE, KERNEL_TABLE, GRAPH_TABLE)
"""The tables from which blocks are made."""


def read(sources: Sequence[Source], options: ReadOptions) -> list[Result]:
    """All ranks of each export, or of each report (`.nsys-rep`) when `nsys` is there to export it."""
    return reader.read(sources, options, _open)


def read_tasks(request: TaskRequest) -> tuple[KernelFile, ...]:
    """The device tasks of an export's ranks. Raises SourceError when the file cannot be read."""
    with opened(request.path) as db:
        return write_tasks(db, read_session(db, request.path).offset_ns, request)


def _open(source: Source, options: ReadOptions, stack: ExitStack) -> list[_Export]:
    db = stack.enter_context(opened(source.path, options.beginning * PIECE_ROWS))
    if not is_export(db.tables()):
        raise SourceError(source.path, "is an SQLite database, but not an Nsight Systems export")
    if NAMES not in db.tables():
        remedy = "export the report again, with all tables"
        raise SourceError(source.path, "has no table StringIds, which holds the names of ranges and kernels", remedy)
    return [_Export(source, db)]


class _Export(reader.Opened):
    """An opened export: see ranges.reader.Opened."""

    what = "NVTX range"
    remedy = REMEDY
    members: pl.DataFrame

    def __init__(self, source: Source, db: Database) -> None:
        self.source = source
        self._db = db
        self._session = read_session(db, source.path)
        self._tasks = Counter[int]()
        """How many GPU tasks each process has, once they were read, which is for the processes `_attributed`."""
        self._attributed: set[int] = set()
        session = self._session
        self.host = reader.Host(session.host or source.host, session.label or source.host, session.offset_ns)
        self.short = not db.shortened.isdisjoint(table.lower() for table in EVENTS)

    def named(self, dialects: Dialects) -> Named:
        named, self.members = nvtx.read_ranges(self._db, dialects)
        return named

    def recorded(self) -> Iterator[pl.DataFrame]:
        return nvtx.recorded(self._db)

    def without_passes(self, ranges: Ranges) -> Collection[int] | None:
        """All processes, or beside processes with named passes those that have a thread of the autograd engine; and
        those whose names say only some of their passes."""
        if not self._db.has(LAUNCH_TABLE) or not (self._db.has(KERNEL_TABLE) or self._db.has(GRAPH_TABLE)):
            return ()
        if not ranges.marked:
            return None
        in_part = frozenset[int]() if self._db.shortened else ranges.partial
        return (autograd_threads(self._db).keys() - ranges.marked) | in_part

    def launches(
        self, processes: Collection[int] | None, operators: Mapping[int, pl.DataFrame]
    ) -> Iterator[tuple[int, Process]]:
        from trace_export.sources.nsys.unmarked import read_processes  # with what it needs 30 ms

        return read_processes(self._db, operators, processes)

    def no_ranges(self, counts: NameCounts) -> SourceError | None:
        what = "no NVTX ranges in the file: it was captured without NVTX, or the program has no ranges"
        remedy = "capture with nsys profile -t cuda,nvtx and the passes marked by trace-export run"
        return None if counts.total else SourceError(self.source.path, what, remedy)

    def no_work(self) -> SourceError | None:
        db, path = self._db, self.source.path
        if not (db.has(KERNEL_TABLE) or db.has(GRAPH_TABLE)):
            without = "captured without CUDA, or the profiler is too old for the driver"
            remedy = "capture with -t cuda,nvtx and a current nsys"
            return range_notes.no_kernels(path, without, remedy, launched=_launches_kernels(db))
        if not db.has(LAUNCH_TABLE):
            what = "no CUDA calls in the file, so its GPU work cannot be attributed to ranges"
            return SourceError(path, what, f"capture with -t cuda,nvtx, or {range_notes.HOST}")
        return None

    def calls(self, pattern: str | None, processes: list[int]) -> Iterator[Piece]:
        return cupti.calls(self._db, pattern, processes)

    def tasks(self, processes: list[int]) -> Iterator[Piece]:
        self._tasks, self._attributed = Counter[int](), {*processes}
        return cupti.tasks(self._db, processes, KERNEL_TABLE, GRAPH_TABLE, seen=self._tasks)

    def last_copies(self, ranges: Ranges) -> Callable[[pl.DataFrame], pl.Series] | None:
        return None if self._db.shortened else partial(cupti.last_copies, self._db, ranges)

    def devices(self) -> ByProcess:
        return cupti.devices_of(self._db)

    def ranks(self, ranges: Ranges, processes: list[int], devices: ByProcess) -> tuple[pl.DataFrame, list[Note]]:
        """Processes are told apart by their id and never by that of the device: every rank may call its GPU device 0.
        At last the order of devices and processes counts."""
        db, source, members = self._db, self.source, self.members
        if members.height:
            members = members.filter(pl.col("process").is_in(processes))
        gpus = _physical(db, {process: devices.get(process, -1) for process in processes})
        alone = processes[0] if len(processes) == 1 else None
        evidence = (
            ("recorded", lambda: from_names(ranges)),
            ("recorded", lambda: _from_mpi(db)),
            ("recorded", lambda: _of(alone, environment_rank(db))),
            ("assumed", lambda: nvtx.ranks_of(members)),
            ("assumed", lambda: from_stages(ranges.stages)),
            ("assumed", lambda: _of(alone, rank_of(source.path, source.host))),
            ("assumed", lambda: {p: i for i, p in enumerate(sorted(processes, key=lambda p: (gpus[p], p)))}),
        )
        physical = {process: gpu for process, (gpu, _) in gpus.items()}
        ranks, notes = assigned(ranges, processes, source, evidence, physical)
        if members.height:
            self.world = world_of(members, dict(ranks.select("process", "rank").iter_rows()))
        begun = pl.lit(self._session.begun_ns, TIME)
        return ranks.with_columns(pid=pl.col("process") & 0xFFFFFF, begun_ns=begun), notes

    def notes(self, first: int) -> list[Note]:
        pauses = interruptions(self._db, self.source.path, first)
        return [*export_notes(self.source.path), *self._session.notes, *pauses, *self._not_looked_at()]

    def _not_looked_at(self) -> list[Note]:
        """A warning on processes that compute as others do, name no pass, and have no thread of the autograd engine by
        which passes could be inferred."""
        if self._tasks.keys() <= self._attributed:
            return []
        looked_at = self._attributed | autograd_threads(self._db).keys()
        most = max((count for process, count in self._tasks.items() if process in looked_at), default=0)
        others = [p for p, count in self._tasks.items() if p not in looked_at and count > SECOND_PROCESS * most]
        if not others:
            return []
        text = "processes with GPU work, left out: they name no pass, and no thread is named like the autograd engine's"
        return [Note("process-without-blocks", "warning", text, str(self.source.path), len(others))]

    def end(self, *, inferred: bool) -> int | None:
        return self._db.last(LAUNCH_TABLE if inferred else nvtx.TABLE, "start")


def _launches_kernels(db: Database) -> bool:
    """Whether there is a call that launches a kernel."""
    if not db.has(LAUNCH_TABLE):
        return False
    sql = f"SELECT start FROM {LAUNCH_TABLE} WHERE {{where}} AND {is_named(db, 'nameId', f'cu{KERNEL_LAUNCHES}')}"
    return any(chunk.height for chunk in db.frames(LAUNCH_TABLE, sql))


def _of(process: int | None, rank: int | None) -> ByProcess:
    return {} if process is None or rank is None else {process: rank}


def _from_mpi(db: Database) -> ByProcess:
    if not db.has("MPI_RANKS", "globalTid", "rank"):
        return {}
    rows = db.texts(
        f"SELECT DISTINCT globalTid >> {THREAD_BITS}, rank FROM MPI_RANKS WHERE globalTid IS NOT NULL ORDER BY 1, 2"
    )
    return {process: rank for process, rank in rows if isinstance(rank, int) and 0 <= rank < 10**9}


def _physical(db: Database, devices: ByProcess) -> dict[int, tuple[int, int]]:
    """Process → (physical GPU, the process's own number of it), -1 where unknown."""
    physical: dict[tuple[int, int], int] = {}
    if db.has("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid"):
        rows = db.texts("SELECT pid, cudaId, gpuId FROM TARGET_INFO_CUDA_DEVICE")
        physical = {(pid, cuda): gpu for pid, cuda, gpu in rows if isinstance(gpu, int) and isinstance(cuda, int)}
    return {
        process: (physical.get((process & 0xFFFFFF, device), device), device) for process, device in devices.items()
    }
