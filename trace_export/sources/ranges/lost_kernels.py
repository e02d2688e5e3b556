"""Finds launches whose kernels are not in the file: the profiler lost them, and the block lacks a part.

A launch that is captured into a CUDA graph runs no kernel then, so that launches made while the process captured a
stream are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from trace_export.sources.ranges.attribution import UNKNOWN, Ints, Launches

Piece = tuple[int, dict[str, Ints]]
"""A process, and columns of some of its rows."""
LAUNCHES, KERNELS, CAPTURES, CAPTURES_END = "*Launch*", "*Launch*Kernel*", "*StreamBeginCapture*", "*StreamEndCapture*"
"""Calls of CUDA and HIP, after the `cuda`, `cu` or `hip` of their names, as patterns of the shell (GLOB)."""


def count(launches: dict[int, Launches], ranges: int, calls: Callable[[str], Iterable[Piece]]) -> Ints:
    """For each of this many ranges, how many kernels were launched in it that are not in the file.

    `launches`: by process, after all tasks were looked up. `calls(pattern)`: start and correlation of the calls with
    such names; they are read only where launches without a task exist.
    """
    found = np.zeros(ranges, np.int64)
    lost = {process: np.sort(ids[ids >= 0]) for process, of in launches.items() if len(ids := of.lost())}
    if not any(map(len, lost.values())):
        return found
    begins, ends = _starts(calls(CAPTURES)), _starts(calls(CAPTURES_END))
    nothing = np.zeros(0, np.int64)
    for process, part in calls(KERNELS):
        if process not in lost:
            continue
        captured = _inside(part["start"], begins.get(process, nothing), ends.get(process, nothing))
        ids = part["correlation"][~captured]
        places = launches[process].of(ids[np.isin(ids, lost[process])])
        inside = launches[process].pipeline[places[places != UNKNOWN]]
        np.add.at(found, inside, 1)
    return found


def _starts(calls: Iterable[Piece]) -> dict[int, Ints]:
    """The times of the calls of each process, in order."""
    parts: dict[int, list[Ints]] = {}
    for process, part in calls:
        parts.setdefault(process, []).append(part["start"])
    return {process: np.sort(np.concatenate(of)) for process, of in parts.items()}


def _inside(moments: Ints, begins: Ints, ends: Ints) -> npt.NDArray[np.bool_]:
    """Whether more captures had begun than ended at each moment."""
    begun, ended = (np.searchsorted(times, moments) for times in (begins, ends))
    return begun > ended
