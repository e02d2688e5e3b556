"""rocpd: the databases of rocprofv3 → the time that each pipeline block spent on the GPU.

A block is a ROCTx range on a CPU thread; it lasts as long as the kernels launched while it was open, as for Nsight
Systems. Times count from the boot of the host. A file holds one process, unless several were merged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING

import polars as pl

from trace_export.errors import SourceError
from trace_export.model import TEXT, TIME, KernelFile, Note
from trace_export.sources.ranges import notes as range_notes
from trace_export.sources.ranges import reader
from trace_export.sources.ranges.attribution import DEVICE_SHIFT
from trace_export.sources.ranges.by_launch import Piece
from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.ranges.named import NameCounts, Named
from trace_export.sources.ranges.ranges import Ranges
from trace_export.sources.ranges.ranks import ByProcess, assigned, from_names, from_stages
from trace_export.sources.rocpd import capture
from trace_export.sources.rocpd.capture import read_ranges
from trace_export.sources.rocpd.device_tasks import write_tasks
from trace_export.sources.rocpd.tables import MARKERS, RCCL, Tables, read_process, sets_of
from trace_export.sources.rocpd.tables import Process as Facts
from trace_export.sources.shared.batch import Result
from trace_export.sources.shared.names import rank_of
from trace_export.sources.shared.sqlite import PIECE_ROWS, Database
from trace_export.sources.source import ReadOptions, Source, TaskRequest

if TYPE_CHECKING:
    from trace_export.inference.process import Process

EPOCH = "boot"
"""rocprofv3 takes its times from CLOCK_BOOTTIME (lib/common/utility.hpp)."""
_RECORD = "record with rocprofv3 --hip-trace --kernel-trace --marker-trace"


def read(sources: Sequence[Source], options: ReadOptions) -> list[Result]:
    """All processes of each database."""
    return reader.read(sources, options, _open)


def read_tasks(request: TaskRequest) -> tuple[KernelFile, ...]:
    """The device tasks of a database's ranks. Raises SourceError when the file cannot be read."""
    with Database(request.path) as db:
        return write_tasks(_processes(db), request)


def _processes(db: Database) -> list[Tables]:
    processes = list(sets_of(db))
    if not processes:
        raise SourceError(db.path, "is an SQLite database, but not one of rocprofv3", _RECORD)
    return processes


def _open(source: Source, options: ReadOptions, stack: ExitStack) -> list[_Processes]:
    db = stack.enter_context(Database(source.path, options.beginning * PIECE_ROWS))
    facts = {tables: read_process(tables) for tables in _processes(db)}
    of_number = {tables.process: fact for tables, fact in facts.items()}
    hosts = dict.fromkeys(fact.host for fact in facts.values())
    return [_Processes(source, [t for t, fact in facts.items() if fact.host == host], of_number) for host in hosts]


class _Processes(reader.Opened):
    """The processes of one host in an opened database: see ranges.reader.Opened."""

    what = "ROCTx range"
    remedy = "record again with the passes marked by trace-export run"

    def __init__(self, source: Source, processes: Sequence[Tables], facts: Mapping[int, Facts]) -> None:
        self.source = source
        self._processes = processes
        self._facts = facts
        """Of all processes of the file."""
        first = facts[processes[0].process]
        self.host = reader.Host(first.host or source.host, first.label or source.host, epoch=EPOCH)
        self.world = first.world
        events = {tables.name(table).lower() for tables in processes for table in ("region", "kernel_dispatch")}
        self.short = not processes[0].db.shortened.isdisjoint(events)

    def named(self, dialects: Dialects) -> Named:
        return read_ranges(self._processes, dialects)

    def recorded(self) -> Iterator[pl.DataFrame]:
        return chain.from_iterable(map(capture.recorded, self._processes))

    def without_passes(self, ranges: Ranges) -> Collection[int]:
        named_in_full = ranges.marked if self.short else ranges.marked - ranges.partial
        others = (tables for tables in self._processes if tables.process not in named_in_full)
        return {tables.process for tables in others if _has_kernels(tables)}

    def launches(
        self, processes: Collection[int] | None, operators: Mapping[int, pl.DataFrame]
    ) -> Iterator[tuple[int, Process]]:
        from trace_export.sources.rocpd.unmarked import read_process as read_launches  # with what it needs 30 ms

        for tables in self._processes if processes is None else self._of(processes):
            yield tables.process, read_launches(tables, operators.get(tables.process))

    def no_ranges(self, counts: NameCounts) -> SourceError | None:
        what = "no ROCTx ranges in the database: it was recorded without --marker-trace, or the program has no ranges"
        remedy = f"{_RECORD} and the passes marked by trace-export run"
        return None if counts.total else SourceError(self.source.path, what, remedy)

    def no_work(self) -> SourceError | None:
        if any(map(_has_kernels, self._processes)):
            return None
        launched = any(map(capture.launches_kernels, self._processes))
        return range_notes.no_kernels(self.source.path, "recorded without --kernel-trace", _RECORD, launched=launched)

    def calls(self, pattern: str | None, processes: list[int]) -> Iterator[Piece]:
        for tables in self._of(processes):
            others = f"NOT {tables.of_category(MARKERS, RCCL)}"
            for chunk in capture.calls(tables, others if pattern is None else tables.named(f"hip{pattern}")):
                yield tables.process, {name: chunk[name].to_numpy() for name in chunk.columns}

    def tasks(self, processes: list[int]) -> Iterator[Piece]:
        for tables in self._of(processes):
            numbers, device = capture.gpus(tables), pl.col("stream") // (1 << DEVICE_SHIFT)
            number = device.replace(list(numbers), list(numbers.values()))
            for chunk in capture.kernels(tables, nccl=f"COALESCE({capture.is_nccl(tables)}, 0)"):
                placed = chunk.with_columns(pl.col("stream") + (number - device) * (1 << DEVICE_SHIFT))
                yield tables.process, {name: placed[name].to_numpy() for name in placed.columns}

    def _of(self, processes: Collection[int]) -> list[Tables]:
        return [tables for tables in self._processes if tables.process in processes]

    def ranks(self, ranges: Ranges, processes: list[int], devices: ByProcess) -> tuple[pl.DataFrame, list[Note]]:
        source, facts = self.source, self._facts
        evidence = (
            ("recorded", lambda: from_names(ranges)),
            ("recorded", lambda: {p: fact.rank for p, fact in facts.items() if fact.rank is not None}),
            ("assumed", lambda: from_stages(ranges.stages)),
            ("assumed", lambda: {p: n for p in facts if (n := rank_of(source.path, source.host)) is not None}),
            ("assumed", lambda: {p: p for p in facts}),
        )
        ranks, notes = assigned(ranges, processes, source, evidence, devices)
        of_ranks = [facts.get(process) for process in ranks["process"]]
        identity = pl.DataFrame(
            {name: [fact and getattr(fact, name) for fact in of_ranks] for name in ("pid", "begun_ns", "job")},
            {"pid": TIME, "begun_ns": TIME, "job": TEXT},
        )
        return ranks.hstack(identity), notes

    def end(self, *, inferred: bool) -> int | None:
        tables = self._processes[0]
        return tables.db.last(tables.name("region"), "start")


def _has_kernels(tables: Tables) -> bool:
    """Whether there is GPU work of a process."""
    return bool(tables.db.texts(f"SELECT 1 FROM {tables.name('kernel_dispatch')} LIMIT 1"))
