"""Operations while the measured graph grows, the lanes of their blocks, and their waits."""

from __future__ import annotations

import numpy as np
import polars as pl

from trace_export.ordering import rows_of
from trace_export.steps.graph import Flags, Ints, Times, Waits, happened
from trace_export.steps.recorded import KINDS, Recorded

MOST = np.iinfo(np.int64).max


COLUMNS = {
    "sort": np.int8, "kind": np.int16, "rank": np.int32, "src": np.int32, "dst": np.int32, "step": np.int32,
    "start": np.int64, "end": np.int64, "when": np.int64,
}  # fmt: skip
SPARE = 8
"""Room for this part of the operations more, for points: a rank has a few in a step."""


class Operations:
    """Columns of `Graph` while it grows; `when`: the earliest time at which an operation may have begun, which orders
    operations that wait in a circle."""

    sort: Ints
    kind: Ints
    rank: Ints
    src: Ints
    dst: Ints
    step: Ints
    start: Times
    end: Times
    when: Times

    def __init__(self, count: int) -> None:
        """`count`: there is room for this many operations; a copy of the columns for more takes as much memory
        again."""
        self._room = {name: np.empty(count + count // SPARE, dtype) for name, dtype in COLUMNS.items()}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, **columns: Ints | int) -> Ints:
        """The numbers of further operations; a column that is not given is -1."""
        base, self._count = self._count, self._count + len(columns["start"])  # type: ignore[arg-type]
        for name, dtype in COLUMNS.items():
            if self._count > len(self._room[name]):
                spare = self._count - base + self._count // SPARE
                self._room[name] = np.concatenate([self._room[name][:base], np.empty(spare, dtype)])
            self._room[name][base : self._count] = columns.get(name, -1)
            setattr(self, name, self._room[name][: self._count])
        return np.arange(base, self._count, dtype=np.int32)


class Names:
    """Numbers for kinds."""

    def __init__(self) -> None:
        self._kinds = {kind: number for number, kind in enumerate(KINDS)}

    def number(self, kind: str) -> int:
        return self._kinds.setdefault(kind, len(self._kinds))

    def numbers(self, kinds: pl.Series) -> Ints:
        """Those of a column."""
        each = {kind: self.number(kind) for kind in kinds.unique(maintain_order=True)}
        return kinds.replace_strict(each, return_dtype=pl.Int16).to_numpy()

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(self._kinds)


class Lanes:
    """The blocks of a rank in a segment, in their order. `lane`: of each block; `same`: whether a block and the next
    are of one lane; `first`: where each lane begins."""

    def __init__(self, recorded: Recorded) -> None:
        blocks, parts_end = recorded.blocks, recorded.parts["end"].to_numpy()
        rank, segment = blocks["rank"].to_numpy(), blocks["segment"].to_numpy()
        new = (np.diff(rank) != 0) | (np.diff(segment) != 0)
        self.same = ~new
        self.lane = np.concatenate([[0], np.cumsum(new)]) if len(blocks) else np.empty(0, np.int64)
        self.first = np.flatnonzero(np.concatenate([[True], new])) if len(blocks) else np.empty(0, np.int64)
        self._ranks = int(rank.max(initial=0)) + 1
        self._names = segment[self.first].astype(np.int64) * self._ranks + rank[self.first]
        self.start, end = blocks["start"].to_numpy(), np.maximum(blocks["start"].to_numpy(), blocks["end"].to_numpy())
        self._zero = int(min(self.start.min(initial=MOST), parts_end.min(initial=MOST)))
        self._size = max(int(max(end.max(initial=0), parts_end.max(initial=0))) - self._zero, 0) + 2
        self._times = None
        if len(self.first) > MOST // self._size:
            self._times = np.unique(np.concatenate([self.start, end, parts_end]))
            self._size = len(self._times) + 1
        latest = np.maximum.accumulate(self._key(self.lane, end)) - self.lane * self._size - 1
        self.end = latest + self._zero if self._times is None else self._times[latest]

    def _key(self, lane: Ints, at: Times) -> Ints:
        """A number that rises with lane and time, so that one search, and one running maximum, serve all lanes: the
        time since the first block or end of a collective, behind the times of the previous lanes. If that overflows,
        the rank of `at` among all times."""
        if self._times is None:
            return lane * self._size + np.clip(at - self._zero + 1, 0, self._size - 1)
        key: Ints = lane * self._size + np.searchsorted(self._times, at, side="right")
        return key

    def first_of(self, step: Ints) -> Flags:
        """Which blocks are the first of their lane in a step."""
        order = np.argsort(self.lane * (int(step.max(initial=0)) + 1) + step, kind="stable")
        new = (np.diff(self.lane[order]) != 0) | (np.diff(step[order]) != 0)
        first = np.zeros(len(step), np.bool_)
        first[order[np.concatenate([[True], new])[: len(step)]]] = True
        return first

    def of(self, segment: Ints, rank: Ints) -> Ints:
        """The lane of each pair; -1 where it has no blocks."""
        lane = rows_of(self._names, segment.astype(np.int64) * self._ranks + rank)
        return np.where((rank < self._ranks) & (lane < len(self.first)), lane, np.int64(-1))

    def last(self, times: Times, lane: Ints, at: Times, of: Ints | None = None) -> Ints:
        """The last block of each lane whose time (of `times`, rising in a lane) is at most `at`; -1 where there is
        none. `of`: the lanes of `times`, in their order, where these are not of the blocks."""
        of = self.lane if of is None else of
        row = np.searchsorted(self._key(of, times), self._key(lane, at), side="right") - 1
        return np.where((row >= 0) & (of[row] == lane), row, -1)


def wait(of: Ints, on: Ints, begun: Times, operations: Operations, whole: Flags | bool = True) -> Waits:
    """Operations that wait for others; the waiting member had begun at `begun`."""
    full = np.broadcast_to(np.asarray(whole, np.bool_), len(of))
    overlap = happened(on, full, operations.start, operations.end)
    np.subtract(begun, overlap, out=overlap)
    np.minimum(overlap, 0, out=overlap)
    return Waits(of.astype(np.int32, copy=False), on.astype(np.int32, copy=False), full, overlap)
