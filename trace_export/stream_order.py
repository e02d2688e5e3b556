"""Device tasks with times that cannot be: a device begins a task after its launch, and a stream begins it when the one
before it has ended."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from trace_export.tolerances import FEW_LAUNCHES_NS, LAUNCH_NS, OVERLAP_NS

Ints = npt.NDArray[np.signedinteger[Any]]

FEW = 8
"""This many tasks that begin before their launch, or run past the next one, may be wrong records. Where more of the
latter are most of a stream, its number does not stand for a stream."""

FEW_PERCENT = 1
MANY_PERCENT = 10
"""Where a larger share of the tasks begin before their launch, the clock of the device is wrong, and so is the rest."""


def begins_too_early(later: Ints) -> npt.NDArray[np.bool_]:
    """Which tasks begin before their launch by more than clocks are off; `later`: how much later than its launch each
    begins.

    Example: of a hundred tasks, 20 µs later each, one that begins 0.3 ms before its launch has a wrong time. Where
    twenty do, the clock of the device is off by that, and none is wrong before 1 ms.
    """
    few: npt.NDArray[np.bool_] = later < -FEW_LAUNCHES_NS
    if np.count_nonzero(few) <= max(FEW, len(later) * FEW_PERCENT // 100):
        return few
    early: npt.NDArray[np.bool_] = later < -LAUNCH_NS
    return early


def are_many(early: int, tasks: int) -> bool:
    """Whether so many tasks begin before their launch that these are no wrong records, but a clock that is wrong."""
    return early > max(FEW, tasks * MANY_PERCENT // 100)


def possible_ends(
    stream: Ints,
    launch: Ints,
    start: Ints,
    end: Ints,
    counts: npt.NDArray[np.bool_] | None = None,
    begun_ns: int | None = None,
) -> tuple[Ints, int]:
    """The ends of tasks, and how many are kept that run past the next one, as most of their stream do.

    An end is at the latest where the next task of the same stream begins. The last one of a stream, which
    has none after it, does not last longer than all that was recorded before it. A task whose end cannot be true took
    at most as long as the longest other one of its stream, if there are enough; if not, the last one is left as it is.
    `counts`: which tasks are compared (None: all). `begun_ns`: when the recording began (None: with the first task).

    `stream`: any number of the stream; `launch`: a number that grows with the order of the launches, as correlation
    ids do. Tasks of one launch, the nodes of a graph, may run beside each other. A task that begins before the one
    that was launched before it says nothing about that one.

    Example: of tasks in one stream, launched in this order, at 0–10, 20–900 and 30–40 ms the second one ends at 30.
    Where eight more of 5 ms follow from 60 ms on instead of the third one, it is as long as the first one and ends at
    30 too.
    """
    long = end - start > OVERLAP_NS
    if not (long if counts is None else long & counts).any():
        return end, 0
    compared = np.arange(len(end)) if counts is None else np.flatnonzero(counts)
    begun = int(start[compared].min()) if begun_ns is None else begun_ns
    possible, kept = end.copy(), 0
    of_task = stream[compared]
    for number in pl.Series(of_task).unique():
        rows = compared[of_task == number]
        if (np.diff(launch[rows]) <= 0).any():
            rows = rows[np.lexsort((start[rows], launch[rows]))]
        task, following = rows[:-1], rows[1:]
        begins = start[following]
        past = (end[task] - begins > OVERLAP_NS) & (begins > start[task]) & (launch[task] != launch[following])
        count = np.count_nonzero(past)
        if 0 < count <= max(FEW, len(task) // 2):
            possible[task[past]] = begins[past]
            others = rows[np.append(~past, True)]
            if len(others) >= FEW:
                longest = start[task[past]] + (end[others] - start[others]).max()
                possible[task[past]] = np.minimum(begins[past], longest)
        else:
            kept += int(count)
        last = rows[-1]
        if len(task) >= FEW and end[last] - start[last] > max(start[last] - begun, OVERLAP_NS):
            possible[last] = min(end[last], start[last] + int((possible[task] - start[task]).max()))
    return possible, kept
