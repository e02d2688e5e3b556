"""Attributes GPU work to the ranges that launched it (profiler-independent).

A launch belongs to a range when both are of one process and the launch call starts inside the range; of several the
innermost (latest start) counts, those of the launching thread before others. GPU work belongs to the range of its
launch, found by its correlation id, which is unique in a process. Threads do not matter otherwise: PyTorch launches
backward kernels from autograd's threads while the range is open on the main thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from trace_export.sources.ranges.ranges import COMMUNICATION
from trace_export.sources.shared.timestamps import LONGEST_TASK_NS, valid_task_times
from trace_export.stream_order import begins_too_early, possible_ends

NONE = -1
"""No range: numpy's integers have no null."""
DEVICE_SHIFT = 32
"""The number of a stream has that of its device above this many bits."""
UNKNOWN = 0
"""The place of a launch that is not in the file."""

Ints = npt.NDArray[np.signedinteger[Any]]
_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class Enclosing:
    """Finds the innermost range around a moment among the ranges of its thread; ranges are half open, [start, end).

    The innermost range changes only where one starts or ends. Which it is from each of these moments on is worked out
    once, so that looking one up is a bisection however deep the ranges are nested. Cost: n log n in the ranges.

    Example: ranges 0 and 1 of one thread, 1 inside 0. There are four moments, and after each another range is the
    innermost; before the first one, and from the last one on, it is none.

        range 0    [10 ------------ 40)
        range 1         [20 -- 30)
        moments     10   20    30   40
        innermost    0    1     0  none
    """

    def __init__(self, ranges: pl.DataFrame, *, threads: bool) -> None:
        """`ranges`: id, thread, start, end. Without `threads` all ranges count for every thread."""
        ids, thread, start, end = (ranges[c].to_numpy() for c in ("id", "thread", "start", "end"))
        self.threads = _distinct(thread) if threads else np.zeros(1, np.int64)
        self.moments = _distinct(np.concatenate([start, end]))
        # A moment of a thread is one number: its place among all moments plus that of the thread times their number.
        order = np.lexsort((ids, -end, start))
        first = np.searchsorted(self.threads, thread[order]) * len(self.moments) if threads else 0
        begins, ends = (first + np.searchsorted(self.moments, column[order]) for column in (start, end))
        self.changes = _distinct(np.concatenate([begins, ends]))
        begins, ends = (np.searchsorted(self.changes, column) for column in (begins, ends))
        last = np.append(_last_of(begins, ends, len(self.changes)), NONE)
        self.innermost: Ints = np.append(ids[order], NONE)[last]

    def find(self, moments: Ints, threads: Ints) -> Ints:
        """The id of the innermost range around each moment in its thread, NONE outside all."""
        at: Ints = np.searchsorted(self.moments, moments, side="right") - 1
        if len(self.threads) == 1:
            inside: Ints = self.innermost[at]
            return inside
        group = np.minimum(np.searchsorted(self.threads, threads), len(self.threads) - 1)
        change = np.searchsorted(self.changes, group * len(self.moments) + at, side="right") - 1
        return np.where(self.threads[group] == threads, self.innermost[change], NONE)


def _distinct(values: Ints) -> Ints:
    """Sorted, each once; much faster than np.unique, which hashes first."""
    ordered: Ints = np.sort(values)
    once: Ints = ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]
    return once


def _last_of(begins: Ints, ends: Ints, places: int) -> Ints:
    """The last of the intervals [begin, end) that holds each of the places 0, 1, …, or NONE.

    An interval is two pieces, which may overlap, whose length is a power of two. The longest pieces come first, and all
    are halved until they are one place long.
    """
    last: Ints = np.full(places, NONE)
    power = np.frexp(ends - begins)[1] - 1  # of the length of the pieces; negative where an interval is empty
    for exponent in range(int(power.max(initial=0)), -1, -1):
        length = 1 << exponent
        intervals = np.flatnonzero(power == exponent)
        np.maximum.at(last, begins[intervals], intervals)
        np.maximum.at(last, ends[intervals] - length, intervals)
        if half := length // 2:
            last[half:] = np.maximum(last[half:], last[:-half])
    return last


class RangeIndex:
    """The ranges of one process that compete for its launches."""

    @staticmethod
    def both(ranges: pl.DataFrame) -> tuple[RangeIndex, RangeIndex]:
        """The blocks and transfers among the `ranges` of a process, and the calls of NCCL."""
        pipeline = ranges.filter(pl.col("role").is_in(["block", "p2p"]))
        return RangeIndex(pipeline), RangeIndex(ranges.filter(pl.col("role") == COMMUNICATION))

    def __init__(self, ranges: pl.DataFrame) -> None:
        """`ranges`: id, thread, start, end."""
        self.all = Enclosing(ranges, threads=False)
        self.own = Enclosing(ranges, threads=True) if ranges["thread"].n_unique() > 1 else self.all

    def find(self, moments: Ints, threads: Ints) -> Ints:
        """The id of the range of each launch call, those of the calling thread before others; NONE outside all."""
        ids = self.all.find(moments, threads)
        if self.own is not self.all:
            inside = self.own.find(moments, threads)
            ids = np.where(inside != NONE, inside, ids)
        return ids


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
        np.add.at(self.count, ids, 1)

    def columns(self, name: str) -> list[pl.Series]:
        """`<name>_start`, `<name>_end` (null where there is none) and `<name>_count`."""
        some = pl.Series(self.count > 0)
        ends = [pl.Series(f"{name}_{end}", v) for end, v in (("start", self.first), ("end", self.last))]
        return [*(s.set(~some, None) for s in ends), pl.Series(f"{name}_count", self.count)]


@dataclass
class GpuActivity:
    """GPU work by range id: `compute` (kernels and graphs, or what else was asked for) and `communication` (NCCL's
    kernels, by pipeline range and by NCCL call). Of all `tasks` of the processes, `outside` were launched outside every
    pipeline range (NCCL's, which may be anywhere, not counted), `orphans` have no launch call in the file, `untimed`
    have invalid times, or lie more than a day from the range in which they were launched, `early` begin before that
    range, and `cut` ended after the next kernel of their stream had begun, which is now their end; those `beside` it
    are most of their stream, and are kept; `every_call`: whether all calls were read. `lost`: how many of the kernels
    launched in each range are not in the file (see by_launch.count_lost). `begins`: the start of each range, and a last
    one that stands for no range; `blocks`: whether each is a block. For each process `times` is how long kernels
    computed outside all blocks, and in all, `devices` how many kernels of blocks ran on each device, and `busy` how
    many of all kernels that compute."""

    compute: GpuExtent
    communication: GpuExtent
    lost: Ints
    begins: Ints
    blocks: npt.NDArray[np.bool_]
    tasks: int = 0
    outside: int = 0
    orphans: int = 0
    untimed: int = 0
    early: int = 0
    cut: int = 0
    beside: int = 0
    every_call: bool = False
    times: dict[int, tuple[int, int]] = field(default_factory=dict)
    devices: dict[int, Counter[int]] = field(default_factory=dict)
    busy: dict[int, Counter[int]] = field(default_factory=dict)

    @staticmethod
    def none(ranges: pl.DataFrame) -> GpuActivity:
        """No work for `ranges` (start, role)."""
        compute, communication = GpuExtent.none(ranges.height), GpuExtent.none(ranges.height)
        begins = np.append(ranges["start"].to_numpy(), 0)
        blocks = np.append((ranges["role"] == "block").fill_null(False).to_numpy(), False)
        return GpuActivity(compute, communication, np.zeros(ranges.height, np.int64), begins, blocks)

    def take(self, process: int, launches: Launches, tasks: Mapping[str, Ints]) -> None:
        """Takes in GPU tasks of the process, whose `launches` are known: correlation, start, end, nccl (whether they
        are kernels of NCCL) and stream, any number of it with that of the device above `DEVICE_SHIFT`."""
        correlation, start, end, stream = (tasks[c] for c in ("correlation", "start", "end", "stream"))
        nccl = tasks["nccl"] != 0
        at = launches.of(correlation)
        launches.ran[at] = True
        pipeline, call = (of[at].astype(np.intp) for of in (launches.pipeline, launches.call))  # looked up often
        possible = valid_task_times(start, end)
        self.untimed += int(np.count_nonzero(~possible))
        possible &= self._after_launch(np.where(pipeline != NONE, pipeline, call), start, possible)
        if not possible.all():
            at, pipeline, call, nccl, correlation, start, end, stream = (
                column[possible] for column in (at, pipeline, call, nccl, correlation, start, end, stream)
            )
        launched = at != UNKNOWN
        computing = launched & ~nccl
        end = self._in_order(computing, stream, correlation, start, end)
        inside = self.blocks[pipeline] & computing
        self._spend(process, end - start, computing, inside)
        for counts, those in ((self.devices, inside), (self.busy, computing)):
            _count_devices(counts, process, stream, those)
        moving = np.flatnonzero(nccl)
        self.compute.add(np.where(nccl, NONE, pipeline) if len(moving) else pipeline, start, end)
        for around in (pipeline, call):
            self.communication.add(around[moving], start[moving], end[moving])
        self.tasks += len(start)
        self.orphans += int(np.count_nonzero(~launched))
        self.outside += int(np.count_nonzero(computing & (pipeline == NONE)))

    def _spend(
        self, process: int, length: Ints, computing: npt.NDArray[np.bool_], inside: npt.NDArray[np.bool_]
    ) -> None:
        """Counts the time that the `computing` tasks took, those `inside` blocks and the others."""
        outside, every = self.times.get(process, (0, 0))
        total, within = (int(length.sum(where=those)) for those in (computing, inside))
        self.times[process] = outside + total - within, every + total

    def outside_shares(self) -> dict[int, float]:
        """For each process, the share of the time of computing that lies outside all blocks."""
        return {process: outside / every for process, (outside, every) in self.times.items() if every}

    def _after_launch(self, launcher: Ints, start: Ints, timed: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Whether tasks that `start` then begin after the range around their launch (`launcher`, or NONE), and within a
        day of that; where there is no range, yes. A device runs what it was given within hours, and clocks of host and
        device differ by less. Counts those of the `timed` that do not."""
        inside = launcher != NONE
        later = np.where(inside, start - self.begins[launcher], 0)
        wrong: npt.NDArray[np.bool_] = later > LONGEST_TASK_NS
        if later.min(initial=0) < 0:
            wrong[inside] |= begins_too_early(later[inside])
        if wrong.any():
            far = timed & wrong & (np.abs(later) > LONGEST_TASK_NS)
            self.untimed += (many := int(np.count_nonzero(far)))
            self.early += int(np.count_nonzero(timed & wrong)) - many
        return ~wrong

    def _in_order(
        self, computing: npt.NDArray[np.bool_], stream: Ints, correlation: Ints, start: Ints, end: Ints
    ) -> Ints:
        """The ends of tasks, those of the `computing` ones as their streams allow. NCCL's kernels wait for their
        partners and are no block's time. The last one of a stream among these tasks has none after it."""
        begun = int(self.begins[:-1].min()) if len(self.begins) > 1 else None
        possible, kept = possible_ends(stream, correlation, start, end, computing, begun)
        self.beside += kept
        if possible is not end:
            self.cut += int(np.count_nonzero(possible != end))
        return possible

    def frame(self) -> pl.DataFrame:
        """One row per range id: id, work_start, work_end, work_count, comm_start, comm_end, comm_count, lost_count."""
        lost = pl.Series("lost_count", self.lost)
        columns = [*self.compute.columns("work"), *self.communication.columns("comm"), lost]
        return pl.DataFrame(columns).with_row_index("id").cast({"id": pl.Int64})


def _count_devices(counts: dict[int, Counter[int]], process: int, stream: Ints, those: npt.NDArray[np.bool_]) -> None:
    """Counts `those` tasks of a process by their device."""
    count = int(np.count_nonzero(those))
    if not count:
        return
    of_process = counts.setdefault(process, Counter())
    first = int(stream.min()) >> DEVICE_SHIFT
    if first == int(stream.max()) >> DEVICE_SHIFT:  # nearly always
        of_process[first] += count
    else:
        of_process.update((stream[those] >> DEVICE_SHIFT).tolist())


@dataclass(frozen=True)
class Launches:
    """The launch calls of one process, by correlation id: the pipeline range and the NCCL call around each, and whether
    it `ran`, so that its tasks are in the file. The first stands for all that are not there, and is in no range."""

    correlation: Ints
    pipeline: Ints
    call: Ints
    ran: npt.NDArray[np.bool_]

    @staticmethod
    def of_parts(parts: list[tuple[Ints, Ints, Ints]]) -> Launches:
        """The launches of columns in pieces, in any order. Of several with one id that of the earliest range counts;
        one outside all ranges counts last."""
        unknown = (np.array([_FIRST]), np.array([NONE], np.int32), np.array([NONE], np.int32))
        correlation, pipeline, call = (np.concatenate(p) for p in zip(unknown, *parts, strict=True))
        order = np.argsort(correlation[1:], kind="stable")
        if (np.diff(correlation[1:][order]) == 0).any():  # rarely, and sorting by three keys takes three times as long
            keys = (call.astype(np.uint64), pipeline.astype(np.uint64), correlation)  # NONE comes last
            order = np.lexsort([key[1:] for key in keys])
        order = np.insert(order + 1, 0, UNKNOWN)
        return Launches(correlation[order], pipeline[order], call[order], np.zeros(len(order), bool))

    def of(self, correlations: Ints) -> Ints:
        """The place of each correlation id among the launches, or UNKNOWN."""
        at = np.minimum(np.searchsorted(self.correlation, correlations), len(self.correlation) - 1)
        rows: Ints = np.where(self.correlation[at] == correlations, at, UNKNOWN)
        return rows

    def lost(self) -> Ints:
        """The correlation ids of the launches in pipeline ranges that have no task."""
        ids: Ints = self.correlation[~self.ran & (self.pipeline != NONE)]
        lost: Ints = ids[~self.ran[self.of(ids)]]  # of several with one id the first is marked
        return lost
