"""The normal equations of a `Problem` under fixed weights, with latencies and event times eliminated.

The unknowns are the offsets a (H) and the drifts d over the span (H), in this order, then the times T_c of large
collectives. A message has the residual e = z - (a_j + d_j x_r) + (a_i + d_i x_s) - L, a member of a collective u = t -
a - d x - T_c; one round minimises Σ w e² + Σ w u² + priors. Eliminated unknowns leave their Schur complement.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trace_export.clocks.linalg import Matrix, bordered, matrix
from trace_export.clocks.observations import Floats, Ints
from trace_export.clocks.problem import FREE, Geometry, Problem, Weights

RIDGE = 1 + 1e-12
"""Factor on the diagonal: keeps the matrix from being singular if elimination leaves only rounding errors."""
SMALL_EVENT = 16
"""A collective of more members keeps its time as an unknown, so that a sparse matrix stays sparse."""
SIGNS = np.array([-1.0, -1.0, 1.0, 1.0])
"""A message's coefficients of (a_i, d_i, a_j, d_j) are (-1, -x_s, 1, x_r)."""
PRODUCTS = np.outer(SIGNS, SIGNS) * np.where(np.eye(4), RIDGE, 1)
"""The products of each two of them, with the ridge."""


@dataclass(frozen=True)
class Latencies:
    """The eliminated latencies: per host pair the inverse D⁻¹ (2 × 2) of their own block, their coupling C (2 × 4) to
    the unknowns `columns` (4) of the two hosts, and their right side g (2)."""

    inverse: Floats
    coupling: Floats
    right: Floats
    columns: Ints

    @staticmethod
    def none() -> Latencies:
        return Latencies(np.zeros((0, 2, 2)), np.zeros((0, 2, 4)), np.zeros((0, 2)), np.zeros((0, 4), np.int64))

    def of(self, solution: Floats) -> Floats:
        """The latencies (host pairs × 2 directions) that belong to the unknowns `solution`: D⁻¹ (g - C solution)."""
        rest = self.right[:, :, None] - self.coupling @ solution[self.columns][:, :, None]
        return np.asarray((self.inverse @ rest)[:, :, 0])


def normal_equations(problem: Problem, weights: Weights) -> tuple[Matrix, Floats, Latencies]:
    """Matrix and right side over offsets, drifts and the times of large collectives; and the eliminated latencies."""
    geometry, hosts = problem.geometry, problem.geometry.hosts
    every = np.arange(2 * hosts)
    total, right, latencies = _matrix(geometry, every, every, problem.prior), np.zeros(2 * hosts), Latencies.none()
    if len(geometry.delay):
        part, right, latencies = message_part(problem, weights.message)
        total = total + part
    if not len(problem.observations.event):
        return total, right, latencies
    events = collective_part(geometry, weights.member)
    total = total + events.matrix
    if len(events.large):
        total = bordered(total, events.border, events.large)
    return total, np.concatenate([right + events.right, events.large_right]), latencies


def message_part(problem: Problem, w: Floats) -> tuple[Matrix, Floats, Latencies]:
    """The messages' part of the matrix and the right side, with the latencies eliminated; `w` weighs each message.

    All of it follows from nine sums per directed pair i → j, named by what w is multiplied with: x_s, x_r, z.
    """
    geometry, data = problem.geometry, problem.observations
    x_s, x_r, z = geometry.x_sent, geometry.x_received, geometry.delay
    w_s, w_r = w * x_s, w * x_r
    s, s_s, s_r, s_ss, s_rr, s_sr, s_z, s_sz, s_rz = (
        np.add.reduceat(v, data.first) for v in (w, w_s, w_r, w_s * x_s, w_r * x_r, w_s * x_r, w * z, w_s * z, w_r * z)
    )
    moments = [[s, s_s, s, s_r], [s_s, s_ss, s_s, s_sr], [s, s_s, s, s_r], [s_r, s_sr, s_r, s_rr]]
    block: Floats = np.array(moments).transpose(2, 0, 1) * PRODUCTS
    columns = geometry.pair_columns
    coupling = np.array([s, s_s, s, s_r]).T * SIGNS
    latencies = _latencies(problem, s, s_z, coupling)
    reduced = np.swapaxes(latencies.coupling, 1, 2) @ latencies.inverse
    size = 2 * geometry.hosts
    part = _blocks(geometry, columns, block) - _blocks(geometry, latencies.columns, reduced @ latencies.coupling)
    right = _sums(columns, np.array([s_z, s_sz, s_z, s_rz]).T * SIGNS, size)
    right -= _sums(latencies.columns, reduced @ latencies.right[:, :, None], size)
    return part, right, latencies


def _latencies(problem: Problem, s: Floats, s_z: Floats, coupling: Floats) -> Latencies:
    """The latencies' own block, coupling and right side per host pair, from the sums per directed pair."""
    geometry = problem.geometry
    link, slot, count = geometry.link, geometry.slot, len(geometry.low)
    diagonal = problem.latency_prior.copy()
    diagonal[link, slot, slot] += s
    full = np.zeros((count, 2, 4))
    full[link, slot] = np.where(slot[:, None] == 0, coupling, coupling[:, [2, 3, 0, 1]])
    right = np.zeros((count, 2))
    right[link, slot] = s_z
    return Latencies(np.asarray(np.linalg.inv(diagonal), np.float64), full, right, geometry.link_columns)


@dataclass(frozen=True)
class Events:
    """The collectives' part: matrix and right side over offsets and drifts with the times of small ones eliminated; of
    large ones the border (n × 2H), its diagonal and its right side."""

    matrix: Matrix
    right: Floats
    border: Matrix
    large: Floats
    large_right: Floats


def collective_part(geometry: Geometry, w: Floats) -> Events:
    """The collectives' part; `w` weighs each member. A collective's time T_c is the weighted mean of its members'
    corrected ends, so that eliminating it subtracts the outer product of the members' coefficients."""
    data, hosts, count = geometry.observations, geometry.hosts, len(geometry.event_size)
    x, t, size = geometry.x_left, data.left, 2 * geometry.hosts
    columns = np.concatenate([data.member, data.member + hosts])
    event, use = np.tile(data.event, 2), np.concatenate([w, w * x])
    weight, weighted_ends = _sums(data.event, w, count) + FREE, _sums(data.event, w * t, count)
    border = _matrix(geometry, event, columns, use, count)
    scaled = _matrix(geometry, event, columns, use / weight[event], count)
    large = np.flatnonzero((geometry.event_size > SMALL_EVENT) & (not geometry.dense))
    inner, inner_right = border, weighted_ends
    if len(large):
        small = np.flatnonzero(geometry.event_size <= SMALL_EVENT)
        inner, scaled, inner_right = border[small], scaled[small], weighted_ends[small]
    s, s_x, s_xx = (_sums(data.member, v, hosts) for v in (w * RIDGE, w * x, w * x**2 * RIDGE))
    members = np.stack([s, s_x, s_x, s_xx], -1).reshape(-1, 2, 2)
    each = np.arange(hosts)
    part = _blocks(geometry, np.stack([each, each + hosts], -1), members) - inner.T @ scaled
    right = _sums(columns, np.tile(t, 2) * use, size) - scaled.T @ inner_right
    return Events(part, right, border[large], weight[large], weighted_ends[large])


def _matrix(geometry: Geometry, rows: Ints, columns: Ints, values: Floats, height: int | None = None) -> Matrix:
    """The matrix over offsets and drifts, with `height` rows if these are something else."""
    size = 2 * geometry.hosts
    return matrix(rows, columns, values, (size if height is None else height, size), dense=geometry.dense)


def _blocks(geometry: Geometry, columns: Ints, blocks: NDArray[np.float64]) -> Matrix:
    """The sum of the square `blocks` (n × k × k), whose rows and columns are those of `columns` (n × k)."""
    size = columns.shape[1]
    return _matrix(geometry, columns[:, :, None].repeat(size, 2), columns[:, None].repeat(size, 1), blocks)


def _sums(columns: Ints, values: Floats, size: int) -> Floats:
    return np.asarray(np.bincount(columns.ravel(), values.ravel(), size), np.float64)
