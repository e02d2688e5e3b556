"""What is slower than its peers, worked out by hand."""

import numpy as np
import pytest

from trace_export.analysis.compared import Sums, mean_lengths
from trace_export.analysis.peers import Group, Items, slow_groups

STAGES = np.array([0, 0, 1, 1, 2, 2, 3, 3])
"""Eight ranks, two of each stage; replica n has the ranks of its parity."""


def groups() -> list[Group]:
    replicas = [Group("replica", str(n), np.arange(n, 8, 2)) for n in range(2)]
    stages = [Group("stage", str(n), np.array([2 * n, 2 * n + 1])) for n in range(4)]
    return [*replicas, *stages, *(Group("rank", str(n), np.array([n])) for n in range(8))]


def named(mean: list[float], noise: float = 0.001, alike: np.ndarray = STAGES) -> list[tuple[str, float]]:
    result = slow_groups(Items(np.array(mean), np.full(8, noise), alike), groups())
    return [(f"{slow.groups[0].kind} {slow.groups[0].name}", round(slow.excess, 6)) for slow in result]


@pytest.mark.parametrize(
    ("slow", "expected"),
    [
        ([], []),
        ([3], [("rank 3", 0.3)]),
        ([2, 3], [("stage 1", 0.3)]),
        ([1, 3, 5, 7], [("replica 1", 0.3)]),
        ([2, 3, 7], [("stage 1", 0.3), ("rank 7", 0.3)]),
    ],
)
def test_the_coarsest_group_that_explains_its_members(slow: list[int], expected: list[tuple[str, float]]) -> None:
    mean = [1.3 if n in slow else 1.0 for n in range(8)]
    assert named(mean) == expected


def test_what_may_be_chance_is_not_named() -> None:
    """4 % with a noise of 2 % each: 0.04 / √(0.02² + 1.57 · 0.02²) = 1.2 standard errors, less than 3.5."""
    assert named([1.04, *[1.0] * 7], noise=0.02) == []


def test_the_spread_of_the_others_is_that_without_what_is_slow() -> None:
    """Of three peers the slow one draws the median of the other two away from each of them: 1.0 by (1.0 + 1.4) / 2 is
    0.17 less."""
    items = Items(np.array([1.4, 1.0, 0.99, 1.01, 1.03, 0.98]), np.full(6, 0.01), np.array([0, 0, 0, 1, 1, 1]))
    ranks = [Group("rank", str(n), np.array([n])) for n in range(6)]
    assert [slow.items.tolist() for slow in slow_groups(items, ranks)] == [[0]]


@pytest.mark.parametrize(
    ("lengths", "long"), [((2.0, 2.1, 2.2, 30.0), True), ((2.0, 6.0, 10.0, 14.0), False), ((2.0, 30.0), False)]
)
def test_of_single_lengths_the_others_tell_what_is_chance(lengths: tuple[float, ...], long: bool) -> None:
    """One collective of each stage was recorded: of two nothing tells, of four the spread of the other three."""
    count = len(lengths)
    items = mean_lengths(np.arange(count), Sums.of(np.array(lengths)), np.zeros(count, np.int64))
    groups = [Group("stage", str(n), np.array([n])) for n in range(count)]
    assert [slow.items.tolist() for slow in slow_groups(items, groups)] == ([[count - 1]] if long else [])


@pytest.mark.parametrize(
    ("apart", "long"), [(0.02, [6, 7]), (4.0, [])], ids=["each group twice alike", "each group as far apart"]
)
def test_of_two_lengths_each_all_tell_together_what_is_chance(apart: float, long: list[int]) -> None:
    """Collectives of two steps, two of each stage, those of the last stage 9 ms instead of 6."""
    first = np.array([6.0, 6.01, 6.0, 5.99, 6.02, 6.0, 9.0, 9.01])
    items = mean_lengths(np.repeat(np.arange(8), 2), Sums.of((first[:, None] + [0, apart]).ravel()), STAGES * 0)
    assert [slow.items.tolist() for slow in slow_groups(items, groups())] == ([long] if long else [])
