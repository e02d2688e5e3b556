"""One search for everything that is slower than its peers: ranks, links, collectives and late starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trace_export.steps.graph import Flags, Floats, Ints
from trace_export.tolerances import FIFTH

LEAST = 0.01
"""The least excess over the peers, as a share of theirs."""
SIGMAS = 3.5
"""The least excess in standard errors: in 200 simulated runs without a cause none is named."""
DEVIATIONS = 6.0
"""The least excess in median absolute deviations of the other groups of its kind, if there are at least `ENOUGH`."""
ENOUGH = 4
MINOR = 0.25
"""A smaller share of the peers hardly changes their median."""
MOST = 6
"""At most this many causes of a kind."""
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
    that counts. `nested`: whether an item may have a cause of its own inside of a group that has one. `chance`: items
    with the same number vary by the same chance, so that several of them are no surer than one; None if all are
    independent."""

    mean: Floats
    noise: Floats
    alike: Ints
    relative: bool = True
    least: float = LEAST
    nested: bool = True
    chance: Ints | None = None


@dataclass(frozen=True)
class Slow:
    """The `groups` of these `items` (all with the same items, the coarsest first) are slower than their peers by
    `excess`, which is `sigmas` standard errors. `base`: the value of each item without the excess: its peers' value,
    or, if the item is slower than the rest of its group, what would be left. `alone`: the numbers of these slower
    items."""

    groups: tuple[Group, ...]
    items: Ints
    base: Floats
    excess: float
    sigmas: float
    alone: Flags


def slow_groups(items: Items, groups: Sequence[Group], most: int = MOST) -> list[Slow]:
    """The `most` groups that explain what is slow, the one that explains most first; `groups` from coarse to fine.

    The group with the largest sum of excess is taken, the coarser of two with the same; its excess is taken away, and
    what is left is looked at again.
    """
    mean, slow_ones = items.mean.copy(), []
    sets: dict[tuple[int, ...], list[Group]] = {}
    for group in groups:
        if 0 < len(group.items) < len(mean):
            sets.setdefault(tuple(sorted(group.items.tolist())), []).append(group)
    looked_at = set[tuple[int, ...]]()
    for _ in range(most if len(mean) > 1 else 0):
        best = _best(items, mean, sets, looked_at)
        if best is None:
            break
        looked_at.add(tuple(best.items.tolist()))
        without = mean.copy()
        without[best.items] = np.minimum(mean[best.items], best.base)
        others = _others(items, without, sets, best)
        if len(others) >= ENOUGH:
            middle = np.median(others)
            if best.excess - middle < DEVIATIONS * 1.4826 * np.median(np.abs(others - middle)):
                continue  # its peers differ as much
        slow_ones.append(best)
        mean = without
    return slow_ones


def _others(items: Items, without: Floats, sets: dict[tuple[int, ...], list[Group]], best: Slow) -> Floats:
    """The excess of the other groups of the kind of the `best`, `without` its own, which they would have for a peer."""
    kind, its_items = best.groups[0].kind, tuple(best.items.tolist())
    alike = {key: groups for key, groups in sets.items() if groups[0].kind == kind and key != its_items}
    return np.array([average for average, _ in _rated(items, without, alike)])


def _best(
    items: Items, mean: Floats, sets: dict[tuple[int, ...], list[Group]], looked_at: set[tuple[int, ...]]
) -> Slow | None:
    """The group not `looked_at` that explains most; None if none counts."""
    best, score = None, 0.0
    for _, slow in _rated(items, mean, sets):
        if slow is None or slow.excess <= items.least or slow.sigmas <= SIGMAS:
            continue
        if tuple(slow.items.tolist()) in looked_at:
            continue
        if slow.excess * len(slow.items) > 1.0001 * score:
            best, score = slow, slow.excess * len(slow.items)
    return best


def _rated(items: Items, mean: Floats, sets: dict[tuple[int, ...], list[Group]]) -> Iterator[tuple[float, Slow | None]]:
    """The mean excess of the members of each group, and itself where it may be slow."""
    base, error = _peers_of_each(items, mean)
    alone = _excess(items, mean, base).tolist()
    _, sort, sizes = np.unique(items.alike, return_inverse=True, return_counts=True)
    for key, groups in sets.items():
        members = np.array(key, np.int64)
        quick = alone[key[0]] if len(key) == 1 else sum(alone[n] for n in key) / len(key)
        few = len(key) == 1 or (np.bincount(sort[members], minlength=len(sizes)) <= MINOR * sizes).all()
        if few and quick <= items.least / 2:  # its members hardly change the median of their peers
            yield quick, None
            continue
        of_peers = (base[members], error[members]) if len(key) == 1 else _peers_of_group(items, mean, members)
        slow, average = _slow(items, mean, members, *of_peers, tuple(groups))
        yield average, slow


def _excess(items: Items, mean: Floats, base: Floats) -> Floats:
    """By how much each item is above its base; 0 if a share of the base has no meaning."""
    if not items.relative:
        return mean - base
    excess: Floats = np.where(base > 0, mean / np.where(base > 0, base, 1.0) - 1, 0.0)
    return excess


def _slow(
    items: Items, mean: Floats, members: Ints, base: Floats, error: Floats, groups: tuple[Group, ...]
) -> tuple[Slow, float]:
    """A group with its excess, 0 where its members are not slow alike; and the mean excess of its members."""
    excess = _excess(items, mean[members], base)
    scale = np.where(base > 0, base, 1.0) if items.relative else np.ones(len(members))
    unknown = (base <= 0) & items.relative
    errors, theirs = (np.where(unknown, 1.0, wrong / scale) for wrong in (items.noise[members], error))
    alone = _outliers(excess, errors, items.least if items.nested else np.inf)
    common = excess[~alone]
    average = float(common.mean())
    chances = np.arange(len(common)) if items.chance is None else items.chance[members[~alone]]
    by_chance = np.bincount(chances, errors[~alone])
    wrong = float(np.sqrt((by_chance**2).sum() / len(common) ** 2 + (theirs**2).max()))
    least = np.sort(excess)[int(FIFTH * len(members))]
    shared = 0.0 if least < average / 2 else average
    left = mean[members] / (1 + shared) if items.relative else mean[members] - shared
    return Slow(groups, members, np.where(alone, left, base), shared, shared / max(wrong, 1e-12), alone), average


def _outliers(excess: Floats, noise: Floats, least: float) -> Flags:
    """The members of a group that are slower than the rest of it: beside what the group has in common they have a
    cause of their own. Of two members that differ it is the slower one."""
    if len(excess) < 2:
        return np.zeros(len(excess), np.bool_)
    middle = np.sort(excess)[(len(excess) - 1) // 2]
    error = np.hypot(noise, np.median(noise))
    slower: Flags = excess - middle > np.maximum(least, SIGMAS * error)
    return slower


def _peers_of_group(items: Items, mean: Floats, members: Ints) -> tuple[Floats, Floats]:
    """The peers' value for each member of a group, and its standard error. Peers are the items outside that are alike;
    where there is none, all items outside."""
    outside = np.ones(len(mean), np.bool_)
    outside[members] = False
    base, error = np.empty((2, len(members)))
    for sort in sorted(set(items.alike[members].tolist())):
        near = outside & (items.alike == sort)
        near = near if near.any() else outside
        values = mean[near]
        several = len(values) if items.chance is None else len(np.unique(items.chance[near]))
        wrong = float(np.sqrt(MEDIAN_ERROR * np.mean(items.noise[near] ** 2) / several))
        chosen = items.alike[members] == sort
        base[chosen], error[chosen] = np.median(values), wrong
    return base, error


def _peers_of_each(items: Items, mean: Floats) -> tuple[Floats, Floats]:
    """`_peers_of_group` of every item as a group of its own."""
    base, error = np.empty((2, len(mean)))
    _, sort, sizes = np.unique(items.alike, return_inverse=True, return_counts=True)
    for number, size in enumerate(sizes.tolist()):
        members = np.flatnonzero(sort == number)
        if size < 2 or items.chance is not None:  # with rules of their own
            for i in members:
                base[[i]], error[[i]] = _peers_of_group(items, mean, np.array([i]))
            continue
        order = members[np.argsort(mean[members], kind="stable")]
        values, index = mean[order], np.arange(size)
        low, high = (size - 2) // 2, (size - 1) // 2  # the places of the middle, with the item itself left out
        middle = (values[low + (low >= index)] + values[high + (high >= index)]) / 2
        noise = items.noise[order]
        squares, unknown = np.where(np.isinf(noise), 0.0, noise) ** 2, np.isinf(noise)
        certain = unknown.sum() - unknown == 0
        base[order] = middle
        error[order] = np.where(certain, np.sqrt(MEDIAN_ERROR * (squares.sum() - squares).clip(0)) / (size - 1), np.inf)
    return base, error
