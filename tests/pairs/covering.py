"""Rows in which every two values of different factors come together at least once."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

Row = dict[str, Any]
TRIES = 12
"""Rows drawn for the next one; that with the most new pairs is taken."""


def covering(factors: Mapping[str, Sequence[Any]], seed: int, fits: Callable[[Row], bool]) -> Iterator[Row]:
    """All-pairs rows over `factors` (name → values), only such that `fits`.

    Pairs that no fitting row can have are left out: a pair is given up when rows drawn around it never fit.
    """
    draw = random.Random(seed)
    names = list(factors)
    left = {
        ((a, i), (b, j))
        for a, b in combinations(names, 2)
        for i in range(len(factors[a]))
        for j in range(len(factors[b]))
    }
    while left:
        pair = min(left)
        rows_around = [row for _ in range(TRIES) if (row := _row(factors, dict(pair), draw, fits))]
        if not rows_around:
            left.discard(pair)
            continue
        best = max(rows_around, key=lambda row: len(left & _pairs(names, row)))
        left -= _pairs(names, best)
        yield {name: factors[name][index] for name, index in best.items()}


def _row(
    factors: Mapping[str, Sequence[Any]], fixed: dict[str, int], draw: random.Random, fits: Callable[[Row], bool]
) -> dict[str, int] | None:
    """Indexes of values by chance with the `fixed` ones, or None where none of some draws fits."""
    for _ in range(TRIES * 4):
        row = {name: fixed.get(name, draw.randrange(len(values))) for name, values in factors.items()}
        if fits({name: factors[name][index] for name, index in row.items()}):
            return row
    return None


def _pairs(names: Sequence[str], row: Mapping[str, int]) -> set[tuple[tuple[str, int], tuple[str, int]]]:
    return {((a, row[a]), (b, row[b])) for a, b in combinations(names, 2)}
