"""Possible causes of slow steps: the searches of `peers`, and for each cause the scenario whose difference to the usual
one is its gain."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from trace_export.analysis.compared import Compared, Sums, as_of_peers, mean_lengths, of_steps
from trace_export.analysis.peers import Group, Items, Slow, slow_groups
from trace_export.analysis.spread import Spread
from trace_export.analysis.typical import ALIKE, Typical
from trace_export.memory import give_back
from trace_export.ordering import distinct
from trace_export.steps.graph import COLLECTIVE, OPTIMIZER, POINT, TRANSFER, WORK, Flags, Floats, Ints, needs_transfer
from trace_export.steps.replay import Change, Scenario, Windows


@dataclass(frozen=True)
class Candidate:
    """A cause before its gain is known. `code` says what is slow or late; `place` where, by the columns of
    `explanation.CAUSES`. `changes`: how the usual step changes without the cause, or if it is `late`, with it; of
    causes that hide one another there are several. `even`: how it changes with the surplus of a slow stage spread over
    all. `excess`: nanoseconds of a step if it is late, else a share of its peers."""

    code: str
    place: dict[str, object]
    excess: float
    sigmas: float | None
    changes: tuple[Change, ...]
    even: Change | None = None

    @property
    def late(self) -> bool:
        return all(change.late for change in self.changes)


def scenario(typical: Typical, candidates: Sequence[Candidate], gone: Collection[int] = ()) -> Scenario:
    """A run with all causes but those `gone`, by their numbers among the `candidates`: without a late start all others
    are left, because they may hold a step as long. Other delays are no longer than usual, because operations may wait
    for something that nobody recorded."""
    length, delay = typical.length.copy(), typical.usual_delay.copy()
    for n, each in enumerate(candidates):
        for change in each.changes:
            if n in gone and not change.late:
                length[change.rows] *= change.values / np.maximum(typical.length[change.rows], 1.0)
            elif n not in gone and change.late:
                delay[change.rows] += change.costs(typical.usual)
    return length, delay


class Candidates:
    """The searches over one graph."""

    def __init__(self, typical: Typical, windows: Windows, step_ns: float) -> None:
        self.typical, self.graph, self.windows, self.step_ns = typical, typical.graph, windows, step_ns
        self.ranks = self.graph.recorded.ranks
        self.compared = Compared(self.ranks)
        self.number = {rank: n for n, rank in enumerate(self.ranks["rank"].to_list())}
        row = np.minimum(self.compared.rows(self.graph.rank), len(self.ranks) - 1)
        self.row = np.where(self.graph.sort != POINT, row, -1)
        self.stage, self.replica, self.host = self.compared.stage, self.compared.replica, self.compared.host
        self.usual = self.typical.usual
        give_back()

    @cached_property
    def means(self) -> Floats:
        """Rank × unit: the mean `work` of a rank's blocks of one kind and chunk; NaN where it has none."""
        typical, blocks = self.typical, np.flatnonzero(self.typical.is_block)
        shape = len(self.ranks), int(typical.unit.max(initial=-1)) + 1
        return Sums.of_cells(shape, self.row[blocks], typical.unit[blocks], lengths=typical.work[blocks]).mean

    def all(self) -> list[Candidate]:
        """Every candidate."""
        slow = list(self.slow_ranks((WORK,)))
        excess = {str(each.place["ranks"]): each.excess for each in slow}
        give_back()
        optimizers = [
            c for c in self.slow_ranks((OPTIMIZER,)) if c.excess > APART * excess.get(str(c.place["ranks"]), 0)
        ]
        candidates = [
            *slow,
            *optimizers,
            *self.slow_links(),
            *self.slow_collectives(),
            *self.late(),
            *self.microbatches(slow),
        ]
        return candidates

    def _kind(self, slow: Slow) -> str:
        """The name of a group. If ranks of the run are not here, a few of a stage, replica or host do not stand for all
        of it."""
        recorded, kind, count = self.graph.recorded, slow.groups[0].kind, len(slow.items)
        names = {group.kind for group in slow.groups} & {"stage", "replica", "host"}
        whole = kind == "stage" and count == recorded.stage_ranks
        return kind if not recorded.partial or whole or (len(names) == 1 and count > FEW_RANKS) else "rank"

    def _beyond_doubt(self, items: Items, slow: Slow) -> bool:
        """Whether a group is slow compared with others of its stages, or with most other stages if not all of them are
        here."""
        sorts, outside = set(items.alike[slow.items].tolist()), np.ones(len(items.mean), np.bool_)
        outside[slow.items] = False
        if _beside_peers(items, slow):
            return True
        quick = outside & (items.mean < items.mean[slow.items].min() / (1 + slow.excess / 2))
        return 2 * len(set(items.alike[quick].tolist()) - sorts) > self.graph.recorded.stages - 1 > 0

    def _members(self, slow: Slow, there: Ints, of: Flags) -> Ints:
        chosen = np.zeros(len(self.ranks) + 1, np.bool_)
        chosen[there[slow.items]] = True
        return np.flatnonzero(of & chosen[self.row])

    def slow_ranks(self, sorts: tuple[int, ...]) -> Iterator[Candidate]:
        """Slow blocks: the work of each rank over that of its peers, each kind weighted by its time."""
        typical, graph = self.typical, self.graph
        of = np.isin(graph.sort, sorts) & graph.counted
        rows = np.flatnonzero(of)
        if not len(rows):
            return
        work = sorts == (WORK,)
        keys = self.row[rows], graph.step[rows], typical.unit[rows]
        sums = Sums.of_cells([int(key.max()) + 1 for key in keys], *keys, lengths=typical.work[rows])
        row, step, unit = np.nonzero(sums.count)
        unequal = work and typical.correlation >= ALIKE
        cells = sums.only((row, step, unit))
        items, there = self.compared.work(row, step, unit, cells, unequal=unequal)
        del keys
        blocks = typical.is_block if work else of
        left, spread = self.means.copy(), None
        for slow in slow_groups(items, self.compared.groups(there)):
            if graph.recorded.incomplete and not self._beyond_doubt(items, slow):
                continue
            members = self._members(slow, there, blocks)
            place, kind = self.compared.place(slow, there), self._kind(slow)
            even = kind == "stage" and work
            if spread is None:
                common = of_steps(row, step, unit, cells)[graph.step[rows]]
                spread = Spread(rows, typical.work[rows], common, self.row[rows], typical.unit[rows], self.stage)
            changes = self._as_peers(slow, spread, members, there[slow.items], left, sorts, even=even)
            if (kind == "rank" and slow.groups[0].kind == "stage") or (
                kind == "host" and work and not _beside_peers(items, slow)
            ):
                place["unread"] = True
            one_group = len(slow.items) > 1 and place["stage"] is not None and place["replica"] is not None
            met = np.isin(self.row[typical.inner.row], there[slow.items]).any()  # which tells whom the others wait for
            place["undivided"] = (work and one_group and not met) or None
            code = f"slow-{'rank' if kind == 'lane' else kind}" if work else "slow-optimizer"
            yield Candidate(code, place, slow.excess, slow.sigmas, changes[:1], changes[1])

    def _as_peers(
        self,
        slow: Slow,
        spread: Spread,
        members: Ints,
        slow_ranks: Ints,
        means: Floats,
        sorts: tuple[int, ...],
        *,
        even: bool,
    ) -> tuple[Change, Change | None]:
        """Changes of lengths. In the first the members are scaled to the rank means of their peers, unit by unit, and
        differ from one another as these do (see `Spread`). In the second, if asked for, the surplus is spread `even`ly
        over all stages. `means` (rank × unit) are without the previous causes, so that their surplus is no gain of this
        one; they are changed to be without this one, too. `sorts`: those of the operations that are compared."""
        typical, outside = self.typical, np.ones(len(self.ranks), np.bool_)
        outside[slow_ranks] = False
        usual = np.full(means.shape, np.nan)
        for stage in np.unique(self.stage[slow_ranks]):
            peers, near = _middle(means[outside & (self.stage == stage)]), _middle(means[outside])
            usual[slow_ranks[self.stage[slow_ranks] == stage]] = np.where(np.isnan(peers), near, peers)
        left = np.where(np.isnan(usual), means, usual)
        left[slow_ranks[slow.alone]] = means[slow_ranks[slow.alone]] / (1 + slow.excess)
        with np.errstate(invalid="ignore"):
            factor = np.nan_to_num(left / np.maximum(means, 1.0), nan=1.0)
        lengths = typical.work.copy()
        faster = factor[self.row[members], typical.unit[members]]
        by_itself = ~np.isin(self.graph.sort[members], sorts) & (faster * (1 + APART * slow.excess) < 1)
        lengths[members] *= np.where(by_itself, 1.0, faster)
        rows, ratios = spread.as_peers(slow_ranks[~slow.alone], outside)
        lengths[rows] *= ratios
        lengths = typical.length - typical.inner.without(typical.work - lengths)
        quick, level = Change.between(typical.length, lengths), None
        if even:
            above = np.nan_to_num(means - left)
            surplus = above.sum(axis=0) / np.maximum((~np.isnan(usual)).sum(axis=0), 1) / len(np.unique(self.stage))
            now, blocks = self.means.copy(), np.flatnonzero(typical.is_block)
            now[slow_ranks] *= factor[slow_ranks]
            lengths[blocks] *= (1 + surplus / np.maximum(now, 1.0))[self.row[blocks], typical.unit[blocks]]
            level = Change.between(typical.length, lengths)
        means[:] = left
        return quick, level

    def _slow_items(
        self, rows: Ints, key: Ints, alike: Ints, groups: list[Group], least: float = 0.0
    ) -> Iterator[tuple[Slow, Change]]:
        """The slow groups of the operations `rows`, whose lengths are compared by the item `key`: each with the change
        in which these are as long as their peers. What seems to take no time takes at most the `least` that can be
        seen."""
        lengths = self.typical.length[rows]
        items = mean_lengths(key, Sums.of(np.where(lengths > 0, lengths, least)), alike)
        mean = items.mean
        left = mean.copy()  # of each item without the causes before: those are no gain of this one
        for slow in slow_groups(items, groups):
            base = np.full(len(mean), np.nan)
            base[slow.items] = slow.base
            chosen = ~np.isnan(base[key])
            quick = self.typical.length[rows[chosen]] * (base[key[chosen]] / np.maximum(left[key[chosen]], 1.0))
            left[slow.items] = np.minimum(left[slow.items], slow.base)
            yield slow, Change(rows[chosen], quick)

    def slow_links(self) -> Iterator[Candidate]:
        """The peers of a link are those of its direction between the same stages, else all. A guessed transfer is no
        peer of a recorded one, and the part of it that is as long as a launch after a block may be a launch."""
        for some in (self.typical.transfer & ~self.graph.guessed, self.typical.transfer & self.graph.guessed):
            if some.any():
                yield from self._slow_links(np.flatnonzero(some))

    def _slow_links(self, rows: Ints) -> Iterator[Candidate]:
        """The slow links among the transfers `rows`."""
        graph = self.graph
        least = self.typical.longest_start if graph.guessed[rows].all() else 0.0
        ranks, kinds = self.ranks["rank"].to_numpy().astype(np.int64), len(graph.kinds)
        src, dst = (self.compared.rows(end[rows]).astype(np.int64) for end in (graph.src, graph.dst))
        pairs, pair = distinct(src * len(ranks) + dst)
        codes, key = distinct(pair.astype(np.int64) * kinds + graph.kind[rows])
        ends = pairs[codes // kinds]
        links = np.stack([ranks[ends // len(ranks)], ranks[ends % len(ranks)], codes % kinds])
        alike, groups = self.compared.link_alike(links), self.compared.link_groups(links)
        for slow, quick in self._slow_items(rows, key, alike, groups, least):
            if quick.costs(self.usual).mean() <= least:
                continue
            place = self.compared.link_place(links[:, slow.items], graph.kinds)
            yield Candidate("slow-link", place, slow.excess, slow.sigmas, (quick,))

    def slow_collectives(self) -> Iterator[Candidate]:
        """A group's collective is compared with the same operation of other groups with as many members in as many
        stages and replicas; a collective of only one group has no peers. Empty if ranks are not here: one of these may
        come late to a collective and make it long."""
        graph = self.graph
        if graph.recorded.partial:
            return
        joint = np.flatnonzero(self.typical.collective)
        placed = graph.recorded.parts.join(self.ranks.select("rank", "stage", "replica"), on="rank")
        each = placed.group_by("collective", maintain_order=True).agg(
            pl.col("op", "group").first(), members=pl.len(), **{c: pl.n_unique(c) for c in ("stage", "replica")}
        )
        each = each.filter(pl.Series(self.typical.collective[graph.sort == COLLECTIVE])).with_row_index("n")
        for (op, *_), some in each.group_by("op", "members", "stage", "replica", maintain_order=True):
            labels, key = np.unique(some["group"].to_numpy().astype(str), return_inverse=True)
            rows, names = joint[some["n"].to_numpy()], labels.tolist()
            parts = graph.recorded.parts.filter(pl.col("op") == op)
            ranks_of = {
                str(name): sorted(set(ranks)) for name, ranks in parts.group_by("group").agg("rank").iter_rows()
            }  # fmt: skip
            of_stage: dict[int, list[int]] = {}
            for n, name in enumerate(names):
                for stage in {int(self.stage[self.number[rank]]) for rank in ranks_of[name]}:
                    of_stage.setdefault(stage, []).append(n)
            groups = [Group("stage", str(stage), np.array(items)) for stage, items in of_stage.items()]
            groups += [Group("group", name, np.array([n])) for n, name in enumerate(names)]
            for slow, quick in self._slow_items(rows, key, np.zeros(len(labels), np.int64), groups):
                slow_ones = [names[n] for n in slow.items.tolist()]
                ranks = sorted({rank for name in slow_ones for rank in ranks_of[name]})
                at = [self.number[rank] for rank in ranks]
                stages = {int(self.stage[a]) for a in at}
                place: dict[str, object] = {
                    "group": ", ".join(slow_ones), "ranks": ranks, "hosts": sorted({self.host[a] for a in at} - {""}),
                    "stage": stages.pop() if len(stages) == 1 else None,
                }  # fmt: skip
                yield Candidate("slow-collective", place, slow.excess, slow.sigmas, (quick,))

    def late(self) -> Iterator[Candidate]:
        """Late starts: delays beyond the typical one, charged to the member that started last. If ranks are not here,
        a step, an optimizer or a collective may wait for them."""
        typical, graph = self.typical, self.graph
        if graph.recorded.incomplete:
            return
        late = typical.delay - typical.usual_delay
        steps = {step: n for n, step in enumerate(np.unique(self.windows.step).tolist())}
        at = np.full(len(graph.recorded.steps) + 1, -1)
        for step, n in steps.items():
            at[step] = n
        counted = np.where(graph.step >= 0, at[graph.step], -1)
        which = (late > 0) & (self.row >= 0) & (counted >= 0)
        if graph.recorded.partial:
            which &= np.isin(graph.sort, (WORK, TRANSFER)) & ~graph.pause
        if self._seen_on_some():
            which &= ~needs_transfer(graph.waits, graph.sort)
        if not which.any():
            return
        rows, count = np.flatnonzero(which), len(steps)
        table = np.bincount(self.row[rows] * count + counted[rows], late[rows], len(self.ranks) * count)
        table = table.reshape(len(self.ranks), count).astype(np.float64)
        several = count > 2
        noise = table.std(axis=1, ddof=1) / np.sqrt(count) if several else self._scatter(late, counted >= 0) / count
        noise = as_of_peers(noise) if count > 1 else np.minimum(noise, BY_FAR * _most_of_others(table.mean(axis=1)))
        there = np.arange(len(self.ranks))
        items = Items(
            table.mean(axis=1), noise, np.zeros(len(there), np.int64), relative=False, least=WORTH * self.step_ns
        )
        left = items.mean.copy()  # of each rank without the causes before
        for slow in slow_groups(items, self.compared.groups(there)):
            members = self._members(slow, there, which)
            goes = np.zeros(len(there))
            goes[slow.items] = np.maximum(left[slow.items] - slow.base, 0) / np.maximum(items.mean[slow.items], 1.0)
            left[slow.items] = np.minimum(left[slow.items], slow.base)
            theirs = late[members] * goes[self.row[members]]
            delayed = Change(members, typical.usual_delay[members] + theirs, late=True)
            place, kind = self.compared.place(slow, there), self._kind(slow)
            parts = graph.pause, graph.sort == COLLECTIVE
            paused, joint = (float(theirs[part[members]].sum()) for part in parts)
            half = float(theirs.sum()) / 2
            host = "late-host" if kind == "host" else "late-rank"
            code = "data-loading" if paused > half else "late-collective" if joint > half else host
            yield Candidate(code, place, slow.excess, slow.sigmas, (delayed,))

    def _seen_on_some(self) -> bool:
        """Whether most transfers into some ranks were recorded, and most into others guessed: a start after a guessed
        one is never late, for what it was late by is part of the guess."""
        graph = self.graph
        rows = np.flatnonzero(self.typical.transfer)
        into, count = self.compared.rows(graph.dst[rows]), len(self.ranks)
        counts = np.bincount(into, minlength=count)[:count]
        guessed = np.bincount(into, graph.guessed[rows], count)[:count]
        mostly = (2 * guessed > counts)[counts > 0]
        return bool(mostly.any()) and not mostly.all()

    def _scatter(self, late: Floats, counted: Flags) -> Floats:
        """The standard error of the sum of a rank's late starts, from their differences: for runs of few steps."""
        rows = np.flatnonzero(counted & (self.row >= 0) & self.typical.is_block)
        row, count = self.row[rows], len(self.ranks)
        sizes = np.maximum(np.bincount(row, minlength=count), 1)
        mean = np.bincount(row, late[rows], count) / sizes
        scatter: Floats = np.sqrt(np.bincount(row, (late[rows] - mean[row]) ** 2, count))
        return scatter

    def microbatches(self, slow: list[Candidate]) -> Iterator[Candidate]:
        """Micro-batches of unequal length, if forwards and backwards of one are long together."""
        typical = self.typical
        if typical.correlation < ALIKE:
            return
        named = np.zeros(len(self.ranks) + 1, np.bool_)
        for each in slow:
            named[[self.number[rank] for rank in each.place["ranks"]]] = True  # type: ignore[attr-defined]
        unit = np.where(named[self.row], self.row, -1 - typical.stage)  # else replicas differ by their micro-batches
        factor = typical.factor(typical.means(unit))
        members = np.flatnonzero(factor != 1.0)
        if not len(members):
            return
        spread = float(factor[members].std())
        equal = Change(members, typical.length[members] / factor[members])
        yield Candidate("unequal-microbatches", {"ranks": [], "hosts": []}, spread, None, (equal,))


def _beside_peers(items: Items, slow: Slow) -> bool:
    """Whether each slow one has others that are alike: ranks of its stage."""
    others = np.delete(items.alike, slow.items)
    return bool(np.isin(items.alike[slow.items], others).all())


def _most_of_others(values: Floats) -> Floats:
    """For each value the largest of the others; infinite for a single value."""
    if len(values) < 2:
        return np.full(len(values), np.inf)
    order = np.argsort(values)
    most = np.full(len(values), values[order[-1]])
    most[order[-1]] = values[order[-2]]
    return most


def _middle(means: Floats) -> Floats:
    """The median of each column over the ranks that have a value, of two that differ the faster; NaN if none has."""
    middles = np.full(means.shape[1], np.nan)
    count = (~np.isnan(means)).sum(axis=0)
    some = count > 0
    if some.any():
        values = means[:, some]
        least, most = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
        two = (count[some] == 2) & (most > least * (1 + DIFFER))
        middles[some] = np.where(two, least, np.nanmedian(values, axis=0))
    return middles


WORTH = 0.005
"""A cause gains at least this share of a step."""
BY_FAR = 2
"""In a single step a rank is late if it is later than the next rank by this factor, and by standard errors."""
APART = 2
"""An optimizer that is slower than the blocks of its ranks by this factor is a cause of its own."""
FEW_RANKS = 2
"""This many ranks do not stand for a stage, replica or host if its other ranks were not read."""
DIFFER = 0.1
"""Two peers differ by this share: the faster says how fast the other could be."""
