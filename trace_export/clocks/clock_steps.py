"""Steps of a host's clock, as when it is set: found in what two hosts exchange, so that each side is aligned by itself.

Let θ be what the clock of host j shows more than that of host i. A message from i to j cannot arrive before it was
sent, so θ is at most its receive's end less its send's end; one from j to i says that θ is at least its send's end less
its receive's end. Where later messages say that θ is more than earlier ones allow (or less), and more than two rates
explain, one of the two clocks has stepped.

Example: i and j exchange messages every 10 ms that take 10 µs. Before a step of +300 µs those of i say θ ≤ 10, those of
j θ ≥ -10; afterwards they say θ ≤ 310 and θ ≥ 290, which is more than 10.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from trace_export.clocks.observations import BLOCKS, Floats, Ints, Observations
from trace_export.model import TEXT, TIME, Profile, Schema, empty
from trace_export.tolerances import BLOCKS_NS, SAME_CLOCK_NS

RATE = 60e-6
"""The rates of two sound clocks differ by less: twice the largest difference that Huygens measured (NSDI '18)."""
FEW, ENOUGH = 2, 4
"""So many messages after a step must contradict those before it, and so many on both sides together: one may have been
paired wrongly. Of 60 simulated runs with 2 to 16 hosts, of which a clock was set by 0.3 to 5 ms, steps were found in
47, always of the right host, and none in the same runs without one; what was missed has eager sends or cut windows."""
NEAR = 64
"""So many messages around a step show what θ is before and after it."""
MOST = 16
"""Of so many steps between two hosts, their clocks are no clocks."""
ALIKE = 0.3
"""Two pairs of hosts see the same step where they differ by no larger a share in its size."""

CLOCK_STEPS: Schema = {
    "host": TEXT, "from_ns": TIME, "after_ns": TIME, "until_ns": TIME, "step_ns": TIME, "against": TEXT,
    "between": pl.Boolean(),
}  # fmt: skip
"""A step of a host's clock: it took place between `after_ns` and `until_ns`; from `from_ns` on it shows `step_ns` more.
All times are of that clock. `against`: the host that it is seen against. `between`: whether the host has a time in
between, which may be on either side."""


@dataclass(frozen=True)
class _Jump:
    """θ of hosts `i` and `j` grows by `size` µs, between the times `after` and `until` (µs) of each of their clocks."""

    i: int
    j: int
    size: float
    after: tuple[float, float]
    until: tuple[float, float]


@dataclass(frozen=True)
class _Bounds:
    """What the messages between two hosts say about θ, by time: `most` and `least` (inf and -inf where a row is of the
    other direction), `ends`: θ by the ends of a collective, nan elsewhere; `at`: when on the clock of each host."""

    at: tuple[Floats, Floats]
    most: Floats
    least: Floats
    ends: Floats
    slack: float

    def part(self, rows: slice) -> _Bounds:
        return replace(
            self, at=(self.at[0][rows], self.at[1][rows]), most=self.most[rows], least=self.least[rows],
            ends=self.ends[rows],
        )  # fmt: skip


def find_steps(known: Observations, profile: Profile) -> pl.DataFrame:
    """The steps (`CLOCK_STEPS`) of the clocks of `known`, the observations of `profile`, sorted by host and time."""
    pairs = _pairs(known)
    jumps = [jump for pair, rows in pairs.items() for jump in _jumps(known, pair, rows)]
    links = np.bincount(np.array(list(pairs), np.int64).reshape(-1), minlength=len(known.hosts))
    rows = []
    for host, of_host in _by_host(jumps, links):
        side = [0 if jump.i == host else 1 for jump in of_host]
        after = max(jump.after[at] for jump, at in zip(of_host, side, strict=True))
        until = min(jump.until[at] for jump, at in zip(of_host, side, strict=True))
        sizes = [jump.size if at else -jump.size for jump, at in zip(of_host, side, strict=True)]
        times = [known.base_ns[host] + round(1e3 * t) for t in (after, max(after, until))]
        other = of_host[0].i + of_host[0].j - host
        since, between = _idle(profile, known.hosts[host], *times)
        moved = round(1e3 * float(np.median(sizes)))
        rows.append((known.hosts[host], since, *times, moved, known.hosts[other], between))
    return pl.DataFrame(rows, CLOCK_STEPS, orient="row").sort("host", "from_ns") if rows else empty(CLOCK_STEPS)


def _pairs(known: Observations) -> dict[tuple[int, int], tuple[int, int]]:
    """The pairs of hosts that exchange messages both ways, the lower host first, with the numbers of their two directed
    pairs."""
    number = {(i, j): n for n, (i, j) in enumerate(zip(known.source.tolist(), known.target.tolist(), strict=True))}
    return {(i, j): (n, number[j, i]) for (i, j), n in sorted(number.items()) if i < j and (j, i) in number}


def _bounds(known: Observations, directed: tuple[int, int], ends: Floats) -> _Bounds:
    """What the messages of two `directed` pairs say; `ends` as `_collective_ends` gives them."""
    starts = np.append(known.first, len(known.pair))
    there, back = (slice(int(starts[n]), int(starts[n + 1])) for n in directed)
    first = np.concatenate([known.sent[there], known.received[back], ends[:, 0]])
    second = np.concatenate([known.received[there], known.sent[back], ends[:, 1]])
    kind = np.repeat([0, 1, 2], [there.stop - there.start, back.stop - back.start, len(ends)])
    order = np.argsort(first, kind="stable")
    first, second, kind, theta = first[order], second[order], kind[order], (second - first)[order]
    return _Bounds(
        at=(first, second),
        most=np.where(kind == 0, theta, np.inf),
        least=np.where(kind == 1, theta, -np.inf),
        ends=np.where(kind == 2, theta, np.nan),
        slack=(BLOCKS_NS if (known.kind[list(directed)] == BLOCKS).any() else SAME_CLOCK_NS) / 1e3,
    )


def _collective_ends(known: Observations, i: int, j: int) -> Floats:
    """When each collective of both hosts ends on either (µs), collectives × 2."""
    ends = [{}, {}] if not len(known.event) else [
        dict(zip(known.event[known.member == host].tolist(), known.left[known.member == host].tolist(), strict=True))
        for host in (i, j)
    ]  # fmt: skip
    both = [(end, ends[1][event]) for event, end in ends[0].items() if event in ends[1]]
    return np.array(both, np.float64).reshape(-1, 2)


def _jumps(known: Observations, pair: tuple[int, int], directed: tuple[int, int]) -> Iterator[_Jump]:
    """The jumps of θ of a `pair` of hosts, one after the other: each is looked for behind the last one."""
    if _first_contradiction(_bounds(known, directed, np.zeros((0, 2)))) is None:
        return
    bounds, start = _bounds(known, directed, _collective_ends(known, *pair)), 0
    for _ in range(MOST):
        rest = bounds.part(slice(start, None))
        first = _first_contradiction(rest)
        if first is None:
            return
        if (found := _jump(rest, first)) is None:  # that message is the odd one
            start += first + 1
            continue
        before, after, split = found
        size = _middle(after) - _middle(before)
        one, other = rest.at
        yield _Jump(*pair, size, (one[split - 1], other[split - 1]), (one[split], other[split]))
        start += split


def _jump(bounds: _Bounds, first: int) -> tuple[_Bounds, _Bounds, int] | None:
    """What is known before and after a jump of θ that the row `first` shows, and the row with which the time after it
    begins; None where too few messages say so."""
    following = bounds.part(slice(first, None))
    length = _first_contradiction(following) or len(following.most)
    before, after = bounds.part(slice(max(0, first - NEAR), first)), following.part(slice(0, min(length, NEAR)))
    drift = RATE * np.abs(before.at[0] - after.at[0][0])
    rises = after.least[0] > before.most.min()
    wrong = (before.most + drift < after.least[0]) if rises else (before.least - drift > after.most[0])
    right = (after.least > before.most.min()) if rises else (after.most < before.least.max())
    enough = min(wrong.sum(), right.sum()) >= FEW and wrong.sum() + right.sum() >= ENOUGH
    if not enough or not np.isfinite([_middle(before), _middle(after)]).all():
        return None
    last = first - len(wrong) + int(np.flatnonzero(wrong)[-1])
    return before, after, _split(bounds, before, after, last, first)


def _first_contradiction(bounds: _Bounds) -> int | None:
    """The first row that says of θ what no row before it allows."""
    drift = RATE * bounds.at[0]
    most, least = (np.append(edge, values)[:-1] for edge, values in ((np.inf, bounds.most), (-np.inf, bounds.least)))
    before = np.append(0.0, drift)[:-1]
    rises = bounds.least - drift - np.minimum.accumulate(most - before)
    falls = np.maximum.accumulate(least + before) - (bounds.most + drift)
    found = np.flatnonzero(np.maximum(rises, falls) > bounds.slack)
    return int(found[0]) if len(found) else None


def _middle(bounds: _Bounds) -> float:
    return float(bounds.most.min() + bounds.least.max()) / 2


def _split(bounds: _Bounds, before: _Bounds, after: _Bounds, last: int, first: int) -> int:
    """The row between `last` and `first` with which the time after the jump begins: where each message arrives soonest,
    and collectives end together."""
    rows = bounds.part(slice(last + 1, first))
    late = []
    for side in (before, after):
        slow = np.where(np.isfinite(rows.most), rows.most - side.most.min(), side.least.max() - rows.least)
        slow = np.where(np.isnan(rows.ends), slow, np.abs(rows.ends - _middle(side)))
        late.append(np.append(0.0, np.cumsum(np.maximum(slow, -2 * slow))))
    return last + 1 + int(np.argmin(late[0] + late[1][-1] - late[1]))


def _by_host(jumps: Sequence[_Jump], links: Ints) -> Iterator[tuple[int, list[_Jump]]]:
    """The jumps that one step of a host explains. It is the host with a jump in the largest part of its pairs; of two
    that nothing distinguishes the later one."""
    left = list(jumps)
    while left:
        shared = {host: _same_step(left, host) for host in sorted({h for jump in left for h in (jump.i, jump.j)})}
        host = max(shared, key=lambda h: (len(shared[h]) / links[h], len(shared[h]), h))
        yield host, shared[host]
        left = [jump for jump in left if jump not in shared[host]]


def _same_step(jumps: Sequence[_Jump], host: int) -> list[_Jump]:
    """The first jump that `host` has, and those of its other pairs at the same time and of the same size."""
    of_host = [
        (jump, side, jump.size if side else -jump.size)
        for jump in jumps for side, h in enumerate((jump.i, jump.j)) if h == host
    ]  # fmt: skip
    if not of_host:
        return []
    first, at, size = min(of_host, key=lambda each: each[0].after[each[1]])
    return [
        jump for jump, side, other in of_host
        if jump.after[side] <= first.until[at] and first.after[at] <= jump.until[side]
        and abs(other - size) <= ALIKE * abs(size)
    ]  # fmt: skip


def _idle(profile: Profile, host: str, after: int, until: int) -> tuple[int, bool]:
    """The middle of the longest time between `after` and `until` in which nothing begins or ends on a host, and whether
    anything does."""
    ranks = profile.ranks.filter(pl.col("host") == host)["rank"]
    here = pl.col("rank").is_in(ranks.implode())
    times = [
        frame.filter(here).select(time)[time]
        for frame in (profile.spans, profile.p2p, profile.collectives) for time in ("start_ns", "end_ns")
    ]  # fmt: skip
    edges = pl.concat(times).drop_nulls()
    edges = pl.concat([edges.filter((edges > after) & (edges < until)), pl.Series([after, until])]).sort()
    longest = int(edges.diff().arg_max() or 1)
    return int(edges[longest - 1] + edges[longest]) // 2, len(edges) > 2
