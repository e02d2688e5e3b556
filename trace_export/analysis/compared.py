"""How ranks and links are compared: by their mean lengths, in groups that may have a cause in common.

The means come from sums of lengths, so that a graph and tables with a row for a rank and step give the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from trace_export.analysis.peers import Group, Items, Slow
from trace_export.ordering import rows_of
from trace_export.steps.graph import Floats, Ints

COARSE = {"replica": 0, "stage": 1, "host": 2, "lane": 3, "rank": 4}
COMES_AND_GOES = 1.5
"""By chance the noise of a few ranks is up to this many times that of the middle rank."""
UNSURE = 100
"""A standard error of one degree of freedom may be wrong by about this factor where a cause is sought by 3.5 of them,
one of n by its n-th root (Student's t distribution)."""
LINK_KINDS = ("replica", "stages", "hosts", "lanes", "ways", "lane", "ranks", "way", "link")


@dataclass(frozen=True)
class Sums:
    """The number of lengths in each row, their sum in nanoseconds, and the sum of their squares."""

    count: Floats
    ns: Floats
    squares: Floats

    @staticmethod
    def of(lengths: Floats) -> Sums:
        """A row for each length."""
        return Sums(np.ones(len(lengths)), lengths, lengths**2)

    @staticmethod
    def of_cells(shape: Sequence[int], *keys: Ints, lengths: Floats) -> Sums:
        """A table of this shape: the sums of the lengths whose `keys` are the place of each cell."""
        cell = np.ravel_multi_index(keys, shape)
        sums = Sums.of(lengths).by(cell, math.prod(shape))
        return Sums(*(part.reshape(shape) for part in (sums.count, sums.ns, sums.squares)))

    def only(self, which: tuple[Ints, ...]) -> Sums:
        """Some of the rows."""
        return Sums(self.count[which], self.ns[which], self.squares[which])

    def by(self, key: Ints, size: int) -> Sums:
        """The rows with the same `key`, a number below `size`, added up."""
        count, ns, squares = (
            np.bincount(key, part, size).astype(np.float64) for part in (self.count, self.ns, self.squares)
        )
        return Sums(count, ns, squares)

    @property
    def mean(self) -> Floats:
        """NaN where there is none."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.ns / self.count

    @property
    def residual(self) -> Floats:
        """The sum of the squared distances from the mean."""
        spread: Floats = np.maximum(self.squares - np.nan_to_num(self.mean) * self.ns, 0.0)
        return spread


class Compared:
    """The comparisons of `ranks` (`steps.recorded.Recorded.ranks`: rank, stage, replica, host; sorted by rank), which
    are called by their row."""

    def __init__(self, ranks: pl.DataFrame) -> None:
        self.ranks = ranks
        self.stage, self.replica = (ranks[c].to_numpy().astype(np.int64) for c in ("stage", "replica"))
        self.host = ranks["host"].to_list()

    def rows(self, rank: Ints) -> Ints:
        """The row of each rank; for no rank the number of rows."""
        return rows_of(self.ranks["rank"].to_numpy(), rank)

    def groups(self, there: Ints) -> list[Group]:
        """Replicas, stages, hosts, lanes of peers that work in step, ranks; items are numbers in `there` (rows)."""
        number = {int(row): n for n, row in enumerate(there)}
        keys: dict[tuple[str, object], list[int]] = {}
        for row in there.tolist():
            stage, replica, rank = int(self.stage[row]), int(self.replica[row]), int(self.ranks["rank"][row])
            of = {
                "replica": replica,
                "stage": stage,
                "host": self.host[row] or None,
                "lane": (stage, replica),
                "rank": rank,
            }
            for kind, name in of.items():
                if name is not None:
                    keys.setdefault((kind, name), []).append(number[row])
        ordered = sorted(keys.items(), key=lambda each: (COARSE[each[0][0]], str(each[0][1]).zfill(12)))
        groups = [Group(kind, str(name), np.array(items)) for (kind, name), items in ordered]
        return [g for g in groups if g.kind != "lane" or len(g.items) > 1]

    def place(self, slow: Slow, there: Ints) -> dict[str, object]:
        """Where it is, by all names that the same ranks have."""
        rows = there[slow.items]
        devices = self.ranks["device"][rows.tolist()]
        hosts = sorted({self.host[row] for row in rows.tolist()} - {""})
        return {
            "stage": int(self.stage[rows[0]]) if len(set(self.stage[rows].tolist())) == 1 else None,
            "replica": int(self.replica[rows[0]]) if len(set(self.replica[rows].tolist())) == 1 else None,
            "ranks": sorted(self.ranks["rank"][rows.tolist()].to_list()), "hosts": hosts,
            "device": devices[0] if len(devices) == 1 else None,
        }  # fmt: skip

    def work(self, row: Ints, step: Ints, unit: Ints, sums: Sums, *, unequal: bool = False) -> tuple[Items, Ints]:
        """The work of each rank over that of its peers, each `unit` (a kind and chunk of blocks) weighted by its time;
        and the rows of the ranks that have work. `sums`: of the lengths of blocks in a row, step and unit. A step that
        is slow on all ranks, as the first ones are, says nothing of one of them, and is made as long as the others.
        `unequal`: whether micro-batches are unequal, so that all ranks of a replica vary together."""
        common = of_steps(row, step, unit, sums)[step]
        sums = Sums(sums.count, sums.ns / common, sums.squares / common**2)
        shape = len(self.ranks), int(unit.max(initial=-1)) + 1
        cell = row * shape[1] + unit
        of_unit = sums.by(cell, shape[0] * shape[1])
        mean = of_unit.mean.reshape(shape)
        units = (~np.isnan(mean)).any(axis=0)
        usual = np.zeros(shape[1])
        usual[units] = np.nanmedian(mean[:, units], axis=0)
        steps = int(step.max(initial=-1)) + 1
        took, ought = (
            np.bincount(row * steps + step, w, shape[0] * steps).reshape(shape[0], steps)
            for w in (sums.ns, usual[unit] * sums.count)
        )
        there = np.flatnonzero((ought > 0).any(axis=1))
        ratio = np.where(ought > 0, took / np.where(ought > 0, ought, 1), np.nan)[there]
        value = np.nanmean(ratio, axis=1) if len(there) else np.empty(0)
        residual = of_unit.residual.reshape(shape).sum(axis=1)[there]
        noise = np.sqrt(residual) / ought.sum(axis=1)[there]
        several = (~np.isnan(ratio)).sum(axis=1)
        with np.errstate(invalid="ignore"):
            scatter = np.nanstd(ratio, axis=1) * np.sqrt(1 / np.maximum(several - 1, 1)) if len(there) else value
        noise = np.where(several > 2, np.maximum(noise, scatter), noise)
        chance = self.replica[there] if unequal else None
        return Items(value, as_of_peers(noise), self.stage[there], chance=chance), there

    def link_alike(self, links: Ints) -> Ints:
        """A number for each of `links` (source, target and kind; one a column): peers are of one direction between the
        same stages."""
        ends = [self.rows(end) for end in links[:2]]
        keys = np.stack([links[2], self.stage[ends[0]], self.stage[ends[1]]])
        return np.unique(keys, axis=1, return_inverse=True)[1].reshape(-1)

    def link_groups(self, links: Ints) -> list[Group]:
        """The groups of `links` (source, target and kind; one a column), whose items are their columns."""
        ends = [self.rows(end) for end in links[:2]]
        names: dict[tuple[int, tuple[object, ...]], list[int]] = {}
        for n, (src, dst, kind) in enumerate(links.T.tolist()):
            a, b = int(ends[0][n]), int(ends[1][n])
            stages, hosts = sorted((int(self.stage[a]), int(self.stage[b]))), sorted((self.host[a], self.host[b]))
            lane = int(self.replica[a]), int(self.stage[a]), int(self.stage[b])
            of = (
                (lane[0],), tuple(stages), tuple(hosts), (lane[0], *stages), lane, (*lane, kind),
                tuple(sorted((src, dst))), (src, dst), (src, dst, kind),
            )  # fmt: skip
            for coarse, name in enumerate(of):
                names.setdefault((coarse, name), []).append(n)
        ordered = sorted(names.items(), key=lambda each: (each[0][0], str(each[0][1])))
        return [Group(LINK_KINDS[coarse], str(name), np.array(items)) for (coarse, name), items in ordered]

    def link_place(self, links: Ints, kinds: Sequence[str]) -> dict[str, object]:
        """Where links (source, target and number of `kinds`) are. If all are between the same two stages of a replica,
        as the links of tensor-parallel peers, which work in step, it is the ends of the first."""
        src, dst = links[0].tolist(), links[1].tolist()
        between = sorted({*src, *dst})
        directions = {kinds[int(kind)][-1] for kind in links[2]}
        at = self.rows(np.array(between))
        replicas, stages = {int(self.replica[a]) for a in at}, {int(self.stage[a]) for a in at}
        one = len(replicas) == 1 and len(stages) == 2
        return {
            "src_rank": src[0] if one else None, "dst_rank": dst[0] if one else None,
            "direction": directions.pop() if len(directions) == 1 else None, "ranks": between,
            "hosts": sorted({self.host[a] for a in at} - {""}),
            "replica": replicas.pop() if len(replicas) == 1 else None,
        }  # fmt: skip


def of_steps(row: Ints, step: Ints, unit: Ints, sums: Sums) -> Floats:
    """The length of the middle rank's blocks in each step, by that in all steps."""
    units, steps = int(unit.max(initial=-1)) + 1, int(step.max(initial=-1)) + 1
    expected = sums.by(row * units + unit, (int(row.max(initial=-1)) + 1) * units).mean[row * units + unit] * sums.count
    shape = int(row.max(initial=-1)) + 1, steps
    took, ought = (np.bincount(row * steps + step, w, shape[0] * steps).reshape(shape) for w in (sums.ns, expected))
    factor = np.ones(steps)
    there = ought > 0
    ratio = np.where(there, took / np.where(there, ought, 1.0), np.nan)
    known = np.flatnonzero(there.any(axis=0))
    in_order, count = np.sort(ratio[:, known], axis=0), there[:, known].sum(axis=0)  # what is not there comes last
    low, high = (in_order[middle, np.arange(len(known))] for middle in ((count - 1) // 2, count // 2))
    factor[known] = np.clip(1.0, low, high)  # if half of the ranks change, the others tell
    return np.where(factor > 0, factor, 1.0)


def as_of_peers(noise: Floats) -> Floats:
    """Standard errors of items, none much above that of the middle item: if one varies more than the others, that is
    not chance, but a cause that comes and goes."""
    finite = np.sort(noise[np.isfinite(noise)])
    middle = finite[(len(finite) - 1) // 2] if len(finite) else np.inf
    limited: Floats = np.minimum(noise, COMES_AND_GOES * middle)
    return limited


def mean_lengths(key: Ints, sums: Sums, alike: Ints) -> Items:
    """Items by their mean length; `key`: the item of each row of `sums`."""
    each = sums.by(key, len(alike))
    count = np.maximum(each.count, 1)
    variance = each.residual / np.maximum(each.count - 1, 1)
    mean, free = np.nan_to_num(each.mean), np.maximum(each.count - 1, 0).sum()
    few = _spread_of_others(mean)
    if free:  # what all of them differ by in themselves; of few differences the chance is uncertain
        few = np.minimum(few, np.sqrt(each.residual.sum() / free / count) * UNSURE ** (1 / free))
    noise = np.where(each.count > 2, np.sqrt(variance / count), few)
    return Items(mean, noise, alike, nested=False)


def _spread_of_others(mean: Floats) -> Floats:
    """The spread of all values but the largest, if they are several: one of a few lengths may differ by this much."""
    others = np.sort(mean)[:-1]
    return np.full(len(mean), np.ptp(others) if len(others) > 1 else np.inf)
