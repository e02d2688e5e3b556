"""Attributes the GPU tasks of a source to its ranges, process by process, for profilers that record launch calls.

Read in chunks of rows; memory holds 16 bytes per launch and one row per range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import polars as pl

from trace_export.sources.ranges import lost_kernels
from trace_export.sources.ranges.attribution import GpuActivity, Ints, Launches, RangeIndex
from trace_export.sources.ranges.lost_kernels import LAUNCHES, Piece

ORPHANS = 0.003
"""The share of GPU tasks without a launch call above which the names of the calls are doubted."""


def attribute(
    ranges: pl.DataFrame,
    calls: Callable[[str | None], Iterable[Piece]],
    tasks: Callable[[], Iterable[Piece]],
    pattern: str = LAUNCHES,
) -> GpuActivity:
    """The GPU tasks by range.

    `ranges`: id (0, 1, …), process, thread, start, end, role; blocks and transfers compete, and NCCL calls among
    themselves. `calls(pattern)`: start, thread and correlation of the calls with such names (see lost_kernels), or of
    all. `tasks()`: see GpuActivity.take. Reads all calls when more than a few per mille of the
    tasks have none of those whose names fit `pattern`.
    """
    launches, activity = _attributed(ranges, calls(pattern), tasks())
    if activity.orphans > activity.tasks * ORPHANS:
        return replace(_attributed(ranges, calls(None), tasks())[1], every_call=True)
    if pattern != LAUNCHES:
        return activity
    return replace(activity, lost=lost_kernels.count(launches, ranges.height, calls))


def _attributed(
    ranges: pl.DataFrame, calls: Iterable[Piece], tasks: Iterable[Piece]
) -> tuple[dict[int, Launches], GpuActivity]:
    launches = _launches(ranges, calls)
    activity = GpuActivity.none(ranges)
    for process, chunk in tasks:
        activity.take(process, launches[process], chunk)
    return launches, activity


def _launches(ranges: pl.DataFrame, calls: Iterable[Piece]) -> dict[int, Launches]:
    of_process = ranges.partition_by("process", as_dict=True)
    layers = {process: RangeIndex.both(own) for (process,), own in of_process.items()}
    parts: dict[int, list[tuple[Ints, Ints, Ints]]] = {process: [] for process in layers}
    for process, part in calls:
        found = [layer.find(part["start"], part["thread"]).astype(np.int32) for layer in layers[process]]
        parts[process].append((part["correlation"], found[0], found[1]))
    return {process: Launches.of_parts(of) for process, of in parts.items()}
