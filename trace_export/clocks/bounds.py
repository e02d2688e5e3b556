"""What can be said about a fit from outside it: causality, hard bounds, and how well its parts agree."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trace_export.clocks.causality import SLACK_US
from trace_export.clocks.graph import NegativeCycleError, shortest
from trace_export.clocks.observations import Floats, Ints, Ties
from trace_export.clocks.solve import Solution

BIG_EVENTS = 256
"""Of the collectives with many members only so many, the tightest, are used for the bounds."""

CHUNK = 512


def bounds(ties: Ties, solution: Solution, component: Ints) -> tuple[Floats, float, list[int]]:
    """How far each host can be from where it was put, in µs, whatever the delays were (H; inf where nothing bounds it).

    Every message and collective says that one host's remaining error exceeds another's by at most so much; the shortest
    paths through these difference constraints bound all pairs. Measured against the mean of the host's component.
    Also returns the slack that made the constraints free of contradiction, and the hosts of a contradicting cycle.
    """
    source, target, limit, nodes = _constraints(ties, solution)
    slack = SLACK_US
    cycle: list[int] = []
    while True:
        try:
            return _spread(source, target, limit + slack, nodes, component), slack, cycle
        except NegativeCycleError:
            if not cycle:
                cycle = [n for n in _cycle(source, target, limit + slack, nodes) if n < len(ties.hosts)]
            slack *= 2


def _spread(source: Ints, target: Ints, limit: Floats, nodes: int, component: Ints) -> Floats:
    hosts = len(component)
    upper, lower = np.zeros(hosts), np.zeros(hosts)
    size = np.bincount(component, minlength=int(component.max()) + 1)[component]
    for at in range(0, hosts, CHUNK):
        rows = np.arange(at, min(at + CHUNK, hosts))
        far = shortest(source, target, limit, nodes, rows)[:, :hosts]
        far = np.where(component[rows][:, None] == component[None, :], far, 0.0)
        upper += far.sum(0)
        lower[rows] = far.sum(1)
    return np.asarray(np.maximum(upper, lower) / size)


def _constraints(ties: Ties, solution: Solution) -> tuple[Ints, Ints, Floats, int]:
    """Edges i → j of `error of j - error of i <= limit` (µs), one per pair of nodes; nodes after H are collectives."""
    hosts = len(ties.hosts)
    parts: list[tuple[Ints, Ints, Floats]] = []
    if len(ties.pair):
        least = np.minimum.reduceat(solution.residual, ties.first) + solution.lag
        parts.append((ties.source, ties.target, _excused(ties, least)))
    nodes = hosts
    if len(ties.event):
        small, large, nodes = _event_constraints(ties, solution)
        parts += [small, large]
    if not parts:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), nodes
    frame = pl.DataFrame({"s": np.concatenate([p[0] for p in parts]), "t": np.concatenate([p[1] for p in parts]),
                          "limit": np.concatenate([p[2] for p in parts])})  # fmt: skip
    frame = frame.filter(pl.col("s") != pl.col("t")).group_by("s", "t").agg(pl.col("limit").min()).sort("s", "t")
    return frame["s"].to_numpy(), frame["t"].to_numpy(), frame["limit"].to_numpy(), nodes


def _excused(ties: Ties, least: Floats) -> Floats:
    """`least` per directed pair; where both directions together are negative (a sender that ends after its receiver)
    each is excused by what is missing, so that the pair says only what its ends agree on."""
    hosts = len(ties.hosts)
    key, back = ties.source * hosts + ties.target, ties.target * hosts + ties.source
    at = np.minimum(np.searchsorted(key, back), len(key) - 1)
    close = np.where(key[at] == back, least + least[at], 0.0)
    return least + np.maximum(0.0, -close)


def _event_constraints(
    ties: Ties, solution: Solution
) -> tuple[tuple[Ints, Ints, Floats], tuple[Ints, Ints, Floats], int]:
    """No member of a collective ends before every member has started it."""
    hosts = len(ties.hosts)
    start, end = (
        t - solution.offset[ties.member] - solution.drift[ties.member] * t / ties.span_us
        for t in (ties.entered, ties.left)
    )
    rows = pl.DataFrame({"event": ties.event, "host": ties.member, "start": start, "end": end})
    rows = rows.with_columns(size=pl.len().over("event"))
    few = rows.filter(pl.col("size") <= 8)
    pairs = few.join(few, on="event", suffix="_late").select(
        "host_late", "host", limit=pl.col("end") - pl.col("start_late")
    )
    small = (pairs["host_late"].to_numpy(), pairs["host"].to_numpy(), pairs["limit"].to_numpy())
    many = rows.filter(pl.col("size") > 8)
    tight = many.group_by("event").agg(room=pl.col("end").min() - pl.col("start").max()).sort("room", "event")
    many = many.join(tight.head(BIG_EVENTS).with_row_index("node", hosts), on="event").sort("node", "host")
    node, host = many["node"].cast(pl.Int64).to_numpy(), many["host"].to_numpy()
    large = (
        np.concatenate([host, node]),
        np.concatenate([node, host]),
        np.concatenate([-many["start"].to_numpy(), many["end"].to_numpy()]),
    )
    return small, large, hosts + min(len(tight), BIG_EVENTS)


def _cycle(source: Ints, target: Ints, limit: Floats, nodes: int) -> list[int]:
    """The nodes of one negative cycle (Bellman-Ford from everywhere at once)."""
    reach, before = np.zeros(nodes), np.full(nodes, -1)
    for _ in range(nodes):
        step = reach[source] + limit
        order = np.lexsort((step, target))
        first = order[np.unique(target[order], return_index=True)[1]]
        better = first[step[first] < reach[target[first]] - 1e-9]
        if not len(better):
            return []
        reach[target[better]] = step[better]
        before[target[better]] = source[better]
    at = int(target[better[0]])
    for _ in range(nodes):
        at = int(before[at])
    seen = [at]
    while (at := int(before[at])) != seen[0]:
        seen.append(at)
    return sorted(seen)


def halves(ties: Ties) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A share of the rows for the hold-out check: every second message of each pair, every second collective."""
    place = np.arange(len(ties.pair)) - ties.first[ties.pair] if len(ties.pair) else np.zeros(0, np.int64)
    events = np.arange(int(ties.event.max()) + 1 if len(ties.event) else 0)
    return (place % 2).astype(np.float64), (events % 2).astype(np.float64)
