"""Steps of a host's clock, which happen when it is set. They show in the messages of two hosts; each side of a step is
aligned by itself.

Let θ be the time of the clock of host j less that of host i. A message from i to j cannot arrive before it was sent, so
θ is at most its receive's end less its send's end; one from j to i says that θ is at least its send's end less its
receive's end. If later messages say that θ is more than earlier ones allow (or less), by more than two rates explain,
one of the two clocks has stepped.

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
CONTRADICTING = 2
"""This many messages on either side of a step must contradict each other: one may have been paired wrongly."""
NEAR = 64
"""This many messages around a step show what θ is before and after it."""
MOST_STEPS = 16
"""Two hosts with more steps between them than this have no usable clocks."""
LONG = 2
"""A clock was set if this many times as much time passes on it between two messages as between any others."""
LIKE_SIZE = 0.3
"""Two pairs of hosts see the same step if its sizes differ by at most this share."""

CLOCK_STEPS: Schema = {
    "host": TEXT, "from_ns": TIME, "after_ns": TIME, "until_ns": TIME, "step_ns": TIME, "against": TEXT,
    "between": pl.Boolean(), "either": pl.Boolean(),
}  # fmt: skip
"""A step of a host's clock: it took place between `after_ns` and `until_ns`; from `from_ns` on it shows `step_ns` more.
All times are of that clock. `against`: the host whose clock shows the step. `either`: nothing tells which of the two
clocks was set; that of `against` would have been set the opposite way. `between`: whether a host whose clock may have
been set has a time in between, which may be on either side."""


@dataclass(frozen=True)
class _Jump:
    """θ (`theta`: before and after) of hosts `i` and `j` grows by `size` µs: surely between the times `earliest` and
    `latest` (µs) of each of their clocks, most likely between `after` and `until`. `side` (0, 1): the one of the two
    clocks that shows much more time between these than between any other two messages; None if both or none does."""

    i: int
    j: int
    theta: tuple[float, float]
    after: tuple[float, float]
    until: tuple[float, float]
    earliest: tuple[float, float]
    latest: tuple[float, float]
    side: int | None

    @property
    def size(self) -> float:
        return self.theta[1] - self.theta[0]


@dataclass(frozen=True)
class _Bounds:
    """What the messages between two hosts say about θ, by time: `most` and `least` (inf and -inf where a row is of the
    other direction), `ends`: θ by the ends of a collective, nan elsewhere; `at`: when on the clock of each host."""

    at: tuple[Floats, Floats]
    most: Floats
    least: Floats
    ends: Floats
    slack: float

    def part(self, rows: slice | Ints) -> _Bounds:
        return replace(
            self, at=(self.at[0][rows], self.at[1][rows]), most=self.most[rows], least=self.least[rows],
            ends=self.ends[rows],
        )  # fmt: skip


def find_steps(data: Observations, profile: Profile) -> pl.DataFrame:
    """The steps (`CLOCK_STEPS`) of the clocks of `data`, the observations of `profile`, sorted by host and time."""
    pairs = _pairs(data)
    jumps = [jump for pair, rows in pairs.items() for jump in _jumps(data, pair, rows)]
    rows = []
    for host, of_host, either in _by_host(data, jumps):
        side = [0 if jump.i == host else 1 for jump in of_host]
        seen = list(zip(of_host, side, strict=True))
        after, until = max(jump.after[at] for jump, at in seen), min(jump.until[at] for jump, at in seen)
        earliest, latest = max(jump.earliest[at] for jump, at in seen), min(jump.latest[at] for jump, at in seen)
        likely, surely = (
            [data.base_ns[host] + round(1e3 * t) for t in (begin, max(begin, end))]
            for begin, end in ((after, until), (earliest, latest))
        )
        other = of_host[0].i + of_host[0].j - host
        times = _times(profile, data.hosts[host])
        between = _any_between(data, profile, of_host[0]) if either else _is_any_between(times, *surely)
        moved = round(1e3 * float(np.median([jump.size if at else -jump.size for jump, at in seen])))
        rows.append((data.hosts[host], _idle(times, *likely), *surely, moved, data.hosts[other], between, either))
    return pl.DataFrame(rows, CLOCK_STEPS, orient="row").sort("host", "from_ns") if rows else empty(CLOCK_STEPS)


def _any_between(data: Observations, profile: Profile, jump: _Jump) -> bool:
    """Whether either host of a jump has a time that may be on either side of it.

    A message that was sent before the clock of its sender was set may arrive after that. So the earliest and the latest
    time of either clock are taken on the other one, too, by θ before and after the jump.
    """
    before, after = jump.theta
    for at, host in enumerate((jump.i, jump.j)):
        other, sign = 1 - at, 1 if at else -1
        earliest = min(jump.earliest[at], jump.earliest[other] + sign * before)
        latest = max(jump.latest[at], jump.latest[other] + sign * after)
        surely = (data.base_ns[host] + round(1e3 * t) for t in (earliest, latest))
        if _is_any_between(_times(profile, data.hosts[host]), *surely):
            return True
    return False


def _is_any_between(times: pl.Series, after_ns: int, until_ns: int) -> bool:
    return bool(times.is_between(after_ns, until_ns, closed="none").any())


def _pairs(data: Observations) -> dict[tuple[int, int], tuple[int, int]]:
    """The pairs of hosts that exchange messages both ways, the lower host first, with the numbers of their two directed
    pairs."""
    number = {(i, j): n for n, (i, j) in enumerate(zip(data.source.tolist(), data.target.tolist(), strict=True))}
    return {(i, j): (n, number[j, i]) for (i, j), n in sorted(number.items()) if i < j and (j, i) in number}


def _bounds(data: Observations, directed: tuple[int, int], ends: Floats) -> _Bounds:
    """The bounds from the messages of two `directed` pairs; `ends` as `_collective_ends` gives them."""
    starts = np.append(data.first, len(data.pair))
    there, back = (slice(int(starts[n]), int(starts[n + 1])) for n in directed)
    first = np.concatenate([data.sent[there], data.received[back], ends[:, 0]])
    second = np.concatenate([data.received[there], data.sent[back], ends[:, 1]])
    kind = np.repeat([0, 1, 2], [there.stop - there.start, back.stop - back.start, len(ends)])
    order = np.argsort(first, kind="stable")
    first, second, kind, theta = first[order], second[order], kind[order], (second - first)[order]
    return _Bounds(
        at=(first, second),
        most=np.where(kind == 0, theta, np.inf),
        least=np.where(kind == 1, theta, -np.inf),
        ends=np.where(kind == 2, theta, np.nan),
        slack=(BLOCKS_NS if (data.kind[list(directed)] == BLOCKS).any() else SAME_CLOCK_NS) / 1e3,
    )


def _collective_ends(data: Observations, i: int, j: int) -> Floats:
    """When each collective of both hosts ends on either (µs), collectives × 2."""
    ends = [{}, {}] if not len(data.event) else [
        dict(zip(data.event[data.member == host].tolist(), data.left[data.member == host].tolist(), strict=True))
        for host in (i, j)
    ]  # fmt: skip
    both = [(end, ends[1][event]) for event, end in ends[0].items() if event in ends[1]]
    return np.array(both, np.float64).reshape(-1, 2)


def _jumps(data: Observations, pair: tuple[int, int], directed: tuple[int, int]) -> Iterator[_Jump]:
    """The jumps of θ of a `pair` of hosts, one after the other: each is looked for behind the last one."""
    if _first_contradiction(_bounds(data, directed, np.zeros((0, 2)))) is None:
        return
    bounds, start = _bounds(data, directed, _collective_ends(data, *pair)), 0
    for _ in range(MOST_STEPS):
        rest = bounds.part(slice(start, None))
        first = _first_contradiction(rest)
        if first is None:
            return
        if (jump := _jump(rest, first)) is None:  # that message is the odd one
            bounds = bounds.part(np.delete(np.arange(len(bounds.most)), start + first))
            continue
        before, after, last, begins = jump
        one, other = rest.at
        at = [(float(one[row]), float(other[row])) for row in (begins - 1, begins, last, first)]
        yield _Jump(*pair, (_middle(before), _middle(after)), at[0], at[1], at[2], at[3], _odd_side(rest, begins))
        start += begins


def _odd_side(bounds: _Bounds, jump_row: int) -> int | None:
    """Which of the two clocks was set right before the row `jump_row`, if its times tell.

    Example: messages come every 10 ms, and 30 ms apart between two steps. Where 1,000 ms pass on one clock and 10 on
    the other, the first one was set. Of 50 and 10 ms either may be true. Of 30 and -10 ms the second one was set back.
    """
    odd = []
    for times in bounds.at:
        apart = np.diff(times)
        usual = np.delete(apart, jump_row - 1)
        back = bool(apart[jump_row - 1] < LONG * usual.min(initial=0.0) - bounds.slack)
        odd.append(back or bool(apart[jump_row - 1] > LONG * usual.max(initial=0.0)))
    return None if odd[0] == odd[1] else int(odd[1])


def _jump(bounds: _Bounds, first: int) -> tuple[_Bounds, _Bounds, int, int] | None:
    """The bounds before and after a jump of θ that the row `first` shows, the last row that is surely before it, and
    the row with which the time after it begins; None if too few messages show it.

    Example: rows 0 to 3 say θ ≤ 10, θ ≥ -10, θ ≤ 10 and θ ≥ -10, rows 4 to 7 θ ≤ 310, θ ≥ 290, θ ≤ 310 and θ ≥ 290. The
    row 5 is the first that contradicts. Row 2 is the last one before the jump, and the time after it begins with row 4:
    else the message of row 4 would be 300 late.
    """
    following = bounds.part(slice(first, None))
    length = _first_contradiction(following) or len(following.most)
    before, after = bounds.part(slice(0, first)), following.part(slice(0, length))
    most, least = _before(bounds)
    drift = RATE * bounds.at[0]
    rises = bounds.least[first] > most[first] + drift[first]
    ahead, behind = drift[first:][:length], drift[:first]
    right = (after.least - ahead > most[first]) if rises else (after.most + ahead < least[first])
    if right.sum() < CONTRADICTING:
        return None
    wrong = (
        before.most - behind < after.least[0] - ahead[0] if rises else before.least + behind > after.most[0] + ahead[0]
    )
    before, after = before.part(slice(-NEAR, None)), after.part(slice(0, NEAR))
    if not np.isfinite([_middle(before), _middle(after)]).all():
        return None
    last = int(np.flatnonzero(wrong)[-1])
    return before, after, last, _first_row_after(bounds, before, after, last, first)


def _first_contradiction(bounds: _Bounds) -> int | None:
    """The first row with a θ that `CONTRADICTING` rows before it do not allow."""
    drift, (most, least) = RATE * bounds.at[0], _before(bounds)
    contradicts = np.maximum(bounds.least - drift - most, least - (bounds.most + drift))
    rows = np.flatnonzero(contradicts > bounds.slack)
    return int(rows[0]) if len(rows) else None


def _before(bounds: _Bounds) -> tuple[Floats, Floats]:
    """The most and the least θ at the time 0 that all but the tightest of the rows before each row allow, for any
    rates."""
    drift = RATE * bounds.at[0]
    most, least = _second_least(bounds.most - drift), -_second_least(-(bounds.least + drift))
    return np.append(np.inf, most)[:-1], np.append(-np.inf, least)[:-1]


def _second_least(values: Floats) -> Floats:
    """For each value the second smallest up to it."""
    least = np.append(np.inf, np.minimum.accumulate(values))[:-1]
    return np.asarray(np.minimum.accumulate(np.maximum(values, least)))


def unseen(data: Observations) -> Floats:
    """How much (µs) the clock of each host could have been set in the middle half of the time in which it exchanges
    messages without any pair of hosts showing it; nan where it exchanges none both ways.

    The `CONTRADICTING` tightest bounds on either side do not show a rise between two rows that is smaller than their
    distance, nor such a fall.
    """
    least = np.full(len(data.hosts), np.nan)
    for pair, directed in _pairs(data).items():
        bounds = _bounds(data, directed, np.zeros((0, 2)))
        time = bounds.at[0]
        drift, (most, low) = RATE * time, _before(bounds)
        after_least = -_second_least(-(bounds.least - drift)[::-1])[::-1]
        after_most = _second_least((bounds.most + drift)[::-1])[::-1]
        first, last = np.quantile(time[[0, -1]], [0.25, 0.75])
        inside = (time >= first) & (time <= last)
        inside |= np.arange(len(time)) == np.searchsorted(time, last)
        room = np.maximum(most - after_least, after_most - low)[np.minimum(np.flatnonzero(inside), len(time) - 1)]
        host = list(pair)
        least[host] = np.fmin(least[host], room.max() + bounds.slack)
    return np.where(np.isfinite(least), least, np.nan)


def _middle(bounds: _Bounds) -> float:
    return float(bounds.most.min() + bounds.least.max()) / 2


def _first_row_after(bounds: _Bounds, before: _Bounds, after: _Bounds, last: int, first: int) -> int:
    """The row between `last` and `first` with which the time after the jump begins: where each message arrives soonest,
    and collectives end together."""
    rows = bounds.part(slice(last + 1, first))
    late = []
    for side in (before, after):
        slow = np.where(np.isfinite(rows.most), rows.most - side.most.min(), side.least.max() - rows.least)
        slow = np.where(np.isnan(rows.ends), slow, np.abs(rows.ends - _middle(side)))
        late.append(np.append(0.0, np.cumsum(np.maximum(slow, -2 * slow))))
    return last + 1 + int(np.argmin(late[0] + late[1][-1] - late[1]))


def _by_host(data: Observations, jumps: Sequence[_Jump]) -> Iterator[tuple[int, list[_Jump], bool]]:
    """The jumps that one step of a host explains, and whether nothing tells that host from the other one of its first
    jump: then it is the later one. A step that explains more jumps, with further hosts, is told from the other; of two
    hosts each sees what the other one does."""
    several = len({*data.source.tolist(), *data.target.tolist(), *data.member.tolist()}) > 2
    left = list(jumps)
    while left:
        first = min(left, key=lambda jump: jump.after[0])
        explained = [_same_step(left, first, side) for side in (0, 1)]
        votes = [(len(explained[side]), _share(data, first, side)) for side in (0, 1)]
        told = first.side is not None or (several and votes[0] != votes[1])
        side = int(votes[1] >= votes[0]) if first.side is None else first.side
        yield (first.i, first.j)[side], explained[side], not told
        left = [jump for jump in left if jump not in explained[side]]


def _share(data: Observations, jump: _Jump, side: int) -> float:
    """In which share of what the host on a `side` of a jump has in common with others its clock seems to have been set:
    the messages with each host, and the collectives. There the median delay moves by about as much."""
    host, size, at = (jump.i, jump.j)[side], jump.size if side else -jump.size, jump.after[side]
    moved: dict[int, list[float]] = {}
    for way, end, other, time in (
        (1, data.target, data.source, data.received), (-1, data.source, data.target, data.sent)
    ):  # fmt: skip
        for pair in np.flatnonzero(end == host).tolist():
            rows = np.flatnonzero(data.pair == pair)
            moved.setdefault(int(other[pair]), []).append(
                way * _change(time[rows], (data.received - data.sent)[rows], at)
            )
    here = np.flatnonzero(data.member == host)
    if len(here):
        count = np.bincount(data.event)
        others = (np.bincount(data.event, data.left)[data.event[here]] - data.left[here]) / (
            count[data.event[here]] - 1
        )
        moved[-1] = [_change(data.left[here], data.left[here] - others, at)]
    means = [float(np.mean(changes)) for changes in moved.values()]
    votes = [abs(change - size) < abs(change) for change in means if np.isfinite(change)]
    return sum(votes) / len(votes) if votes else 0.0


def _change(time: Floats, values: Floats, at: float) -> float:
    """By how much the median of the values near the time `at` changes there; nan where one side has none."""
    order = np.argsort(time, kind="stable")
    time, values = time[order], values[order]
    after_row = int(np.searchsorted(time, at, "right"))
    before, after = values[max(0, after_row - NEAR) : after_row], values[after_row : after_row + NEAR]
    return float(np.median(after) - np.median(before)) if len(before) and len(after) else float("nan")


def _same_step(jumps: Sequence[_Jump], first: _Jump, side: int) -> list[_Jump]:
    """The `first` jump, and those of the host on a `side` of it that may have the same time and are of like size."""
    host, size = (first.i, first.j)[side], first.size if side else -first.size
    of_host = [
        (jump, at, jump.size if at else -jump.size)
        for jump in jumps for at, h in enumerate((jump.i, jump.j)) if h == host
    ]  # fmt: skip
    return [
        jump for jump, at, other in of_host
        if jump is first
        or (jump.earliest[at] <= first.latest[side] and first.earliest[side] <= jump.latest[at]
            and abs(other - size) <= LIKE_SIZE * abs(size))
    ]  # fmt: skip


def _times(profile: Profile, host: str) -> pl.Series:
    """When anything begins or ends on a host."""
    ranks = profile.ranks.filter(pl.col("host") == host)["rank"]
    here = pl.col("rank").is_in(ranks.implode())
    times = [
        frame.filter(here).select(time)[time]
        for frame in (profile.spans, profile.p2p, profile.collectives) for time in ("start_ns", "end_ns")
    ]  # fmt: skip
    return pl.concat(times).drop_nulls()


def _idle(times: pl.Series, after: int, until: int) -> int:
    """The middle of the longest time between `after` and `until` with none of `times`."""
    inside = times.filter(times.is_between(after, until, closed="none"))
    edges = pl.concat([inside, pl.Series([after, until])]).sort()
    longest = int(edges.diff().arg_max() or 1)
    return int(edges[longest - 1] + edges[longest]) // 2
