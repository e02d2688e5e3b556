"""How well a fit knows what it says: what resampling, halves of the data and their geometry leave open."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from trace_export.clocks.bounds import halves
from trace_export.clocks.linalg import solver
from trace_export.clocks.observations import Floats, Ints, Ties
from trace_export.clocks.solve import Problem, Solution, Weights

RESAMPLES = 16
ROUNDS = 4
"""Rounds of a refit, which starts where the fit ended."""
RESAMPLED = 100
"""So many messages of each directed pair are resampled; of more the uncertainty is stated too large."""
LEAST_SD_US = 0.5
SPREAD_OUT = 9.0
SCARCE = 10.0
"""How much larger than in the loss's round part the variance of messages really is, more so with fewer of them than
`SCARCE` each way. Found by comparison with simulated runs."""
COMMON_SPREAD_US = 10.0
"""The ends of one collective commonly lie so far apart; worth two observations."""
PROBED = 256
TIMES = 8
"""Into so many stretches the window is cut to see whether a clock wanders."""


@dataclass(frozen=True)
class Uncertainty:
    """Standard deviations of each host's place at mid-window and of its drift over the span (µs), and the largest
    difference (µs) between two fits on half of the data each."""

    mid: Floats
    drift: Floats
    holdout: float


def centred(values: Floats, component: Ints) -> Floats:
    """Without the mean of each component: what is common to all its hosts cannot be seen."""
    size = np.bincount(component)
    return np.asarray(values - (np.bincount(component, values) / size)[component])


def uncertainty(problem: Problem, component: Ints) -> Uncertainty:
    """The larger of: the scatter over resampled data, half the difference of the halves, what the data leave open."""

    def place(found: Solution) -> Floats:
        return centred(found.offset + found.drift / 2, component)

    draw = np.random.default_rng(problem.settings.seed)
    solution = problem.fit()
    places, drifts = [], []
    for _ in range(RESAMPLES):
        times, event_times = draw.exponential(size=len(problem.delay)), draw.exponential(size=len(problem.event_size))
        again = problem.fit(times, event_times, start=solution, rounds=ROUNDS)
        places.append(place(again))
        drifts.append(centred(again.drift, component))
    times, event_times = halves(problem.ties)
    odd = problem.fit(times, event_times, start=solution, rounds=2 * ROUNDS)
    even = problem.fit(1 - times, 1 - event_times, start=solution, rounds=2 * ROUNDS)
    apart = np.abs(place(odd) - place(even))
    open_mid, open_drift = _left_open(problem, solution, component)
    mid = np.maximum.reduce([np.std(places, axis=0), apart / 2, open_mid, np.full(len(apart), LEAST_SD_US)])
    drift = np.maximum(np.std(drifts, axis=0), open_drift)
    return Uncertainty(mid, drift, float(apart[problem.ties.used].max()))


def _left_open(problem: Problem, solution: Solution, component: Ints) -> tuple[Floats, Floats]:
    """The standard deviations that the data's geometry and the priors alone give (µs): at mid-window, of the drift.

    Of more than `PROBED` hosts only some are looked at; the others get the largest that was found.
    """
    weight = np.zeros(len(problem.delay))
    for kind, rows in problem.rows.items():
        weight[rows] = 1 / (solution.losses[kind].scale * solution.losses[kind].zone)
    count = np.bincount(problem.ties.pair, minlength=1)[problem.ties.pair]
    weight /= SPREAD_OUT * (1 + (SCARCE / count) ** 2) ** 2
    member = np.full(len(problem.ties.event), 1 / _member_variance(problem, solution))
    matrix, _, _ = problem.normal(Weights(weight, member))
    solved = solver(matrix)
    hosts, size = problem.hosts, np.bincount(component)
    rows = np.arange(0, hosts, 1 + (hosts - 1) // PROBED)
    own = -(component[:, None] == component[rows]).astype(float) / size[component[rows]]
    own[rows, np.arange(len(rows))] += 1
    found = []
    for of_offset, of_drift in ((1.0, 0.5), (0.0, 1.0)):
        probe = np.zeros((matrix.shape[0], len(rows)))
        probe[:hosts], probe[hosts : 2 * hosts] = of_offset * own, of_drift * own
        known = np.sqrt(np.maximum((probe * solved(probe)).sum(0), 0.0))
        everywhere = np.full(hosts, known.max())
        everywhere[rows] = known
        found.append(everywhere)
    return found[0], found[1]


def _member_variance(problem: Problem, solution: Solution) -> float:
    """How much (µs²) the end of a collective's member scatters: what was seen, and where little was seen what is
    common."""
    spare = len(problem.ties.event) - len(problem.event_size)
    if not len(problem.delay):
        spare -= 2 * int(problem.ties.used.sum()) - 2
    seen = max(spare, 0)
    return float((seen * solution.member_us**2 + 2 * COMMON_SPREAD_US**2) / (seen + 2))


def unsteadiness(ties: Ties, solution: Solution) -> float:
    """How far (µs, one standard deviation) a host's clock strays from a constant rate, as the messages show.

    In each stretch of the window the two ways of a host pair say how far its hosts are apart. What these places scatter
    more than the messages' own noise explains is the clocks' doing. 0 where that is not clearly so.
    """
    far = np.array([solution.losses[kind].far for kind in ties.kind.tolist()]) if len(ties.kind) else np.zeros(0)
    rows = pl.DataFrame({
        "pair": ties.pair, "time": np.minimum(ties.sent / ties.span_us * TIMES, TIMES - 1).astype(np.int64),
        "r": solution.residual,
    }).filter(solution.residual < far[ties.pair])  # fmt: skip
    place = rows.group_by("pair", "time").agg(pl.col("r").mean(), noise=pl.col("r").var() / pl.len()).drop_nulls()
    hosts = len(ties.hosts)
    ways = pl.DataFrame({
        "pair": np.arange(len(ties.source)), "to": ties.source * hosts + ties.target,
        "back": ties.target * hosts + ties.source,
    })  # fmt: skip
    place = place.join(ways, on="pair")
    both = place.filter(pl.col("to") < pl.col("back")).join(
        place, left_on=["back", "time"], right_on=["to", "time"], suffix="_back"
    )
    both = both.select("pair", apart=(pl.col("r") - pl.col("r_back")) / 2,
                       noise=(pl.col("noise") + pl.col("noise_back")) / 4)  # fmt: skip
    both = both.filter((pl.len() >= 3).over("pair"))
    if both.is_empty():
        return 0.0
    strays = both.select(((pl.col("apart") - pl.col("apart").mean().over("pair")) ** 2).mean()).item()
    noise = both["noise"].to_numpy().mean() * (1 - 1 / TIMES)
    excess = strays - noise
    return float(np.sqrt(excess / 2)) if excess > 3 * noise * np.sqrt(2 / len(both)) else 0.0
