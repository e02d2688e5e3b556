"""Which GPU work belongs to which range of an Nsight Systems export.

A launch belongs to a range when both are of one process and the launch call starts inside the range; of several the
innermost (latest start) counts, those of the launching thread before others. GPU work belongs to the range of its
launch, found by (process, correlationId). Threads do not matter otherwise: PyTorch launches backward kernels from
autograd's threads while the range stands on the main thread.

Everything goes through in chunks of rows; what stays is 16 bytes per launch and one row per range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from trace_export.sources.nsys_ranges import COMMUNICATION
from trace_export.sources.sqlite import Database

LAUNCHES = "CUPTI_ACTIVITY_KIND_RUNTIME"
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
IS_NCCL = "shortName IN (SELECT id FROM StringIds WHERE value GLOB 'nccl*')"
NONE = -1
ORPHANS = 0.003
"""The share of GPU tasks without a launch call above which the names of the calls are doubted."""

Ints = npt.NDArray[np.signedinteger[Any]]
_LAST = np.iinfo(np.int64).max


class Enclosing:
    """Finds the innermost range around a moment; ranges are half open, [start, end).

    Row 0 stands for "outside all" and encloses everything, so that a search always ends.
    """

    def __init__(self, ids: Ints, start: Ints, end: Ints) -> None:
        order = np.lexsort((ids, -end, start))
        self.ids, self.start, self.end = (
            np.concatenate([[outside], column[order]])
            for outside, column in ((NONE, ids), (-_LAST, start), (_LAST, end))
        )
        self.outer = self._outer()

    def _outer(self) -> Ints:
        """Per range the latest earlier one that ends after it: where to look when a moment lies behind its end."""
        outer = np.maximum(np.arange(len(self.ids)) - 1, 0)
        while len(again := np.flatnonzero((outer > 0) & (self.end[outer] <= self.end))):
            outer[again] = outer[outer[again]]
        return outer

    def find(self, moments: Ints) -> Ints:
        """The id of the innermost range around each moment, NONE outside all."""
        at = np.searchsorted(self.start, moments, side="right") - 1
        while len(behind := np.flatnonzero((at > 0) & (self.end[at] <= moments))):
            at[behind] = self.outer[at[behind]]
        return self.ids[at]


class Layer:
    """The ranges of one process that compete for its launches."""

    def __init__(self, ranges: pl.DataFrame) -> None:
        """`ranges`: id, thread, start, end."""
        self.all = self._enclosing(ranges)
        threads = ranges.partition_by("thread", as_dict=True)
        self.own = {int(t): self._enclosing(part) for (t,), part in threads.items()} if len(threads) > 1 else {}

    @staticmethod
    def _enclosing(ranges: pl.DataFrame) -> Enclosing:
        return Enclosing(*(ranges[c].to_numpy() for c in ("id", "start", "end")))

    def find(self, moments: Ints, threads: Ints) -> Ints:
        found = self.all.find(moments)
        for thread, ranges in self.own.items():
            mine = np.flatnonzero(threads == thread)
            inside = ranges.find(moments[mine])
            found[mine] = np.where(inside != NONE, inside, found[mine])
        return found


@dataclass
class Extent:
    """First start, last end and number of the GPU tasks of each range; -1 where there is none."""

    first: Ints
    last: Ints
    count: Ints

    @staticmethod
    def none(size: int) -> Extent:
        return Extent(np.full(size, _LAST), np.full(size, -_LAST), np.zeros(size, np.int64))

    def add(self, ids: Ints, start: Ints, end: Ints) -> None:
        """Takes in tasks whose `ids` are NONE where they belong to no range."""
        inside = np.flatnonzero(ids != NONE)
        ids = ids[inside]
        np.minimum.at(self.first, ids, start[inside])
        np.maximum.at(self.last, ids, end[inside])
        self.count += np.bincount(ids, minlength=len(self.count))

    def columns(self, name: str) -> list[pl.Series]:
        """`<name>_start`, `<name>_end` (null where there is none) and `<name>_count`."""
        some = pl.Series(self.count > 0)
        ends = [pl.Series(f"{name}_{end}", v) for end, v in (("start", self.first), ("end", self.last))]
        return [*(s.set(~some, None) for s in ends), pl.Series(f"{name}_count", self.count)]


@dataclass(frozen=True)
class Work:
    """GPU work by range id: `compute` (kernels and graphs, or what else was asked for) and `communication` (NCCL's
    kernels, by pipeline range and by NCCL call). Of all `tasks` of the processes, `outside` were launched outside
    every pipeline range and `orphans` have no launch call in the file; `every_call`: whether all calls were read."""

    compute: Extent
    communication: Extent
    tasks: int
    outside: int
    orphans: int
    every_call: bool

    @staticmethod
    def none(size: int) -> Work:
        """No work for `size` ranges."""
        return Work(Extent.none(size), Extent.none(size), 0, 0, 0, False)

    def frame(self) -> pl.DataFrame:
        """One row per range id: id, work_start, work_end, work_count, comm_start, comm_end, comm_count."""
        columns = [*self.compute.columns("work"), *self.communication.columns("comm")]
        return pl.DataFrame(columns).with_row_index("id").cast({"id": pl.Int64})


def attribute(
    db: Database, ranges: pl.DataFrame, calls: str = "cu*Launch*", tables: Iterable[str] = (KERNELS, GRAPHS)
) -> Work:
    """The tasks in `tables` that calls named like `calls` launched, by range.

    `ranges`: id (0, 1, …), process, thread, start, end, role; blocks and transfers compete, and NCCL calls among
    themselves. Reads all calls when more than a few per mille of the tasks have none of the named ones.
    """
    work = _attributed(db, ranges, f"nameId IN (SELECT id FROM StringIds WHERE value GLOB '{calls}')", tables)
    if work.orphans <= work.tasks * ORPHANS:
        return work
    return replace(_attributed(db, ranges, "TRUE", tables), every_call=True)


def _attributed(db: Database, ranges: pl.DataFrame, calls: str, tables: Iterable[str]) -> Work:
    processes = ranges["process"].unique().sort().to_list()
    launches = _launches(db, ranges, processes, calls)
    size = ranges.height
    compute, communication = Extent.none(size), Extent.none(size)
    tasks = outside = orphans = 0
    for table in tables:
        for process, chunk in _tasks(db, table, processes):
            known, pipeline, call = launches[process].of(chunk["correlation"])
            start, end, nccl = chunk["start"], chunk["end"], chunk["nccl"] != 0
            compute.add(np.where(nccl, NONE, pipeline), start, end)
            communication.add(np.where(nccl, pipeline, NONE), start, end)
            communication.add(np.where(nccl, call, NONE), start, end)
            tasks += len(start)
            orphans += int(np.count_nonzero(~known))
            outside += int(np.count_nonzero(known & (pipeline == NONE)))
    return Work(compute, communication, tasks, outside, orphans, False)


@dataclass(frozen=True)
class Launches:
    """The launch calls of one process, by correlation id: the pipeline range and the NCCL call around each."""

    correlation: Ints
    pipeline: Ints
    call: Ints

    @staticmethod
    def of_parts(parts: list[tuple[Ints, Ints, Ints]]) -> Launches:
        correlation, pipeline, call = (np.concatenate(p) for p in zip(*parts, strict=True))
        order = np.argsort(correlation, kind="stable")
        return Launches(correlation[order], pipeline[order], call[order])

    def of(self, correlations: Ints) -> tuple[npt.NDArray[np.bool_], Ints, Ints]:
        """Per correlation id: whether its launch is known, its pipeline range and its NCCL call (or NONE)."""
        at = np.minimum(np.searchsorted(self.correlation, correlations), len(self.correlation) - 1)
        known = self.correlation[at] == correlations
        return known, np.where(known, self.pipeline[at], NONE), np.where(known, self.call[at], NONE)


def _launches(db: Database, ranges: pl.DataFrame, processes: list[int], calls: str) -> dict[int, Launches]:
    layers = {}
    for process in processes:
        mine = ranges.filter(pl.col("process") == process)
        pipeline = mine.filter(pl.col("role").is_in(["block", "p2p"]))
        layers[process] = Layer(pipeline), Layer(mine.filter(pl.col("role") == COMMUNICATION))
    nowhere = np.array([NONE])
    parts = {process: [(np.array([-_LAST]), nowhere, nowhere)] for process in processes}
    for where in db.chunks(LAUNCHES) if LAUNCHES in db.tables() else ():
        chunk = db.frame(
            f"""SELECT start, COALESCE(globalTid, 0) AS thread, COALESCE(globalTid, 0) >> 24 AS process,
                COALESCE(correlationId, -1) AS correlation FROM {LAUNCHES} WHERE {where} AND ({calls})"""
        )
        for process, part in _by_process(chunk, processes):
            found = [layer.find(part["start"], part["thread"]).astype(np.int32) for layer in layers[process]]
            parts[process].append((part["correlation"], found[0], found[1]))
    return {process: Launches.of_parts(of) for process, of in parts.items()}


def _tasks(db: Database, table: str, processes: list[int]) -> Iterator[tuple[int, dict[str, Ints]]]:
    """The GPU tasks in `table` in pieces of one process: start, end, correlation, nccl (0 or 1)."""
    if table not in db.tables():
        return
    nccl = IS_NCCL if table == KERNELS else "0"
    for where in db.chunks(table):
        chunk = db.frame(
            f"""SELECT start, "end", COALESCE(globalPid, 0) >> 24 AS process,
                COALESCE(correlationId, -2) AS correlation, {nccl} AS nccl FROM {table} WHERE {where}"""
        )
        yield from _by_process(chunk, processes)


def _by_process(chunk: pl.DataFrame, processes: list[int]) -> Iterator[tuple[int, dict[str, Ints]]]:
    """The columns of a chunk, process by process."""
    columns = {name: chunk[name].to_numpy() for name in chunk.columns}
    owner = columns.pop("process")
    for process in processes:
        mine = np.flatnonzero(owner == process)
        if len(mine):
            yield process, {name: values[mine] for name, values in columns.items()}
