"""Finds the optimizer among the pieces of the calling thread; it ends a training step."""

from __future__ import annotations

import re
from itertools import groupby

import numpy as np

from trace_export.inference.pieces import Piece
from trace_export.inference.work import Ints, Timeline

ONE_EACH = re.compile("O?(BO)*B?")


def with_optimizers(timeline: Timeline, pieces: list[Piece], updates: Ints, *, exact: bool) -> list[Piece]:
    """The pieces, with an OPT from the first to the last of its kernels in each row of pieces between two backwards.

    `updates`: the rows of the optimizer, which its range shows (`exact`) or their names. With names the fills before
    the first one belong to it: the first step makes the optimizer's state. Names that occur after more than half of
    the backwards, but not once after each, are no sign of an optimizer.

    Example: `A B a 1 u b u c` with updates `u` is B `A B`, M `a`, OPT `1 u b u`, M `c`.
    """
    out: list[Piece] = []
    found = 0
    for own, group in groupby(pieces, key=lambda piece: piece.kind == "M"):
        row = list(group)
        update = _update(timeline, row[0].begin, row[-1].end, updates, exact=exact) if own else None
        if update is None:
            out += row
            continue
        found += 1
        out += [p for p in (piece._replace(end=min(piece.end, update.begin)) for piece in row) if p.begin < p.end]
        out.append(update)
        out += [p for p in (piece._replace(begin=max(piece.begin, update.end)) for piece in row) if p.begin < p.end]
    backwards = sum(piece.kind in "BW" for piece in pieces)
    if exact or found <= 1 or found * 2 <= backwards:
        return out
    order = "".join(piece.kind[0] for piece in out if piece.kind in ("B", "OPT"))
    return out if ONE_EACH.fullmatch(order) else pieces


def _update(timeline: Timeline, begin: int, end: int, updates: Ints, *, exact: bool) -> Piece | None:
    """The optimizer among the rows [begin, end)."""
    first, last = (int(n) for n in np.searchsorted(updates, (begin, end)))
    if first == last:
        return None
    start = int(updates[first])
    while not exact and start > begin and timeline.fill[start - 1]:
        start -= 1
    return Piece("OPT", start, int(updates[last - 1]) + 1)
