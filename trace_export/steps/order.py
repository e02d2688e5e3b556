"""The order of the operations of a measured graph: levels whose operations wait only for those of earlier levels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trace_export.ordering import distinct, rows_by

Ints = npt.NDArray[np.integer[Any]]
Flags = npt.NDArray[np.bool_]


FEW = 8
"""A barrier waits for a thousand ranks: as many turns would take longer than all others."""


@dataclass(frozen=True)
class Levels:
    """`order`: the operations, level by level, in a level those with most waits first. `bounds`: where in `order` each
    level begins, and the end. `turns`: where each turn of the waits begins, and the end; `first_turn`: the first turn
    of each level, and the end. A level has a turn for the first wait of each of its operations, in their order, then
    one for the second wait of those that have one, and so on. If one of them has more than `FEW`, all waits are one
    turn, operation by operation, and `begins` says where in it those of each operation begin."""

    order: Ints
    bounds: Ints
    turns: Ints
    first_turn: Ints
    begins: Mapping[int, Ints]


def levels(of: Ints, on: Ints, step: Ints) -> tuple[Levels, Ints] | None:
    """The levels of operations, if `of[i]` waits for `on[i]`, and the waits in the order of `turns`; None if some wait
    in a circle. `step`: of each operation. O(waits)."""
    count, waits = len(step), np.bincount(of, minlength=len(step)).astype(np.int32)
    level = _levels(waits, of, on, step)
    if level is None:
        return None
    few = np.minimum(waits, FEW + 1)
    order = rows_by(level * np.int64(FEW + 2) + (FEW + 1 - few))
    bounds = np.concatenate([[0], np.cumsum(np.bincount(level))])
    most = few[order][bounds[:-1]]
    first_turn = np.concatenate([[0], np.cumsum(np.where(most > FEW, 1, most))])
    position = np.empty(count, np.int32)
    position[order] = np.arange(count, dtype=np.int32)
    by_position, waits = rows_by(position[of]), waits[order]
    first = np.concatenate([[0], np.cumsum(waits)])
    turn = np.repeat((np.repeat(first_turn[:-1], np.diff(bounds)) - first[:-1]).astype(np.int32), waits)
    turn += np.arange(len(turn), dtype=np.int32)  # the first wait of an operation is in its level's first turn
    begins = {}
    for n in np.flatnonzero(most > FEW).tolist():
        of_level = first[bounds[n] : bounds[n + 1] + 1]
        turn[of_level[0] : of_level[-1]] = first_turn[n]
        begins[n] = of_level[:-1] - of_level[0]
    turns = np.concatenate([[0], np.cumsum(np.bincount(turn, minlength=int(first_turn[-1])))])
    return Levels(order, bounds, turns, first_turn, begins), by_position[rows_by(turn)]


def _levels(waits: Ints, of: Ints, on: Ints, step: Ints) -> Ints | None:
    """The level of each operation, which has so many `waits`; None if some wait in a circle. Levels are sought in all
    steps at once, and those of a step follow those of the steps that it waits for: a few calls of numpy for each level
    of one step after the other take longer than all else in a long run of few ranks."""
    part = step - step.min(initial=0)
    inside = part[of] == part[on]
    if (part[of] < part[on]).any():
        part, inside = np.zeros_like(part), np.ones(len(of), np.bool_)
    level = _depths(np.bincount(of[inside], minlength=len(waits)), of[inside], on[inside])
    if level.min(initial=0) < 0:
        return None
    count = int(part.max(initial=-1)) + 1
    ends = np.zeros(count, np.int32)
    np.maximum.at(ends, part, level + 1)
    across = np.flatnonzero(~inside)
    pairs, _ = distinct(part[of[across]].astype(np.int64) * count + part[on[across]])
    begin = np.zeros(count, np.int32)
    for n, m in (divmod(pair, count) for pair in pairs.tolist()):
        begin[n] = max(begin[n], begin[m] + ends[m])
    level += begin[part] + 1
    level[waits == 0] = 0  # what waits for nothing is a level of its own
    dense: Ints = (np.cumsum(np.bincount(level) > 0, dtype=np.int32) - 1)[level]
    return dense


def _depths(missing: Ints, of: Ints, on: Ints) -> Ints:
    """How many operations wait for one another before each, at most; -1 of those in a circle, and of all that wait for
    them. `missing`: how many waits each operation has, which is changed."""
    count, depth = len(missing), 0
    followers, first = of[rows_by(on)], np.concatenate([[0], np.cumsum(np.bincount(on, minlength=count))])
    depths, seen_at = np.full(count, -1, np.int32), np.empty(count, np.int32)
    front = np.flatnonzero(missing == 0)
    while len(front):
        depths[front] = depth
        depth += 1
        sizes = first[front + 1] - first[front]
        ends = np.cumsum(sizes)
        at = np.arange(ends[-1]) + np.repeat(first[front + 1] - ends, sizes)
        reached = followers[at].astype(np.intp)
        np.subtract.at(missing, reached, np.ones(len(reached), missing.dtype))  # not a number: three times as fast
        free = reached[missing[reached] == 0]
        here = np.arange(len(free), dtype=np.int32)
        seen_at[free] = here  # an operation that is there twice keeps its last place
        front = free[seen_at[free] == here]
    return depths


def uncircled(count: int, of: Ints, on: Ints, when: Ints) -> Flags:
    """Which of the waits of `count` operations are kept, if `of[i]` waits for `on[i]`: of waits in a circle, those
    against the order of `when` are left out."""
    from scipy import sparse  # seldom needed, and long to load
    from scipy.sparse import csgraph

    matrix = sparse.coo_matrix((np.ones(len(of), np.int8), (on, of)), shape=(count, count))
    _, part = csgraph.connected_components(matrix, directed=True, connection="strong")
    against = (when[on] > when[of]) | ((when[on] == when[of]) & (on >= of))
    kept: Flags = ~((part[of] == part[on]) & against)
    return kept
