"""Assigns overlapping slices of a track to lanes, so that slices of one lane do not overlap."""

from __future__ import annotations

import heapq
from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_NEVER: Final = np.iinfo(np.int64).min
_DEEP: Final = 64
"""From this lane on rows are placed one by one: whole columns pay only where a lane takes many rows."""


class Lanes:
    """The lanes of one track, filled batch by batch in order of (start, end)."""

    def __init__(self) -> None:
        self._ends: list[int] = []  # when the last row of each lane ends

    @property
    def count(self) -> int:
        return len(self._ends)

    def assign(self, start: Ints, end: Ints) -> Ints:
        """The lane of each row: the lowest one whose last row has ended.

        `start` is sorted, and not before that of the last batch.
        """
        lanes = np.zeros(len(start), np.int64)
        left = np.arange(len(start))
        lane = 0
        while len(left) and lane < _DEEP:
            if lane == len(self._ends):
                self._ends.append(_NEVER)
            taken = _chain(start[left], end[left], self._ends[lane])
            if taken.any():
                lanes[left[taken]] = lane
                self._ends[lane] = int(end[left[taken][-1]])
            left = left[~taken]
            lane += 1
        if len(left):
            lanes[left] = self._deep(start[left].tolist(), end[left].tolist())
        return lanes

    def _deep(self, starts: list[int], ends: list[int]) -> list[int]:
        """The lanes from `_DEEP` on that the rows take, by a queue of the lanes in use and one of the free ones."""
        busy = [(self._ends[lane], lane) for lane in range(_DEEP, self.count)]
        heapq.heapify(busy)
        free: list[int] = []
        lanes = []
        for start, end in zip(starts, ends, strict=True):
            while busy and busy[0][0] <= start:
                heapq.heappush(free, heapq.heappop(busy)[1])
            if not free:
                free.append(self.count)
                self._ends.append(end)
            lane = heapq.heappop(free)
            self._ends[lane] = end
            heapq.heappush(busy, (end, lane))
            lanes.append(lane)
        return lanes


def _chain(start: Ints, end: Ints, free: int) -> NDArray[np.bool_]:
    """The rows that one lane takes: the first that starts when it is `free`, then always the next that starts when
    that one has ended. Found by doubling: all rows within 1, 2, 4, 8 … steps of the first."""
    rows = len(start)
    taken = np.zeros(rows + 1, np.bool_)
    taken[np.searchsorted(start, free)] = True
    if start[0] >= free and (start[1:] >= end[:-1]).all():
        taken[:] = True
        return taken[:rows]
    following = np.maximum(np.searchsorted(start, end), np.arange(1, rows + 1))
    step = np.append(following, rows)  # the row past the last one follows itself
    before = 0
    while (count := int(np.count_nonzero(taken))) > before:
        before = count
        taken[step[taken]] = True
        step = step[step]
    return taken[:rows]
