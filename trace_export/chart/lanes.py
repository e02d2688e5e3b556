"""Blocks that overlap on one track go to lanes, so that each lane holds at most touching ones."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Lanes:
    """The lanes of one track, filled batch by batch in order of (start, end)."""

    def __init__(self) -> None:
        self._busy: list[tuple[int, int]] = []  # (end, lane), by end
        self._free: list[int] = []  # lanes that have ended, lowest first
        self.count = 0

    def assign(self, start: Ints, end: Ints) -> Ints:
        """The lane of each row: the lowest one whose last row has ended.

        `start` is sorted, and not before that of the last batch.
        """
        lanes = np.zeros(len(start), np.int64)
        if not len(start):
            return lanes
        # A row is alone when all before it have ended as it starts, and it has ended as the next one starts.
        latest = np.maximum.accumulate(end)
        before = max((last for last, _ in self._busy), default=start[0])
        fresh = start >= np.concatenate(([before], np.maximum(latest[:-1], before)))
        alone = fresh & np.concatenate((fresh[1:], [False]))
        for row in np.flatnonzero(~alone).tolist():
            lanes[row] = self._next(int(start[row]), int(end[row]))
        self.count = max(self.count, 1)
        return lanes

    def _next(self, start: int, end: int) -> int:
        while self._busy and self._busy[0][0] <= start:
            heapq.heappush(self._free, heapq.heappop(self._busy)[1])
        if self._free:
            lane = heapq.heappop(self._free)
        else:
            lane = self.count
            self.count += 1
        heapq.heappush(self._busy, (end, lane))
        return lane
