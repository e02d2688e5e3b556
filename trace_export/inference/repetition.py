"""Finds forwards by repetition: each launches the same row of kernels as those before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from trace_export.inference.kernel_names import Codes
from trace_export.inference.kinds import MOST_KINDS, likeness, occurrences
from trace_export.inference.pieces import Piece
from trace_export.inference.step import Rows, Step
from trace_export.inference.work import Timeline

ALIKE = 0.8
"""Likeness from which on a row was seen before."""
LEAST_WEIGHTS = 3
"""Fewer weight gradients than this have no usual row."""


def by_repetition(step: Step) -> list[Rows] | None:
    """The forwards of a step; None where repetition does not give one for each backward.

    A row between two backwards is one forward, if it also occurs before the first backward. The rows before that are
    read as a series of such forwards. With nothing in between (GPipe) the row is cut into equal parts, if they are
    equal and the capture holds all backwards of the step.

    Example: with three backwards, `e a b a b A B a b C D …` is `a b`, `a b`, `a b`, and `e` belongs to none.
    """
    name = step.timeline.name
    early = [rows for rows in step.possible if rows.begin < step.first_backward]
    later = [rows for rows in step.possible if rows.begin > step.first_backward]
    later = [rows for rows in later if any(True for one in early for _ in occurrences(one.of(name), rows.of(name)))]
    if not later:
        return equal_parts(early[0], name, step.backwards) if len(early) == 1 and step.ended else None
    units = list({rows.of(name).tobytes(): rows.of(name) for rows in later}.values())
    if len(units) > MOST_KINDS:
        return None
    first: list[Rows] = []
    for number, rows in enumerate(early):
        cut = tiling(rows.of(name), units, free=number == 0)
        if cut is None:
            return None
        first += [Rows(rows.begin + a, rows.begin + b) for a, b in cut]
    if len(first) + len(later) != step.backwards:
        return None
    seen = [rows.of(name) for rows in first]
    unseen = any(all(likeness(unit, other) < ALIKE for other in seen) for unit in units)
    return None if unseen else [*first, *later]


def equal_parts(rows: Rows, name: Codes, count: int) -> list[Rows] | None:
    """`rows` as `count` rows of the same names: `a b a b a b` is three times `a b`; None where they are not equal."""
    size, rest = divmod(rows.end - rows.begin, count)
    if rest or not size:
        return None
    parts = rows.of(name).reshape(count, size)
    if not (parts == parts[0]).all():
        return None
    return [Rows(rows.begin + i * size, rows.begin + (i + 1) * size) for i in range(count)]


def tiling(row: Codes, units: Sequence[Codes], *, free: bool) -> list[tuple[int, int]] | None:
    """`row` as one of `units` after another, as many as possible: from where to where each stands. None where it is
    none. Before the first a third of a unit may be left over, with `free` anything; after the last a third.

    Example: `e a b a b` with the unit `a b` and `free` is (1, 3), (3, 5). Of each place where a unit ends `best` has
    the most units that end there one after another, and where the last of them begins:

    | unit begins | ends | most units | last begins |
    |---|---|---|---|
    | 1 | 3 | 1 | 1 |
    | 3 | 5 | 2 | 3 |
    """
    least = min(map(len, units))
    most_before = len(row) if free else least // 3
    placed = sorted((at, order) for order, unit in enumerate(units) for at in occurrences(row, unit))
    best: dict[int, tuple[int, int]] = {}
    for at, order in placed:
        count = best[at][0] if at in best else 0 if at <= most_before else None
        end = at + len(units[order])
        if count is not None and (end not in best or count + 1 > best[end][0]):
            best[end] = (count + 1, at)
    ends = [end for end in best if end >= len(row) - least // 3]
    if not ends:
        return None
    end = max(ends, key=lambda end: (best[end][0], end))
    out = []
    while end in best:
        out.append((best[end][1], end))
        end = best[end][1]
    return out[::-1]


def split_weights(timeline: Timeline, passes: list[Piece]) -> list[Piece]:
    """The passes of a process, with those weight gradients of the calling thread cut that are the usual one several
    times over: `x y`, `x y`, `x y x y` are four."""
    engine = np.append(0, np.cumsum(~timeline.main))
    weights = [p for p in passes if p.kind == "W" and engine[p.begin] == engine[p.end]]
    if len(weights) < LEAST_WEIGHTS:
        return passes
    name = timeline.name
    usual = np.frombuffer(Counter(name[p.begin : p.end].tobytes() for p in weights).most_common(1)[0][0], name.dtype)
    parts: dict[int, list[Piece]] = {}
    for piece in weights:
        times = (piece.end - piece.begin) // len(usual)
        cut = equal_parts(Rows(piece.begin, piece.end), name, times) if times > 1 else None
        if cut and np.array_equal(cut[0].of(name), usual):
            parts[piece.begin] = [Piece("W", *rows) for rows in cut]
    return [part for piece in passes for part in parts.get(piece.begin, [piece])]
