"""Uncertainty of the fit: its posterior covariance, and the variation of the drift."""

from __future__ import annotations

import numpy as np
import polars as pl

from trace_export.clocks.linalg import solver
from trace_export.clocks.normal_equations import normal_equations
from trace_export.clocks.observations import Floats, Ints, Observations
from trace_export.clocks.problem import Problem, Weights
from trace_export.clocks.solve import Solution

LEAST_SD_US = 0.5
SPREAD_OUT = 9.0
SCARCE = 10.0
"""The variance of messages is taken to be this many times that in the loss's round part, and more with fewer than
`SCARCE` in each direction. On 120 simulated runs (744 hosts) 93 % of the hosts lay within one standard deviation of the
truth and 99.9 % within two; with 1 and 0 it was 75 % and 93 %."""
COMMON_SPREAD_US = 10.0
"""The usual distance of the ends of one collective; it counts as two observations."""
PROBED = 256
STRETCHES = 8
"""The window is divided into this many stretches to see whether a clock's drift varies."""


def centred(values: Floats, component: Ints) -> Floats:
    """Without the mean of each component: an error common to all its hosts cannot be observed."""
    size = np.bincount(component)
    return np.asarray(values - (np.bincount(component, values) / size)[component])


def uncertainty(problem: Problem, solution: Solution, component: Ints) -> tuple[Floats, Floats]:
    """The standard deviations of each host's position at mid-window and of its drift over the span (µs), relative to
    the mean of its component: the posterior covariance.

    Of more than `PROBED` hosts only some are solved for; the others get the largest of their values.
    """
    geometry, data = problem.geometry, problem.observations
    weight = np.zeros(len(geometry.delay))
    for kind, rows in geometry.rows.items():
        weight[rows] = 1 / (solution.losses[kind].scale * solution.losses[kind].zone)
    count = np.bincount(data.pair, minlength=1)[data.pair]
    weight /= SPREAD_OUT * (1 + (SCARCE / count) ** 2) ** 2
    member = np.full(len(data.event), 1 / member_variance(problem, solution))
    matrix, _, _ = normal_equations(problem, Weights(weight, member))
    solved = solver(matrix)
    hosts, size = geometry.hosts, np.bincount(component)
    rows = np.arange(0, hosts, 1 + (hosts - 1) // PROBED)
    unit = -(component[:, None] == component[rows]).astype(float) / size[component[rows]]
    unit[rows, np.arange(len(rows))] += 1
    deviations = []
    for of_offset, of_drift in ((1.0, 0.5), (0.0, 1.0)):
        probe = np.zeros((matrix.shape[0], len(rows)))
        probe[:hosts], probe[hosts : 2 * hosts] = of_offset * unit, of_drift * unit
        deviation = np.sqrt(np.maximum((probe * solved(probe)).sum(0), 0.0))
        everywhere = np.full(hosts, deviation.max())
        everywhere[rows] = deviation
        deviations.append(everywhere)
    return np.maximum(deviations[0], LEAST_SD_US), deviations[1]


def member_variance(problem: Problem, solution: Solution) -> float:
    """The variance (µs²) of the end of a collective's member: as observed, or the usual one if there are few
    observations."""
    data, geometry = problem.observations, problem.geometry
    spare = len(data.event) - len(geometry.event_size)
    if not len(geometry.delay):
        spare -= 2 * int(data.observed.sum()) - 2
    seen = max(spare, 0)
    return float((seen * solution.member_us**2 + 2 * COMMON_SPREAD_US**2) / (seen + 2))


def drift_variation(data: Observations, solution: Solution) -> float:
    """How far (µs, one standard deviation) a host's clock departs from a constant rate, as the messages show.

    In each stretch of the window the two directions of a host pair give the distance of its hosts. Scatter of these
    distances beyond the noise of the messages is due to the clocks. 0 if that is not clear.

    On simulated clocks that depart from a constant rate by 5 and 20 µs the error was 4.1 and 16.4 µs (root mean
    square), and 3.9 and 14.3 µs were stated; without this 2.2 and 5.6 µs.
    """
    far = np.array([solution.losses[kind].far for kind in data.kind.tolist()]) if len(data.kind) else np.zeros(0)
    rows = pl.DataFrame({
        "pair": data.pair,
        "time": np.minimum(data.sent / data.span_us * STRETCHES, STRETCHES - 1).astype(np.int64),
        "r": solution.residual,
    }).filter(solution.residual < far[data.pair])  # fmt: skip
    means = rows.group_by("pair", "time").agg(pl.col("r").mean(), noise=pl.col("r").var() / pl.len()).drop_nulls()
    means = means.sort("pair", "time")  # so that sums are the same in every run, to the last digit
    hosts = len(data.hosts)
    directions = pl.DataFrame({
        "pair": np.arange(len(data.source)), "to": data.source * hosts + data.target,
        "back": data.target * hosts + data.source,
    })  # fmt: skip
    means = means.join(directions, on="pair", maintain_order="left")
    both = means.filter(pl.col("to") < pl.col("back")).join(
        means, left_on=["back", "time"], right_on=["to", "time"], suffix="_back", maintain_order="left"
    )
    both = both.select("pair", apart=(pl.col("r") - pl.col("r_back")) / 2,
                       noise=(pl.col("noise") + pl.col("noise_back")) / 4)  # fmt: skip
    both = both.filter((pl.len() >= 3).over("pair"))
    if both.is_empty():
        return 0.0
    variance = both.select(((pl.col("apart") - pl.col("apart").mean().over("pair")) ** 2).mean()).item()
    noise = both["noise"].to_numpy().mean() * (1 - 1 / STRETCHES)
    excess = variance - noise
    return float(np.sqrt(excess / 2)) if excess > 3 * noise * np.sqrt(2 / len(both)) else 0.0
