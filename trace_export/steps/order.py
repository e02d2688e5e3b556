"""The order of the operations of a measured graph: levels whose operations wait only for those of earlier levels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from trace_export.ordering import rows_by

Ints = npt.NDArray[np.integer[Any]]
Flags = npt.NDArray[np.bool_]


FEW = 8
"""A barrier waits for a thousand ranks: as many turns would take longer than all others."""


@dataclass(frozen=True)
class Levels:
    """`order`: the operations, level by level, in a level those with most waits first. `bounds`: where in `order` each
    level begins, and the end. `turns`: the bounds of each level's waits: first the first wait of each of its operations
    in their order, then the second wait of those that have one, and so on. If one of them has more than `FEW`, all are
    one turn, operation by operation, and `begins` says where in it those of each operation begin; else that is None."""

    order: Ints
    bounds: Ints
    turns: tuple[tuple[tuple[int, int], ...], ...]
    begins: tuple[Ints | None, ...]


def levels(count: int, of: Ints, on: Ints) -> tuple[Levels, Ints] | None:
    """The levels of `count` operations, if `of[i]` waits for `on[i]`, and the waits in the order of `turns`; None if
    some wait in a circle. O(waits) and a few calls of numpy a level."""
    waits = np.bincount(of, minlength=count)
    fronts = [front[np.argsort(-waits[front], kind="stable")] for front in _fronts(waits, of, on)]
    order = np.concatenate([np.empty(0, np.int32), *fronts])
    if len(order) < count:
        return None
    bounds = np.cumsum([0, *map(len, fronts)])
    position = np.empty(count, np.int32)
    position[order] = np.arange(count, dtype=np.int32)
    by_position = rows_by(position[of])
    first = np.concatenate([[0], np.cumsum(waits[order])])
    rows, turns, begins, at = np.empty(len(of), np.int32), [], [], 0
    for low, high in pairwise(bounds.tolist()):
        sizes, of_level = waits[order[low:high]], []
        joint = first[low:high] - at if sizes[0] > FEW else None
        for k in range(int(sizes[0])) if joint is None else ():
            begin, many = at, int((sizes > k).sum())
            at += many
            rows[begin:at] = by_position[first[low : low + many] + k]
            of_level.append((begin, at))
        if joint is not None:
            begin, at = at, int(first[high])
            rows[begin:at] = by_position[begin:at]
            of_level.append((begin, at))
        turns.append(tuple(of_level))
        begins.append(joint)
    return Levels(order, bounds, tuple(turns), tuple(begins)), rows


def _fronts(waits: Ints, of: Ints, on: Ints) -> Iterator[Ints]:
    """The operations of each level; those that wait in a circle are in none. `waits`: how many each operation has."""
    missing, count = waits.astype(np.int32), len(waits)
    followers, first = (
        of[rows_by(on)],
        np.concatenate([[0], np.cumsum(np.bincount(on, minlength=count))]),
    )
    front, seen_at = np.flatnonzero(missing == 0), np.empty(count, np.int32)
    while len(front):
        yield front.astype(np.int32)
        sizes = first[front + 1] - first[front]
        ends = np.cumsum(sizes)
        at = np.arange(ends[-1]) + np.repeat(first[front + 1] - ends, sizes)
        reached = followers[at].astype(np.intp)
        np.subtract.at(missing, reached, np.ones(len(reached), np.int32))  # not a number: three times as fast
        free = reached[missing[reached] == 0]
        here = np.arange(len(free), dtype=np.int32)
        seen_at[free] = here  # an operation that is there twice keeps its last place
        front = free[seen_at[free] == here]


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
