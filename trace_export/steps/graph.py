"""The measured graph: the operations of a run's steps, and what each of them waited for.

An operation is a block on a rank, a transfer between two, a collective of many, or a point in time. Points are the
origin of a segment, a barrier that nobody recorded, the moment at which a rank goes on after the pause before a step,
and the moment at which all blocks are ready that wait for one another inside (as measured these start when they are
ready themselves; in a replay all of them follow that point, see `inner`). An operation is ready when everything that
any of its members waits for has happened, starts with the last of its members, and ends its length later:

    ready = max over the waits;   delay = start - ready >= 0;   length = end - start

so that a replay with the measured delays and lengths gives back the measured times. A wait is for the end of another
operation, or for its start, and may have a constant lag: the time of a launch (see `launches`), or a negative one if
the waiting member had begun before, because streams overlap and clocks disagree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl

from trace_export.ordering import rows_of
from trace_export.steps.order import Flags as Flags
from trace_export.steps.order import Ints as Ints
from trace_export.steps.order import Levels
from trace_export.steps.recorded import Recorded
from trace_export.tolerances import FIFTH

Times = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

WORK, OPTIMIZER, TRANSFER, COLLECTIVE, POINT = range(5)
"""What an operation is (`Graph.sort`): a block of pipeline work, one of the optimizer, and so on."""
PIECE = 1 << 17
"""The times of this many waits are worked out at once; they need several columns."""
JOINT = "together"
"""The kind of the point at which all blocks are ready that wait for one another inside."""


@dataclass(frozen=True)
class Waits:
    """A row per wait: operation `of` waits for `on`, whose end (or, where not `whole`, start) and `lag` it follows."""

    of: Ints
    on: Ints
    whole: Flags
    lag: Times

    def only(self, which: Flags | Ints) -> Waits:
        """Some of the waits."""
        return Waits(self.of[which], self.on[which], self.whole[which], self.lag[which])

    def of_some(self, operations: Ints) -> Waits:
        """Those of some operations."""
        chosen = np.zeros(max(int(operations.max(initial=-1)), int(self.of.max(initial=-1))) + 1, np.bool_)
        chosen[operations] = True
        return self.only(np.flatnonzero(chosen[self.of]))

    def and_also(self, *others: Waits) -> Waits:
        """These waits and those of others."""
        tables = (self, *others)
        return Waits(*(np.concatenate([getattr(t, name) for t in tables]) for name in ("of", "on", "whole", "lag")))

    def met(self, start: Times, end: Times) -> Times:
        """When each of them had happened, as measured."""
        met = happened(self.on, self.whole, start, end)
        met += self.lag
        return met

    def pieces(self) -> Iterator[Waits]:
        """The waits in pieces, for computations that need more memory than the waits themselves."""
        for begin in range(0, len(self.of), PIECE):
            piece = slice(begin, begin + PIECE)
            yield Waits(self.of[piece], self.on[piece], self.whole[piece], self.lag[piece])


@dataclass(frozen=True)
class Columns:
    """A row per operation; times are nanoseconds from `Recorded.zero_ns`. `sort`: WORK, OPTIMIZER, TRANSFER, COLLECTIVE
    or POINT; `kind`: a number for the kind of a block, a transfer's direction, a collective's name. `rank`: of a block;
    of the others the member that started last (-1 at origins and barriers). `src`, `dst`: the ranks of a transfer, else
    -1. `step`: the row of `Recorded.steps` (-1 at an origin)."""

    sort: Ints
    kind: Ints
    rank: Ints
    src: Ints
    dst: Ints
    step: Ints
    start: Times
    end: Times


@dataclass(frozen=True)
class Graph(Columns):
    """Operations and waits. The first operations are the blocks, in the order of `recorded.blocks`, which keeps the
    columns span, microbatch, chunk and first_part; `recorded.edges` keeps none.

    `kinds`: the name of each `kind`. `first`: the first block of a rank in a step; `pause`: those of them that wait for
    no transfer; `blind`: blocks whose input was not recorded. `early_ns`: the time by which messages seem to have ended
    before they began, or without messages, by which blocks used data that were not made yet. `cut`: waits in a circle
    that were left out.
    """

    recorded: Recorded
    kinds: tuple[str, ...]
    first: Flags
    blind: Flags
    waits: Waits
    levels: Levels
    guessed: Flags
    early_ns: int
    cut: int

    def __len__(self) -> int:
        return len(self.start)

    @cached_property
    def ready(self) -> Times:
        """When all that an operation waits for had happened; its start where it waits for nothing."""
        return ready_of(self.waits, self.start, self.end)

    def launch(self, operations: Ints | Flags | slice = slice(None)) -> Times:
        """The part of `ready` that is the launch after the last wait, of all or some `operations`."""
        wait = self.binding[operations]
        launch, some = np.zeros(len(wait), np.int64), np.flatnonzero(wait >= 0)
        launch[some] = np.maximum(self.waits.lag[wait[some]], 0)
        return launch

    @cached_property
    def follows(self) -> Flags:
        """The blocks that waited longest for another block of their rank."""
        following: Flags = (self.sort == WORK) & (self.binding >= 0)
        rows = np.flatnonzero(following)
        following[rows] = self.sort[self.waits.on[self.binding[rows]]] <= OPTIMIZER
        return following

    @cached_property
    def joint(self) -> Flags:
        """The waits for points at which blocks that run together are all ready."""
        kind = self.kinds.index(JOINT) if JOINT in self.kinds else -1
        joint: Flags = (self.kind[self.waits.on] == kind) & (self.sort[self.waits.on] == POINT)
        return joint

    @property
    def delay(self) -> Times:
        """How long after it was ready it started."""
        return self.delay_of(slice(None))

    def delay_of(self, operations: Ints | slice) -> Times:
        """The delays of some operations."""
        delay: Times = np.maximum(self.start[operations] - self.ready[operations], 0)
        return delay

    @property
    def length(self) -> Times:
        """From the start of the last member to the end."""
        return self.end - self.start

    @cached_property
    def pause(self) -> Flags:
        """The first blocks of a rank in a step that wait for no transfer, but for the step itself; and the points at
        which ranks go on whose first blocks wait for a transfer."""
        fed = needs_transfer(self.waits, self.sort)
        pause: Flags = (self.first & ~fed) | ((self.sort == POINT) & (self.rank >= 0))
        return pause

    @cached_property
    def counted(self) -> Flags:
        """The operations of the steps that count: means are over these."""
        counts = np.append(self.recorded.steps["counts"].to_numpy(), False)
        counted: Flags = counts[self.step]
        return counted

    @cached_property
    def binding(self) -> Ints:
        """For each operation the wait (a row of `waits`) that was met last; -1 where it waits for nothing."""
        binding, row = np.full(len(self), np.iinfo(np.int32).max, np.int32), 0
        for waits in self.waits.pieces():
            last = np.flatnonzero(waits.met(self.start, self.end) == self.ready[waits.of])
            np.minimum.at(binding, waits.of[last], (row + last).astype(np.int32))  # of several the first one
            row += len(waits.of)
        binding[binding == np.iinfo(np.int32).max] = -1
        return binding

    @cached_property
    def overlap(self) -> float:
        """The time by which work and transfers began before their input was there, and transfers ended before they
        began, as a share of all work: streams overlap, or clocks disagree. A collective may begin within a block,
        because it reduces the first gradients of the block, and so may a receive, which needs nothing of the block."""
        work, waits = (self.sort == WORK) & self.counted, self.waits
        of_work = work[waits.on] & waits.whole & (work[waits.of] | (self.rank[waits.of] == self.rank[waits.on]))
        of_work &= (self.sort[waits.of] != COLLECTIVE) & (self.dst[waits.of] != self.rank[waits.on])
        total = float(self.length[work].sum())
        return float(self.early_ns - waits.lag[of_work].clip(None, 0).sum()) / max(total, 1.0)

    def of(self, column: str) -> Ints:
        """A column of `recorded.ranks` for each operation, by its rank; -1 at points of no rank."""
        ranks = self.recorded.ranks.sort("rank")
        values = np.append(ranks[column].fill_null(-1).to_numpy(), -1).astype(np.int32)  # the last: of no rank
        of_operation: Ints = values[rows_of(ranks["rank"].to_numpy(), self.rank)]
        return of_operation


def ready_of(waits: Waits, start: Times, end: Times) -> Times:
    """When everything that each operation waits for had happened."""
    ready = np.full(len(start), np.iinfo(np.int64).min)
    for piece in waits.pieces():
        np.maximum.at(ready, piece.of, piece.met(start, end))
    waiting_for_nothing = np.flatnonzero(ready == np.iinfo(np.int64).min)
    ready[waiting_for_nothing] = start[waiting_for_nothing]
    return ready


def happened(on: Ints, whole: Flags, start: Times, end: Times) -> Times:
    """The end of each of the operations `on`, or its start if not `whole`."""
    at = end[on]
    if not whole.all():
        begun = np.flatnonzero(~whole)
        at[begun] = start[on[begun]]
    return at


def of_parts(recorded: Recorded, sort: Ints) -> Ints:
    """The operation of each row of `recorded.parts`; `sort` is that of all operations."""
    collectives = np.flatnonzero(sort == COLLECTIVE)
    if not len(collectives):
        return collectives
    of_part: Ints = collectives[recorded.parts["collective"].rank("dense").to_numpy().astype(np.int64) - 1]
    return of_part


def needs_transfer(waits: Waits, sort: Ints) -> Flags:
    """The operations, of these `sort`s, that wait for a transfer."""
    waiting = np.zeros(len(sort), np.bool_)
    waiting[waits.of[sort[waits.on] == TRANSFER]] = True
    return waiting


def for_origin(waits: Waits, sort: Ints, step: Ints) -> Flags:
    """Which of the waits are for the origin of a segment; `sort` and `step` are those of the operations."""
    awaited: Flags = (sort[waits.on] == POINT) & (step[waits.on] < 0)
    return awaited


def lowest_fifth(rank: Ints, delay: npt.NDArray[np.int64] | Floats) -> float:
    """The lowest fifth of the ranks' median delays: how long a step pauses. Some ranks may start late in it."""
    medians = pl.DataFrame({"rank": rank, "delay": delay}).group_by("rank").median()["delay"]
    return float(np.sort(medians.to_numpy())[int(FIFTH * len(medians))])
