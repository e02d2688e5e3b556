"""One clock for all hosts, from tables alone: `fit_clocks(messages, collectives, ranks) -> ClockFit`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trace_export.clocks import apply, bounds, fit_tables, solve
from trace_export.clocks.clock_steps import CLOCK_STEPS, unseen
from trace_export.clocks.graph import components
from trace_export.clocks.observations import Floats, Ints, Observations, gather
from trace_export.clocks.overlaps import SHOWN_TWICE
from trace_export.clocks.problem import SAME_LATENCY_US, Problem
from trace_export.clocks.uncertainty import centred, drift_variation, uncertainty
from trace_export.model import empty
from trace_export.tolerances import CAUSALITY_NS

FEW_MESSAGES = 8
"""With fewer messages than this the priors decide."""
ENOUGH = 100
"""This many messages of each directed pair tell how sure the fit is, and whether its latencies differ by direction; of
more the uncertainty is stated too large."""
CLEARLY_BETTER = 6
"""Different latencies must fit the collectives better than equal ones by this many standard deviations. On 120
simulated runs each, 6 finds a difference in 1 % of those with equal latencies and in 71 % of those with 60 and 10 µs; 2
finds it in 4 % and 72 %."""
KNEE = 3.0
"""From this many spreads on, disagreement counts by its amount and no longer by its square."""


@dataclass(frozen=True)
class ClockFit:
    """The correction of each host and its certainty.

    `clocks` has the schema `model.CLOCKS`. `one_way`, `few_messages`: the pairs of hosts whose messages go in one
    direction only, and those for which the priors decide. `drift_variation_ns`: how far the clocks depart from constant
    rates; `slack_ns` what the hard bounds had to allow for, `contradiction` the hosts around which the observations
    contradict constant rates by more than that allows. `steps` (`CLOCK_STEPS`): the clocks that were set; the errors
    are not known where there is a contradiction or a `one_way` besides. `shown_twice`: the host on whose clock blocks
    overlap in one place (`overlaps.overlapping`). `asymmetric`: the latencies of the two directions were found to
    differ.
    """

    clocks: pl.DataFrame
    one_way: tuple[str, ...] = ()
    few_messages: tuple[str, ...] = ()
    drift_variation_ns: float = 0.0
    slack_ns: float = CAUSALITY_NS
    contradiction: tuple[str, ...] = ()
    steps: pl.DataFrame = field(default_factory=lambda: empty(CLOCK_STEPS))
    shown_twice: pl.DataFrame = field(default_factory=lambda: empty(SHOWN_TWICE))
    asymmetric: bool = False


def fit_clocks(
    messages: pl.DataFrame,
    collectives: pl.DataFrame,
    ranks: pl.DataFrame,
    *,
    edges: pl.DataFrame | None = None,
    without_wall_clock: Collection[str] = (),
) -> ClockFit:
    """The clock correction of every host in `ranks`, from what its ranks exchanged with those of other hosts.

    `messages`, `collectives`, `ranks` have the schemas of `model`; `edges` are pseudo messages (schema MESSAGES: the
    end of a producing block, the start of its consumer), used between hosts that exchange no messages. The corrected
    time is `t - offset_ns - round(drift * (t - reference_ns))`. Only differences between hosts can be observed: within
    each connected set of hosts the median correction is 0, not counting hosts `without_wall_clock`. A host without
    observations keeps its wall clock (status `wall`). The result does not depend on the order of rows, and shifting all
    times of one host changes nothing else.
    """
    return fit_observations(gather(messages, collectives, ranks, edges), ranks, without_wall_clock=without_wall_clock)


def fit_observations(
    data: Observations,
    ranks: pl.DataFrame,
    *,
    without_wall_clock: Collection[str] = (),
    steps: pl.DataFrame | None = None,
) -> ClockFit:
    """`fit_clocks` of gathered observations. `steps`: the times at which clocks were set (`clock_steps.CLOCK_STEPS`),
    with which they were gathered: the times of such a clock before and after are aligned separately."""
    if not data.observed.any():
        return ClockFit(apply.uncorrected(ranks, "single-host" if len(data.hosts) == 1 else "wall"))
    wall = np.array([host not in without_wall_clock for host in data.hosts])
    steps = empty(CLOCK_STEPS) if steps is None else steps
    component = _components(data)
    anchors = np.unique(component, return_index=True)[1]
    problem, few = (Problem.of(some, anchors) for some in (data, data.thinned(ENOUGH)))
    asymmetry = _asymmetry(few)
    if asymmetry is not None:
        problem, few = problem.with_asymmetry(asymmetry), few.with_asymmetry(asymmetry)
    solution = solve.fit(problem)
    mid, drift = uncertainty(few, solution, component)
    still = bool(np.all(np.abs(centred(solution.drift, component)) < 2 * drift))
    if still:
        problem, few = problem.without_drift(), few.without_drift()
        solution = replace(solve.fit(problem), drift=np.zeros(len(data.hosts)))
        mid, _ = uncertainty(few, solution, component)
    bound, slack, cycle = bounds.bounds(data, solution, component)
    variation = drift_variation(data, solution)
    sd = np.minimum(np.sqrt(mid**2 + drift**2 / 12 + variation**2), bound)
    if len(steps) and not cycle:
        slack, cycle = max((slack, []), bounds.impossible_round_trip(data, solution))
    one_way = _host_pairs(data, lambda there, back: np.minimum(there, back) == 0)
    if len(steps) and (
        cycle or one_way
    ):  # times on the wrong side of where a clock was set, or messages of other steps
        sd, bound = np.full((2, len(bound)), np.nan)
    return ClockFit(
        clocks=fit_tables.clocks(
            data, solution, component, sd, bound, unseen(data), still=still, wall=wall, steps=steps
        ),
        one_way=one_way,
        few_messages=_host_pairs(data, lambda there, back: there + back < FEW_MESSAGES),
        drift_variation_ns=variation * 1e3,
        slack_ns=slack * 1e3,
        contradiction=tuple(dict.fromkeys(data.hosts[h] for h in cycle)),
        steps=steps,
        asymmetric=asymmetry is not None,
    )


def _components(data: Observations) -> Ints:
    """Which hosts are connected: a component number per host, counted by the first host's name."""
    hosts = len(data.hosts)
    one = np.concatenate([data.source, data.member])
    other = np.concatenate([data.target, data.event + hosts])
    return np.unique(components(one, other, hosts + data.events)[:hosts], return_inverse=True)[1]


def _host_pairs(data: Observations, which: Callable[[Ints, Ints], NDArray[np.bool_]]) -> tuple[str, ...]:
    """The pairs of hosts, as "a – b", for whose numbers of messages there and back `which` holds."""
    hosts = len(data.hosts)
    low, high = np.minimum(data.source, data.target), np.maximum(data.source, data.target)
    pair, link = np.unique(low * hosts + high, return_inverse=True)
    count, onward = np.bincount(data.pair, minlength=len(low)), data.source < data.target
    there, back = (np.bincount(link[way], count[way], len(pair)) for way in (onward, ~onward))
    chosen = pair[which(there, back)].tolist()
    return tuple(f"{data.hosts[at // hosts]} – {data.hosts[at % hosts]}" for at in chosen)


def _asymmetry(problem: Problem) -> Floats | None:
    """About half the difference (µs) between the latencies of the two directions of each host pair, where collectives
    prove that they differ; else None."""
    provable = _connected_by_collectives(problem)
    if not provable.any():
        return None
    loose = problem.with_asymmetry(np.where(provable, 1000.0, SAME_LATENCY_US))
    tight, freed = solve.fit(problem), solve.fit(loose)
    free, members = int(provable.sum()), len(problem.observations.event)
    left = max(members - len(problem.geometry.event_size) - free, 1)
    spread = freed.member_us * np.sqrt(members / left)
    better = (_huber(tight.disagreement / spread) - _huber(freed.disagreement / spread)).sum()
    if better < free + CLEARLY_BETTER * np.sqrt(2 * free):
        return None
    latencies = solve.latencies_by_host_pair(loose, freed)[provable]
    about = float(np.sqrt(np.nanmean((latencies[:, 0] - latencies[:, 1]) ** 2))) / 2
    return np.where(provable, max(about, SAME_LATENCY_US), SAME_LATENCY_US)


def _connected_by_collectives(problem: Problem) -> NDArray[np.bool_]:
    """Of each host pair with messages in both directions: do collectives alone connect its two hosts?"""
    data, geometry = problem.observations, problem.geometry
    if not len(data.event) or not len(data.pair):
        return np.zeros(len(geometry.low), bool)
    label = components(data.member, data.event + geometry.hosts, geometry.hosts + len(geometry.event_size))
    both = np.bincount(geometry.link, minlength=len(geometry.low)) == 2
    return np.asarray((label[geometry.low] == label[geometry.high]) & both)


def _huber(r: Floats) -> Floats:
    away = np.abs(r)
    return np.where(away < KNEE, away**2, 2 * KNEE * away - KNEE**2)
