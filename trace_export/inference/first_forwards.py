"""Where the first forward of a step begins: work between the optimizer and the forward belongs to no pass.

On a stage that receives something first, a transfer shows the beginning. On any other, logging, copies of parameters or
an optimizer of unknown names may directly precede the forward. There it begins as the others do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from trace_export.inference.kinds import head, occurrences
from trace_export.inference.pieces import Piece
from trace_export.inference.work import Timeline

Heads = set[bytes]
"""The kinds of the first kernels of forwards."""


def beginnings(timeline: Timeline, steps: Sequence[Sequence[Piece]]) -> dict[int, int | None]:
    """The first row of each doubtful forward among the passes of the steps → the row at which it begins, None where
    nothing shows it.

    | doubtful forward | begins |
    |---|---|
    | like one that is not doubtful, from some row on | there |
    | otherwise, right after a transfer, or with the capture | where it is |
    | of steps of one forward each, in a process that transfers nothing: all are doubtful | where it is |
    | any other | unknown |
    """
    doubts = _doubtful(timeline, steps)
    forwards = [piece for passes in steps for piece in passes if piece.kind == "F"]
    heads = {head(timeline, piece.begin, piece.end) for piece in forwards if piece.begin not in doubts}
    if not heads and not len(timeline.transfers) and len(steps) > 1:
        return {}
    begins: dict[int, int | None] = {}
    for piece in (piece for piece in forwards if piece.begin in doubts):
        at = _first_like(timeline, piece, heads)
        begins[piece.begin] = piece.begin if at is None and doubts[piece.begin] else at
    return begins


def _doubtful(timeline: Timeline, steps: Sequence[Sequence[Piece]]) -> dict[int, bool]:
    """The first rows of the forwards before which foreign work may lie: those of the steps' first; and, unless a
    forward and its backward alternate without a transfer, all that find every forward before them followed by its
    backward: a step may end there without an optimizer. And of each whether something else shows where it begins: a
    transfer right before it, or the beginning of the capture.

    A transfer before the first forward of a step that an optimizer begins leaves no doubt.

    Example: in `a b A B u s a b | c d …` with the optimizer `u` the first forward is doubtful, though the capture
    begins with it, and so is `s a b`, whose beginning nothing shows; `c d` is not the first of its step.
    """
    several = len(steps) > 1
    forwards = [(one.begin, first, opened) for passes in steps for one, first, opened in _opened(passes)]
    everywhere = not several or len(timeline.transfers) or any(opened for *_, opened in forwards)
    doubtful = {}
    for begin, first, opened in forwards:
        if first or (everywhere and not opened):
            sent, alone = _preceded(timeline, begin)
            if not (sent and first and several):
                doubtful[begin] = sent or alone
    return doubtful


def _opened(passes: Sequence[Piece]) -> Iterator[tuple[Piece, bool, int]]:
    """The forwards of a step, whether each is the first one, and how many forwards before it had no backward yet."""
    opened, first = 0, True
    for piece in passes:
        if piece.kind == "F":
            yield piece, first, opened
            first = False
        opened += (piece.kind == "F") - (piece.kind == "B")


def _preceded(timeline: Timeline, begin: int) -> tuple[bool, bool]:
    """Whether a transfer comes right before the row, but for counters of tokens, and whether nothing comes before."""
    before = begin - 1
    while before >= 0 and timeline.counter[before]:
        before -= 1
    if before < 0:
        return False, True
    low, high = np.searchsorted(timeline.transfers, timeline.launch[[before, begin]], side="right")
    return bool(high > low), False


def _first_like(timeline: Timeline, forward: Piece, heads: Heads) -> int | None:
    """The first row from which on a forward begins with one of the `heads`: of `s t a b c` that of `a`, where another
    forward is `a b c`. None where there is none."""
    row = timeline.stem[forward.begin : forward.end]
    firsts = (next(occurrences(row, np.frombuffer(one, row.dtype)), None) for one in heads)
    at = min((first for first in firsts if first is not None), default=None)
    return None if at is None else forward.begin + at
