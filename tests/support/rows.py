"""The rows of parametrized tests and the examples of properties: those of every run, and those with `--slow`."""

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest
from hypothesis import settings


def seeds(fast: int, count: int) -> list[Any]:
    """The numbers below `count`; from `fast` on they are slow."""
    return [_row((n,), fast=n < fast) for n in range(count)]


def crossed(*factors: Iterable[object], every: int = 1) -> list[Any]:
    """All combinations of the values of the factors. In every run are as many as the longest factor has values: each
    value of each factor in one of them at least, the others are slow. `every`: only that many-th of these."""
    values = [list(factor) for factor in factors]
    sizes = [len(each) for each in values]
    fast = {tuple((n + k * (n // size)) % size for k, size in enumerate(sizes)) for n in range(0, max(sizes), every)}
    return [
        _row([each[i] for each, i in zip(values, index, strict=True)], fast=index in fast)
        for index in product(*map(range, sizes))
    ]


def examples(count: int) -> settings:
    """For a property: so many examples in every run, always the same; ten times as many new ones with `--slow`."""
    return settings(max_examples=count if settings().derandomize else 10 * count)


def slow(values: Iterable[object]) -> list[Any]:
    """The values, or tuples of some for several parameters; none of them is in every run."""
    return [_row(value if isinstance(value, tuple) else [value], fast=False) for value in values]


def _row(values: Iterable[object], *, fast: bool) -> Any:
    return pytest.param(*values, marks=[] if fast else [pytest.mark.slow])
