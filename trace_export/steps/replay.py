"""The lengths of a run's steps with other lengths and delays of operations: the measured graph run again, many
scenarios at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise

import numpy as np

from trace_export.ordering import distinct
from trace_export.steps.graph import POINT, Flags, Floats, Graph, Ints, for_origin
from trace_export.steps.order import Levels

SCENARIO_BYTES, WIDE = 1 << 26, 2048
"""Scenarios run at once if the levels have fewer operations than `WIDE` on average, for then the calls of numpy take
longer than their work: so many that a level has about as many times in all, and a column of each takes at most so many
bytes."""
PIECES, PIECE = 16, 1 << 14
"""A run is replayed in about so many pieces, of at least so many operations: what nobody waits for any more is
dropped."""

NEVER = np.int64(-(1 << 60))
"""The lag of a wait that never matters."""

Scenario = tuple[Floats, Floats]
"""The length and the delay of each operation."""


@dataclass(frozen=True)
class Change:
    """What a scenario changes in another one: the lengths of some operations, the `rows`, or if `late` their delays. A
    whole column for each scenario would take as much memory as a tenth of the graph."""

    rows: Ints
    values: Floats
    late: bool = False

    @classmethod
    def between(cls, length: Floats, other: Floats) -> Change:
        """The change of lengths to `other` ones."""
        rows = np.flatnonzero(other != length).astype(np.int32)
        return cls(rows, other[rows])

    def of(self, scenario: Scenario) -> Scenario:
        """The scenario with this change."""
        length, delay = scenario
        changed = (delay if self.late else length).copy()
        changed[self.rows] = self.values
        return (length, changed) if self.late else (changed, delay)

    def costs(self, scenario: Scenario) -> Floats:
        """By how much the values differ, of late operations by how much they are larger, of others smaller."""
        length, delay = scenario
        return self.values - delay[self.rows] if self.late else length[self.rows] - self.values


@dataclass(frozen=True)
class Windows:
    """The steps that have a length: from their first block to the first block of the next step of their segment, or the
    only step of a segment to its last end. Replicas that never wait for one another have steps of their own. `step`:
    rows of `recorded.steps`. `since`, `until`: the operations that begin a step and the next one; `ends`: all
    operations of a step without a next one."""

    step: Ints
    since: tuple[Ints, ...]
    until: tuple[Ints, ...]
    ends: tuple[Ints, ...]

    def __len__(self) -> int:
        return len(self.step)

    @property
    def steps(self) -> int:
        """The number of steps; replicas do not count."""
        return len(np.unique(self.step))

    def of(self, steps: Ints) -> Windows:
        """Those of some steps, which are rows of `recorded.steps`."""
        return self._kept(np.flatnonzero(np.isin(self.step, steps)).tolist())

    def longest(self, graph: Graph) -> Windows:
        """Of each step the window that is longest as measured."""
        rows: dict[int, tuple[int, int]] = {}
        for n, (step, since, until, ends) in enumerate(
            zip(self.step.tolist(), self.since, self.until, self.ends, strict=True)
        ):
            last = graph.start[until].min() if len(until) else graph.end[ends].max()
            length = int(last - graph.start[since].min())
            if step not in rows or length > rows[step][0]:
                rows[step] = length, n
        return self._kept([n for _, n in rows.values()])

    def _kept(self, rows: list[int]) -> Windows:
        return Windows(self.step[rows], *(tuple(part[n] for n in rows) for part in (self.since, self.until, self.ends)))


class Replay:
    """Runs scenarios of a graph."""

    def __init__(self, graph: Graph, *, with_first: bool = False) -> None:
        """`with_first`: a step alone in its segment begins with its first operation, even if that is no block."""
        self.graph, self._with_first = graph, with_first
        position, waits = np.empty(len(graph), np.int32), graph.waits
        position[graph.levels.order] = np.arange(len(graph), dtype=np.int32)
        self._position, self._stride = position, 1 if waits.whole.all() else 2
        self._source = position[waits.on] * np.int32(self._stride)
        if self._stride > 1:
            self._source += ~waits.whole
        self._pieces = _pieces(graph.levels, self._source // self._stride)
        joined = np.zeros(len(graph), np.bool_)
        joined[waits.of[graph.joint]] = True
        self._set_aside(joined[waits.of] & ~graph.joint)
        self._launches = True

    def _set_aside(self, aside: Flags) -> None:
        """Leaves some waits out."""
        lag = self.graph.waits.lag
        self._lag = np.where(aside, NEVER, lag) if aside.any() else lag
        turns = self.graph.levels.turns
        lagged = np.logical_or.reduceat(self._lag != 0, turns[:-1]) if len(turns) > 1 else np.zeros(0, np.bool_)
        self._lagged: list[bool] = lagged.tolist()

    def without_launches(self) -> Replay:
        """The same graph without launches: a wait holds an operation no longer than the awaited one lasts."""
        replay = copy(self)
        replay._launches = False
        if self.graph.joint.any():
            replay._set_aside(self.graph.joint)
        return replay

    @cached_property
    def windows(self) -> Windows:
        """The steps that have a length."""
        return _windows(self.graph, with_first=self._with_first)

    def step_lengths(self, scenarios: Iterable[Scenario]) -> Floats:
        """Step × scenario: the length of each of the `windows`. Scenarios are taken as they are run."""
        count, levels = max(1, len(self.graph)), len(self.graph.levels.bounds)
        size = max(1, min(WIDE * levels // count, SCENARIO_BYTES // (8 * count)))
        left, parts = iter(scenarios), [np.empty((len(self.windows), 0))]
        (since, begin), (until, following), (ends, end) = map(
            self._positions, (self.windows.since, self.windows.until, self.windows.ends)
        )
        first, at = distinct(np.concatenate([since, until]))
        since, until = at[: len(since)], at[len(since) :]
        last, ends = distinct(ends)
        while some := list(islice(left, size)):
            started, ended = self._times(some, first, last)
            begun = np.minimum.reduceat(started[since], begin)
            if len(until):
                parts.append(np.minimum.reduceat(started[until], following) - begun)
            else:
                parts.append(np.maximum.reduceat(ended[ends], end) - begun)
            del some  # before the next scenarios are made
        return np.concatenate(parts, axis=1)

    def means(self, scenarios: Iterable[Scenario]) -> Floats:
        """The mean length of a step in each scenario."""
        mean: Floats = self.step_lengths(scenarios).mean(axis=0)
        return mean

    def _positions(self, operations: Sequence[Ints]) -> tuple[Ints, Ints]:
        """Where in the order of the levels the operations of all windows are, and where among these each window's
        begin."""
        sizes = np.cumsum([0, *map(len, operations)])
        return self._position[np.concatenate([np.empty(0, np.int64), *operations])], sizes[:-1]

    def _times(self, scenarios: Sequence[Scenario], first: Ints, last: Ints) -> tuple[Floats, Floats]:
        """When the operations at the places `first` in the order of the levels start, and those at `last` end,
        operation × scenario."""
        started, ended = (np.empty((len(asked), len(scenarios))) for asked in (first, last))
        for begin, length, end in self._run(scenarios):
            some, others = (slice(*np.searchsorted(asked, (begin, begin + len(end)))) for asked in (first, last))
            rows = first[some] - begin
            started[some] = end[rows] - length[rows]
            ended[others] = end[last[others] - begin]
        return started, ended

    def _run(self, scenarios: Sequence[Scenario]) -> Iterator[tuple[int, Floats, Floats]]:
        """Runs the scenarios piece by piece: where in the order of the levels each begins, and the lengths and ends of
        its operations, operation × scenario; a single column holds for all scenarios."""
        graph, levels, stride = self.graph, self.graph.levels, self._stride
        bounds, turns, first_turn = (x.tolist() for x in (levels.bounds, levels.turns, levels.first_turn))
        times, kept = np.empty((0, len(scenarios))), 0  # of each operation the end and, if waits need it, the start
        for first, last, awaited in self._pieces:
            low, high = bounds[first], bounds[last]
            before, kept = times[(awaited - kept) * stride :], awaited
            times = np.empty(((high - kept) * stride, len(scenarios)))
            times[: len(before)] = before
            order = levels.order[low:high]
            length, delay = (_columns(columns, order) for columns in zip(*scenarios, strict=True))
            since = turns[first_turn[first]]
            source = self._source[since : turns[first_turn[last]]]
            if kept:
                source = source - kept * stride
            for level in range(first, last):
                ready, a, b = None, bounds[level] - low, bounds[level + 1] - low
                for turn in range(first_turn[level], first_turn[level + 1]):
                    begin, end = turns[turn], turns[turn + 1]
                    other = times.take(source[begin - since : end - since], axis=0)
                    if self._lagged[turn]:
                        lag = self._lag[begin:end, None]
                        other += lag if self._launches else np.minimum(lag, 0)
                    if level in levels.begins:
                        ready = np.maximum.reduceat(other, levels.begins[level])
                    elif ready is None:
                        ready = other
                    else:
                        np.maximum(ready[: end - begin], other, out=ready[: end - begin])
                if ready is None:
                    ready = graph.start[order[a:b]].astype(np.float64)[:, None]
                ready = ready + delay[a:b]
                here = times[(low - kept + a) * stride : (low - kept + b) * stride]
                if stride > 1:
                    here[1::2] = ready
                np.add(ready, length[a:b], out=here[::stride])
            yield low, length, times[(low - kept) * stride :: stride]


def _columns(columns: Sequence[Floats], rows: Ints) -> Floats:
    """Some rows of columns, one for each scenario; one column where all share it."""
    if all(column is columns[0] for column in columns):
        return columns[0][rows][:, None]
    return np.stack([column[rows] for column in columns], axis=1)


def _pieces(levels: Levels, source: Ints) -> list[tuple[int, int, int]]:
    """The pieces in which a run is replayed: the first level of each, the first level after it, and from which place in
    the order of the levels on operations are awaited in it and in later ones. `source`: the place of what each wait
    is for."""
    bounds, waits = levels.bounds, levels.turns[levels.first_turn]  # of each level, and the end
    size = max(PIECE, int(bounds[-1]) // PIECES)
    begins = np.flatnonzero(np.diff(bounds[:-1] // size, prepend=-1))
    lasts = np.append(begins, len(bounds) - 1)[1:]
    pieces: list[tuple[int, int, int]] = []
    awaited = int(bounds[-1])
    for first, last in zip(begins[::-1].tolist(), lasts[::-1].tolist(), strict=True):
        before = min(awaited, int(bounds[first]), int(source[waits[first] : waits[last]].min(initial=awaited)))
        if pieces and before == awaited:  # nothing could be dropped between the two
            last = pieces.pop()[1]
        awaited = before
        pieces.append((first, last, awaited))
    return pieces[::-1]


def _windows(graph: Graph, *, with_first: bool) -> Windows:
    """The windows of a graph; a step alone in its segment counts only where no segment has two. Replicas that never
    wait for one another have windows of their own."""
    steps = graph.recorded.steps
    segment, counts = steps["segment"].to_numpy(), steps["counts"].to_numpy()
    apart = _apart(graph)
    nothing = np.empty(0, np.int64)
    windows: list[tuple[int, Ints, Ints, Ints]] = []
    for group in np.unique(apart[graph.first]).tolist():
        begins = _of_each_step(graph, np.flatnonzero(graph.first & (apart == group)))
        windows += [
            (n, begins[n], begins[n + 1], nothing)
            for n in range(len(steps) - 1)
            if segment[n] == segment[n + 1] and counts[n] and len(begins[n]) and len(begins[n + 1])
        ]
    if not windows:
        for n, of_step in enumerate(_of_each_step(graph, np.flatnonzero(counts[graph.step]))):
            if not counts[n]:
                continue
            windows.append((n, of_step if with_first else of_step[graph.first[of_step]], nothing, of_step))
    windows.sort(key=lambda window: window[0])
    step, since, until, ends = zip(*windows, strict=True) if windows else ((), (), (), ())
    return Windows(np.array(step, np.int64), since, until, ends)


def _of_each_step(graph: Graph, operations: Ints) -> list[Ints]:
    """Those of the operations that are of each step."""
    by_step = operations[np.argsort(graph.step[operations], kind="stable")]
    bounds = np.searchsorted(graph.step[by_step], np.arange(len(graph.recorded.steps) + 1)).tolist()
    return [by_step[a:b] for a, b in pairwise(bounds)]


def _apart(graph: Graph) -> Ints:
    """A number for each operation: replicas that wait for one another, if only at a barrier, share one."""
    replica = graph.of("replica")
    point = (graph.sort == POINT) & (graph.rank < 0)  # those of a rank are of its replica
    node = np.where(point, replica.max(initial=0) + np.cumsum(point, dtype=np.int32), replica)
    apart = np.flatnonzero(node[graph.waits.of] != node[graph.waits.on])
    joining = graph.waits.only(apart)
    joining = joining.only(~for_origin(joining, graph.sort, graph.step))  # an origin joins nobody
    of, on = node[joining.of], node[joining.on]
    least, spread = np.arange(int(node.max(initial=0)) + 1), True
    while spread:  # each pass hands the least number on to the neighbours, and from there to all that point there
        before = least
        least = before.copy()
        np.minimum.at(least, of, before[on])
        np.minimum.at(least, on, before[of])
        least = least[least]
        spread = bool((least != before).any())
    return np.where(replica >= 0, least[np.maximum(replica, 0)], -1)
