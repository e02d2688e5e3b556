"""The robust fit: one offset and one drift per host that agree best with all observations, by reweighted least squares.

Messages: the delay of a message is a fixed latency plus noise to one side, so the fitted line follows the lower
envelope of the delays (an asymmetric Huber loss), and a message that is far too late has no weight. Collectives: all
members end together (a symmetric Huber loss about the event's own time).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from trace_export.clocks.linalg import solver
from trace_export.clocks.loss import Loss
from trace_export.clocks.normal_equations import normal_equations
from trace_export.clocks.observations import Floats
from trace_export.clocks.problem import TOLERANCE_US, Problem, Weights

FIRST_MESSAGE_US, FIRST_MEMBER_US = 50.0, 10.0
"""The standard deviations of the first round, which has no residuals yet. Ten times larger or smaller ones lead to the
same place in most of 120 simulated runs (the median change is below 0.01
µs); with two or three messages in each direction, where the loss has several minima, it may be another one."""
ROUNDS = 30
MAD = 1.4826
"""A normal distribution's standard deviation in units of its median absolute deviation."""
COLLECTIVE_US, HUBER = 2.0, 1.345
"""The least spread of a collective's ends, and where its loss turns linear, in units of that spread."""


@dataclass(frozen=True)
class Solution:
    """`offset` (µs) and `drift` (µs over the span) per host, `latency` (µs) per directed pair.

    `residual` is that of each message, `disagreement` that of each member of a collective, in µs; `losses` by kind of
    message; `member_us` is the spread of the collectives' ends.
    """

    offset: Floats
    drift: Floats
    latency: Floats
    residual: Floats
    disagreement: Floats
    losses: dict[int, Loss] = field(default_factory=dict)
    member_us: float = 2.0


def fit(problem: Problem) -> Solution:
    """The robust solution."""
    solution = _with_losses(problem, solve(problem, _first_weights(problem)))
    for _ in range(ROUNDS - 1):
        last = solution
        solution = _with_losses(problem, solve(problem, _weights(problem, last)))
        if _change(last, solution) < TOLERANCE_US:
            break
    return solution


def solve(problem: Problem, weights: Weights) -> Solution:
    """The least-squares solution under fixed `weights`, without losses."""
    geometry, data, hosts = problem.geometry, problem.observations, problem.geometry.hosts
    matrix, right, latencies = normal_equations(problem, weights)
    solution = solver(matrix)(right)
    offset, drift = solution[:hosts], solution[hosts : 2 * hosts]
    latency = latencies.of(solution)[geometry.link, geometry.slot] if len(geometry.delay) else np.zeros(0)
    line = offset[data.target] - offset[data.source] + latency
    residual = geometry.delay - line[data.pair] - drift[data.target][data.pair] * geometry.x_received
    residual += drift[data.source][data.pair] * geometry.x_sent
    return Solution(offset, drift, latency, residual, _disagreement(problem, offset, drift, weights.member))


def latencies_by_host_pair(problem: Problem, solution: Solution) -> Floats:
    """The two latencies of each host pair, host pairs × 2; nan where no message went in that direction."""
    geometry = problem.geometry
    both = np.full((len(geometry.low), 2), np.nan)
    both[geometry.link, geometry.slot] = solution.latency
    return both


def _disagreement(problem: Problem, offset: Floats, drift: Floats, weight: Floats) -> Floats:
    """How far each member's end lies from its collective's, scaled so that small collectives count alike."""
    data, geometry = problem.observations, problem.geometry
    if not len(data.event):
        return np.zeros(0)
    end = data.left - offset[data.member] - drift[data.member] * data.left / geometry.span
    total = np.bincount(data.event, weight)
    mean = np.bincount(data.event, weight * end) / np.where(total > 0, total, 1.0)
    size = geometry.event_size[data.event]
    return (end - mean[data.event]) * np.sqrt(size / np.maximum(size - 1, 1))


def _change(a: Solution, b: Solution) -> float:
    return float(max(np.abs(a.offset - b.offset).max(), np.abs(a.drift - b.drift).max()))


def _first_weights(problem: Problem) -> Weights:
    messages, members = len(problem.geometry.delay), len(problem.observations.event)
    return Weights(np.full(messages, 1 / FIRST_MESSAGE_US**2), np.full(members, 1 / FIRST_MEMBER_US**2))


def _with_losses(problem: Problem, solution: Solution) -> Solution:
    """`solution` with the losses that fit its residuals."""
    geometry = problem.geometry
    unknowns = 2 * np.count_nonzero(problem.observations.observed) + len(geometry.low)
    fitted = min(unknowns / max(len(geometry.delay), 1), 0.5)
    losses = {kind: Loss.of(solution.residual[rows], fitted) for kind, rows in geometry.rows.items()}
    spread = COLLECTIVE_US
    if len(solution.disagreement):
        spread = max(MAD * float(np.median(np.abs(solution.disagreement))), spread)
    return replace(solution, losses=losses, member_us=spread)


def _weights(problem: Problem, solution: Solution) -> Weights:
    """The least-squares weights that give the same pull as the losses at the residuals of `solution`."""
    message = np.empty(len(problem.geometry.delay))
    for kind, rows in problem.geometry.rows.items():
        message[rows] = solution.losses[kind].weight(solution.residual[rows])
    away, spread = np.abs(solution.disagreement), solution.member_us
    member = np.minimum(1.0, HUBER * spread / np.maximum(away, 1e-9)) / spread**2
    return Weights(message, member)
