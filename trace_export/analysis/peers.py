"""What is slower than its peers: one search for ranks, links, collectives and late starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LEAST = 0.01
"""The least excess over the peers, as a share of theirs."""
SIGMAS = 3.5
"""And in standard errors: of 200 simulated runs without a cause none is named."""
DEVIATIONS = 6.0
"""And in median absolute deviations of the other groups of its kind, where there are at least `ENOUGH`."""
ENOUGH = 4
FIFTH = 0.2
"""A group is as slow as four fifths of its members."""
APART = 4.0
"""Two peers that differ by so many standard errors: the faster one says how fast the other could be."""
MOST = 6
"""Causes of a kind."""
MEDIAN_ERROR = 1.57
"""The variance of a median by that of a mean."""


@dataclass(frozen=True)
class Group:
    """Items that may have a cause in common: `kind`, such as stage, and the numbers of the `items`."""

    kind: str
    name: str
    items: Ints


@dataclass(frozen=True)
class Items:
    """What is compared: the `mean` of each item and its standard error `noise`. Items with the same number in `alike`
    are proper peers of each other. `relative`: whether an excess is a share of the peers' value; `least`: the least
    that counts."""

    mean: Floats
    noise: Floats
    alike: Ints
    relative: bool = True
    least: float = LEAST


@dataclass(frozen=True)
class Slow:
    """The `groups` of these `items` (all with the same items, the coarsest first) are slower than their peers by
    `excess`, which is `sigmas` standard errors. `base`: the peers' value of each item."""

    groups: tuple[Group, ...]
    items: Ints
    base: Floats
    excess: float
    sigmas: float


def slow_groups(items: Items, groups: Sequence[Group]) -> list[Slow]:
    """The groups that explain what is slow, the one that explains most first; `groups` from coarse to fine.

    The group with the largest sum of excess is taken, the coarser of two with the same; its excess is taken away, and
    what is left is looked at again.
    """
    mean, found = items.mean.copy(), []
    sets: dict[tuple[int, ...], list[Group]] = {}
    for group in groups:
        if 0 < len(group.items) < len(mean):
            sets.setdefault(tuple(sorted(group.items.tolist())), []).append(group)
    for _ in range(MOST if len(mean) > 1 else 0):
        best = _best(items, mean, sets)
        if best is None:
            break
        slow, others = best
        del sets[tuple(sorted(slow.items.tolist()))]
        if len(others) >= ENOUGH:
            middle = np.median(others)
            if slow.excess - middle < DEVIATIONS * 1.4826 * np.median(np.abs(others - middle)):
                continue  # its peers differ as much
        found.append(slow)
        mean[slow.items] = np.minimum(mean[slow.items], slow.base)
    return found


def _best(items: Items, mean: Floats, sets: dict[tuple[int, ...], list[Group]]) -> tuple[Slow, Floats] | None:
    """The group that explains most, and the excess of the others of its kind; None where none counts."""
    best, score, rated = None, 0.0, dict[str, list[float]]()
    for slow, average in _rated(items, mean, sets):
        kind = slow.groups[0].kind
        rated.setdefault(kind, []).append(average)
        if slow.excess > items.least and slow.sigmas > SIGMAS and slow.excess * len(slow.items) > 1.0001 * score:
            best, score = slow, slow.excess * len(slow.items)
    return None if best is None else (best, np.sort(rated[best.groups[0].kind])[:-1])


def _rated(items: Items, mean: Floats, sets: dict[tuple[int, ...], list[Group]]) -> Iterator[tuple[Slow, float]]:
    """Each group with its excess, 0 where its members are not slow alike; and the mean excess of its members."""
    alone = _beside_others(items, mean)
    for key, groups in sets.items():
        members = np.array(key, np.int64)
        if len(members) == 1:
            base, error = alone[0][members], alone[1][members]
        else:
            base, error = _beside(items, mean, members)
        scale = np.where(base > 0, base, np.nan) if items.relative else np.ones(len(members))
        excess = np.where(np.isnan(scale), 0.0, (mean[members] - base) / scale)
        own, theirs = (np.where(np.isnan(scale), 1.0, wrong / scale) for wrong in (items.noise[members], error))
        shared, wrong = float(excess.mean()), float(np.sqrt((own**2).sum() / len(members) ** 2 + (theirs**2).max()))
        average = shared
        least = np.sort(excess)[int(FIFTH * len(members))]
        if least < shared / 2 or (len(members) == 2 and least < SIGMAS * np.hypot(own, theirs)[excess.argmin()]):
            shared = 0.0
        yield Slow(tuple(groups), members, base, shared, shared / max(wrong, 1e-12)), average


def _beside(items: Items, mean: Floats, members: Ints) -> tuple[Floats, Floats]:
    """The peers' value for each member of a group, and its standard error. Peers are the items outside that are alike;
    where there is none, all items outside."""
    outside = np.ones(len(mean), np.bool_)
    outside[members] = False
    base, error = np.empty((2, len(members)))
    for sort in np.unique(items.alike[members]):
        near = outside & (items.alike == sort)
        near = near if near.any() else outside
        values = np.sort(mean[near])
        wrong = float(np.sqrt(MEDIAN_ERROR * np.mean(items.noise[near] ** 2) / len(values)))
        middle = values[0] if len(values) == 2 and values[1] - values[0] > APART * wrong else np.median(values)
        chosen = items.alike[members] == sort
        base[chosen], error[chosen] = middle, wrong
    return base, error


def _beside_others(items: Items, mean: Floats) -> tuple[Floats, Floats]:
    """`_beside` of every item as a group of its own."""
    base, error = np.empty((2, len(mean)))
    _, sort, sizes = np.unique(items.alike, return_inverse=True, return_counts=True)
    for number, size in enumerate(sizes.tolist()):
        members = np.flatnonzero(sort == number)
        if size < 4:  # few: with rules of their own
            for i in members:
                base[[i]], error[[i]] = _beside(items, mean, np.array([i]))
            continue
        order = members[np.argsort(mean[members], kind="stable")]
        values, place = mean[order], np.arange(size)
        low, high = (size - 2) // 2, (size - 1) // 2  # the places of the middle, with the item itself left out
        middle = (values[low + (low >= place)] + values[high + (high >= place)]) / 2
        noise = items.noise[order]
        squares, unknown = np.where(np.isinf(noise), 0.0, noise) ** 2, np.isinf(noise)
        known = unknown.sum() - unknown == 0
        base[order] = middle
        error[order] = np.where(known, np.sqrt(MEDIAN_ERROR * (squares.sum() - squares).clip(0)) / (size - 1), np.inf)
    return base, error
