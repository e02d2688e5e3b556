"""Bounds that hold for any latencies: messages arrive after they were sent, so a host can be misplaced only so far."""

from __future__ import annotations

import numpy as np
import polars as pl

from trace_export.clocks.graph import NegativeCycleError, shortest
from trace_export.clocks.observations import Floats, Ints, Observations
from trace_export.clocks.solve import Solution
from trace_export.tolerances import CAUSALITY_NS, ROUND_TRIP_NS

SMALL_EVENT = 8
"""Collectives of at most this many members constrain every pair of them; larger ones by an extra node."""
BIG_EVENTS = 256
"""Only this many collectives with many members, the tightest, are used for the bounds."""
HOSTS_AT_A_TIME = 512
"""Hosts whose paths are searched at a time, which bounds the memory."""


def bounds(data: Observations, solution: Solution, component: Ints) -> tuple[Floats, float, list[int]]:
    """How far each host can be from where it was placed, in µs, for any latencies (H; inf if unbounded).

    Every message and collective limits by how much one host's remaining error exceeds another's; the shortest paths
    through these difference constraints bound all pairs. Measured against the mean of the host's component. Also
    returns the slack that made the constraints free of contradiction, and the hosts of a contradicting cycle.
    """
    source, target, limit, nodes = _constraints(data, solution)
    slack = CAUSALITY_NS / 1e3
    cycle: list[int] = []
    while True:
        try:
            return _largest_error(source, target, limit + slack, nodes, component), slack, cycle
        except NegativeCycleError:
            if not cycle:
                cycle = [n for n in _cycle(source, target, limit + slack, nodes) if n < len(data.hosts)]
            slack *= 2


def _largest_error(source: Ints, target: Ints, limit: Floats, nodes: int, component: Ints) -> Floats:
    hosts = len(component)
    upper, lower = np.zeros(hosts), np.zeros(hosts)
    size = np.bincount(component, minlength=int(component.max()) + 1)[component]
    for at in range(0, hosts, HOSTS_AT_A_TIME):
        rows = np.arange(at, min(at + HOSTS_AT_A_TIME, hosts))
        far = shortest(source, target, limit, nodes, rows)[:, :hosts]
        far = np.where(component[rows][:, None] == component[None, :], far, 0.0)
        upper += far.sum(0)
        lower[rows] = far.sum(1)
    return np.asarray(np.maximum(upper, lower) / size)


def _constraints(data: Observations, solution: Solution) -> tuple[Ints, Ints, Floats, int]:
    """Edges i → j of `error of j - error of i <= limit` (µs), one per pair of nodes; nodes after H are collectives."""
    hosts = len(data.hosts)
    parts: list[tuple[Ints, Ints, Floats]] = []
    if len(data.pair):
        parts.append((data.source, data.target, _relaxed(data, _least(data, solution))))
    nodes = hosts
    if len(data.event):
        small, large, nodes = _event_constraints(data, solution)
        parts += [small, large]
    if not parts:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), nodes
    frame = pl.DataFrame({"s": np.concatenate([p[0] for p in parts]), "t": np.concatenate([p[1] for p in parts]),
                          "limit": np.concatenate([p[2] for p in parts])})  # fmt: skip
    frame = frame.filter(pl.col("s") != pl.col("t")).group_by("s", "t").agg(pl.col("limit").min()).sort("s", "t")
    return frame["s"].to_numpy(), frame["t"].to_numpy(), frame["limit"].to_numpy(), nodes


def _relaxed(data: Observations, least: Floats) -> Floats:
    """`least` per directed pair. If the sum of both directions is negative (a sender that ends after its receiver),
    each is relaxed by the violation, so that the pair states only what its ends agree on."""
    return least + np.maximum(0.0, -_round_trip(data, least))


def _round_trip(data: Observations, least: Floats) -> Floats:
    """The sum of `least` per directed pair and of the way back; 0 if nothing comes back."""
    hosts = len(data.hosts)
    key, back = data.source * hosts + data.target, data.target * hosts + data.source
    at = np.minimum(np.searchsorted(key, back), len(key) - 1)
    return np.where(key[at] == back, least + least[at], 0.0)


def impossible_round_trip(data: Observations, solution: Solution) -> tuple[float, list[int]]:
    """By how much (µs) the fastest message between two hosts and the fastest one back take less than no time in sum, by
    the corrected clocks, and the two hosts; 0 and no hosts if that is within the tolerance."""
    if not len(data.pair):
        return 0.0, []
    round_trip = _round_trip(data, _least(data, solution))
    worst = int(round_trip.argmin())
    if round_trip[worst] >= -ROUND_TRIP_NS / 1e3:
        return 0.0, []
    return float(-round_trip[worst]), sorted([int(data.source[worst]), int(data.target[worst])])


def _least(data: Observations, solution: Solution) -> Floats:
    """The least time (µs) that messages of each directed pair take, by the corrected clocks."""
    return np.minimum.reduceat(solution.residual, data.first) + solution.latency


def _event_constraints(
    data: Observations, solution: Solution
) -> tuple[tuple[Ints, Ints, Floats], tuple[Ints, Ints, Floats], int]:
    """No member of a collective ends before every member has started it.

    Example: by the corrected clocks host 0 is in a collective from 5 to 9 µs and host 1 from 7 to 10 µs. So the error
    of host 0 is at most 9 - 7 = 2 µs above that of host 1, and that of host 1 at most 10 - 5 = 5 µs above that of 0.
    """
    hosts = len(data.hosts)
    start, end = (
        t - solution.offset[data.member] - solution.drift[data.member] * t / data.span_us
        for t in (data.entered, data.left)
    )
    rows = pl.DataFrame({"event": data.event, "host": data.member, "start": start, "end": end})
    rows = rows.with_columns(size=pl.len().over("event"))
    few = rows.filter(pl.col("size") <= SMALL_EVENT)
    pairs = few.join(few, on="event", suffix="_late").select(
        "host_late", "host", limit=pl.col("end") - pl.col("start_late")
    )
    small = (pairs["host_late"].to_numpy(), pairs["host"].to_numpy(), pairs["limit"].to_numpy())
    many = rows.filter(pl.col("size") > SMALL_EVENT)
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
