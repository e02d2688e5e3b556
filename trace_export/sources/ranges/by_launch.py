"""Attributes the GPU tasks of a source to its ranges, process by process, for profilers that record launch calls, and
finds launches whose kernels are not in the file: the profiler lost them, and the block lacks a part.

Read in chunks of rows; memory holds 16 bytes per launch and one row per range. A launch that is captured into a CUDA
graph runs no kernel then, so that launches made while the process captured a stream are left out of those that lost
one. A launch of a graph without a task counts as one that was lost where another one of the process has tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import polars as pl

from trace_export.sources.ranges.attribution import DEVICE_SHIFT, UNKNOWN, GpuActivity, Ints, Launches, RangeIndex

Piece = tuple[int, dict[str, Ints]]
"""A process, and columns of some of its rows."""
LAUNCHES, KERNEL_LAUNCHES, GRAPH_LAUNCHES = "*Launch*", "*Launch*Kernel*", "*GraphLaunch*"
CAPTURES, CAPTURES_END = "*StreamBeginCapture*", "*StreamEndCapture*"
"""Calls of CUDA and HIP, after the `cuda`, `cu` or `hip` of their names, as patterns of the shell (GLOB)."""
Parts = Mapping[int, Mapping[int, int]]
"""Process → device → the number of that part of the process, of processes whose devices count as processes."""
WHOLE: Parts = MappingProxyType({})
"""No process has parts."""
ORPHANS = 0.003
"""The share of GPU tasks without a launch call above which the names of the calls are doubted."""


Calls = Callable[[str | None, list[int]], Iterable[Piece]]
"""start, thread and correlation of the calls with names like a pattern (see `count_lost`; None: of all) in some
processes."""
Tasks = Callable[[list[int]], Iterable[Piece]]
"""The GPU tasks of some processes, see GpuActivity.take."""


def attribute(
    ranges: pl.DataFrame, calls: Calls, tasks: Tasks, pattern: str | None = LAUNCHES, parts: Parts = WHOLE
) -> GpuActivity:
    """The GPU tasks by range.

    `ranges`: id (0, 1, …), process, thread, start, end, role; blocks and transfers compete, and NCCL calls among
    themselves. Reads all calls when more than a few per mille of the tasks have none of those whose names fit
    `pattern`. Where a process has `parts`, its ranges have their numbers.
    """
    numbers = {part for devices in parts.values() for part in devices.values()}
    processes = sorted({*ranges["process"].unique()} - numbers | parts.keys())

    def called(pattern: str | None) -> Iterable[Piece]:
        pieces = calls(pattern, processes)
        return of_parts(pieces, parts) if parts else pieces

    def attributed(pattern: str | None) -> tuple[dict[int, Launches], GpuActivity]:
        launches, activity = _launches(ranges, called(pattern)), GpuActivity.none(ranges)
        share_launches_that_ran(launches, parts)
        for process, chunk in by_part(tasks(processes), launches, parts):
            activity.take(process, launches[process], chunk)
        return launches, activity

    launches, activity = attributed(pattern)
    if pattern is not None and activity.orphans > activity.tasks * ORPHANS:
        return replace(attributed(None)[1], every_call=True)
    if pattern not in (LAUNCHES, None):
        return activity
    return replace(activity, lost=count_lost(launches, ranges.height, called))


def of_parts(calls: Iterable[Piece], parts: Parts) -> Iterator[Piece]:
    """The calls of a process for each of its parts: nothing says which device a call is for."""
    for process, piece in calls:
        for part in parts.get(process, {0: process}).values():
            yield part, piece


def by_part(tasks: Iterable[Piece], launches: Mapping[int, Launches], parts: Parts) -> Iterator[Piece]:
    """The tasks of a process by its parts. The `launches` of tasks on other devices ran, too."""
    for process, piece in tasks:
        if process not in parts:
            yield process, piece
            continue
        of_process = launches[next(iter(parts[process].values()))]
        of_process.ran[of_process.of(piece["correlation"])] = True
        device = piece["stream"] >> DEVICE_SHIFT
        for number, part in parts[process].items():
            rows = device == number
            yield part, {name: column[rows] for name, column in piece.items()}


def share_launches_that_ran(launches: dict[int, Launches], parts: Parts) -> None:
    """Lets the parts of a process know which of its launches ran on any of its devices: these are not lost."""
    for first, *others in (list(devices.values()) for devices in parts.values()):
        for other in others:
            launches[other] = replace(launches[other], ran=launches[first].ran)


def _launches(ranges: pl.DataFrame, calls: Iterable[Piece]) -> dict[int, Launches]:
    of_process = ranges.partition_by("process", as_dict=True)
    layers = {process: RangeIndex.both(of_this) for (process,), of_this in of_process.items()}
    parts: dict[int, list[tuple[Ints, Ints, Ints]]] = {process: [] for process in layers}
    for process, part in calls:
        in_layers = [layer.find(part["start"], part["thread"]).astype(np.int32) for layer in layers[process]]
        parts[process].append((part["correlation"], in_layers[0], in_layers[1]))
    return {process: Launches.of_parts(of) for process, of in parts.items()}


def count_lost(launches: dict[int, Launches], ranges: int, calls: Callable[[str], Iterable[Piece]]) -> Ints:
    """For each of this many ranges, how many kernels were launched in it that are not in the file.

    `launches`: by process, after all tasks were looked up. `calls(pattern)`: start and correlation of the calls with
    such names; they are read only where launches without a task exist.
    """
    counts = np.zeros(ranges, np.int64)
    lost = {process: np.sort(ids[ids >= 0]) for process, of in launches.items() if len(ids := of.lost())}
    if not any(map(len, lost.values())):
        return counts
    captures = [
        {process: np.sort(starts) for process, starts in _whole(calls(pattern), "start")}
        for pattern in (CAPTURES, CAPTURES_END)
    ]
    for process, part in calls(KERNEL_LAUNCHES):
        if process in lost:
            begun, ended = (np.searchsorted(of.get(process, counts[:0]), part["start"]) for of in captures)
            np.add.at(counts, _ranges_of(part["correlation"][begun <= ended], launches[process], lost[process]), 1)
    for process, ids in _whole(calls(GRAPH_LAUNCHES), "correlation"):
        if process in lost and launches[process].ran[launches[process].of(ids)].any():
            np.add.at(counts, _ranges_of(ids, launches[process], lost[process]), 1)
    return counts


def _ranges_of(ids: Ints, launches: Launches, lost: Ints) -> Ints:
    """The ranges around those of the launches with these correlation ids that are `lost`."""
    rows = launches.of(ids[np.isin(ids, lost)])
    ranges: Ints = launches.pipeline[rows[rows != UNKNOWN]]
    return ranges


def _whole(calls: Iterable[Piece], column: str) -> Iterator[tuple[int, Ints]]:
    """Each process, and this column of all of its calls."""
    parts: dict[int, list[Ints]] = {}
    for process, part in calls:
        parts.setdefault(process, []).append(part[column])
    yield from ((process, np.concatenate(of)) for process, of in parts.items())
