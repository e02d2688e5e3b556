"""Which GPU work belongs to which range, whatever profiler recorded them.

A launch belongs to a range when both are of one process and the launch call starts inside the range; of several the
innermost (latest start) counts, those of the launching thread before others. GPU work belongs to the range of its
launch, found by its correlation id, which is unique in a process. Threads do not matter otherwise: PyTorch launches
backward kernels from autograd's threads while the range stands on the main thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from trace_export.sources.ranges.ranges import COMMUNICATION
from trace_export.sources.shared.timestamps import taken

NONE = -1

Ints = npt.NDArray[np.signedinteger[Any]]
_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class Enclosing:
    """Finds the innermost range around a moment; ranges are half open, [start, end).

    Row 0 stands for "outside all" and encloses everything, so that a search always ends.
    """

    def __init__(self, ids: Ints, start: Ints, end: Ints) -> None:
        order = np.lexsort((ids, -end, start))
        self.ids, self.start, self.end = (
            np.concatenate([[outside], column[order]])
            for outside, column in ((NONE, ids), (_FIRST, start), (_LAST, end))
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


class RangeIndex:
    """The ranges of one process that compete for its launches."""

    @staticmethod
    def both(ranges: pl.DataFrame) -> tuple[RangeIndex, RangeIndex]:
        """The blocks and transfers among the `ranges` of a process, and the calls of NCCL."""
        pipeline = ranges.filter(pl.col("role").is_in(["block", "p2p"]))
        return RangeIndex(pipeline), RangeIndex(ranges.filter(pl.col("role") == COMMUNICATION))

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
class GpuExtent:
    """First start, last end and number of the GPU tasks of each range; -1 where there is none."""

    first: Ints
    last: Ints
    count: Ints

    @staticmethod
    def none(size: int) -> GpuExtent:
        return GpuExtent(np.full(size, _LAST), np.full(size, -_LAST), np.zeros(size, np.int64))

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


@dataclass
class GpuActivity:
    """GPU work by range id: `compute` (kernels and graphs, or what else was asked for) and `communication` (NCCL's
    kernels, by pipeline range and by NCCL call). Of all `tasks` of the processes, `outside` were launched outside
    every pipeline range (NCCL's, which may be anywhere, not counted), `orphans` have no launch call in the file, and
    `untimed` have no usable time; `every_call`: whether all calls were read."""

    compute: GpuExtent
    communication: GpuExtent
    tasks: int
    outside: int
    orphans: int
    untimed: int
    every_call: bool

    @staticmethod
    def none(size: int) -> GpuActivity:
        """No work for `size` ranges."""
        return GpuActivity(GpuExtent.none(size), GpuExtent.none(size), 0, 0, 0, 0, False)

    def take(self, launches: Launches, correlation: Ints, start: Ints, end: Ints, nccl: npt.NDArray[np.bool_]) -> None:
        """Takes in GPU tasks of the process of `launches`; `nccl`: which of them are NCCL's kernels."""
        timed = taken(start, end)
        if not timed.all():
            self.untimed += int(np.count_nonzero(~timed))
            correlation, nccl, start, end = correlation[timed], nccl[timed], start[timed], end[timed]
        known, pipeline, call = launches.of(correlation)
        self.compute.add(np.where(nccl, NONE, pipeline), start, end)
        self.communication.add(np.where(nccl, pipeline, NONE), start, end)
        self.communication.add(np.where(nccl, call, NONE), start, end)
        self.tasks += len(start)
        self.orphans += int(np.count_nonzero(~known))
        self.outside += int(np.count_nonzero(known & (pipeline == NONE) & ~nccl))

    def frame(self) -> pl.DataFrame:
        """One row per range id: id, work_start, work_end, work_count, comm_start, comm_end, comm_count."""
        columns = [*self.compute.columns("work"), *self.communication.columns("comm")]
        return pl.DataFrame(columns).with_row_index("id").cast({"id": pl.Int64})


@dataclass(frozen=True)
class Launches:
    """The launch calls of one process, by correlation id: the pipeline range and the NCCL call around each."""

    correlation: Ints
    pipeline: Ints
    call: Ints

    @staticmethod
    def of_parts(parts: list[tuple[Ints, Ints, Ints]]) -> Launches:
        """Of columns in pieces; one launch that nothing can match stands first, so that a search always ends."""
        nothing = (np.array([-_LAST]), np.array([NONE], np.int32), np.array([NONE], np.int32))
        correlation, pipeline, call = (np.concatenate(p) for p in zip(nothing, *parts, strict=True))
        order = np.argsort(correlation, kind="stable")
        return Launches(correlation[order], pipeline[order], call[order])

    def of(self, correlations: Ints) -> tuple[npt.NDArray[np.bool_], Ints, Ints]:
        """Per correlation id: whether its launch is known, its pipeline range and its NCCL call (or NONE)."""
        at = np.minimum(np.searchsorted(self.correlation, correlations), len(self.correlation) - 1)
        known = self.correlation[at] == correlations
        return known, np.where(known, self.pipeline[at], NONE), np.where(known, self.call[at], NONE)
