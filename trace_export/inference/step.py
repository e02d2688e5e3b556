"""One training step of a process: its pieces; the backwards are known, the forwards are wanted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from trace_export.inference.kernel_names import Codes
from trace_export.inference.pieces import Piece
from trace_export.inference.work import Timeline


class Rows(NamedTuple):
    """Rows [begin, end) of a timeline."""

    begin: int
    end: int

    def of(self, column: Codes) -> Codes:
        return column[self.begin : self.end]


SHORT = 0.04
"""A piece below this part of the usual time of a forward is not a forward."""


@dataclass(frozen=True)
class Step:
    """`pieces` from the end of one optimizer to that of the next. `ended`: the capture does not end inside the step."""

    timeline: Timeline
    pieces: tuple[Piece, ...]
    ended: bool = True

    @cached_property
    def backwards(self) -> int:
        """How many forwards there must be."""
        return sum(piece.kind == "B" for piece in self.pieces)

    @cached_property
    def first_backward(self) -> int:
        """The row at which the first backward or weight gradient begins."""
        return next((p.begin for p in self.pieces if p.kind in "BW"), self.pieces[-1].end)

    @cached_property
    def last_backward(self) -> int:
        """The row at which the last backward begins: no forward comes later."""
        return max((p.begin for p in self.pieces if p.kind == "B"), default=self.pieces[0].begin)

    @cached_property
    def own(self) -> list[Rows]:
        """The pieces of the calling thread, but those that only count tokens."""
        counted = self.timeline.after_counters
        return [Rows(p.begin, p.end) for p in self.pieces if p.kind == "M" and counted(p.begin) < p.end]

    @cached_property
    def possible(self) -> list[Rows]:
        """Those that may hold forwards."""
        return [rows for rows in self.own if rows.begin < self.last_backward]

    def time(self, rows: Rows) -> int:
        return self.timeline.time(rows.begin, rows.end)

    @cached_property
    def usual(self) -> int:
        """The time of a usual forward: the median of as many of the longest pieces as there are backwards."""
        times = sorted(map(self.time, self.possible), reverse=True)
        return times[min(self.backwards, len(times)) // 2] if times else 0
