"""The robust fit itself: one offset and one drift per host that make all ties agree, by reweighted least squares.

Messages: the delay of a message is a fixed lag plus noise to one side, so the fitted line hugs the lower envelope of
the delays (an asymmetric Huber loss); a message that is far too late says nothing and loses its pull. Collectives: all
members end together (a symmetric Huber loss about the event's own time). The unknown lags and event times are
eliminated, so that what is solved has two unknowns per host whatever the number of messages.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trace_export.clocks.linalg import Matrix, bordered, matrix, solver
from trace_export.clocks.loss import Loss, Settings
from trace_export.clocks.observations import Floats, Ints, Ties

RIDGE = 1 + 1e-12
"""Keeps the matrix from being singular where what is eliminated leaves nothing but rounding errors."""
SMALL_EVENT = 16
"""A collective of more members keeps its time as an unknown, so that a sparse matrix stays sparse."""
FEW_HOSTS = 32
MANY_EVENTS = 1 << 14
"""More hosts than the one, or collectives than the other, make sparse matrices worth their while."""


@dataclass(frozen=True)
class Weights:
    message: Floats
    member: Floats


@dataclass(frozen=True)
class Solution:
    """`offset` µs and `drift` (µs over the span) per host, `lag` per directed pair, residuals per row, in µs."""

    offset: Floats
    drift: Floats
    lag: Floats
    residual: Floats
    disagreement: Floats
    losses: dict[int, Loss] = field(default_factory=dict)
    member_us: float = 2.0


class Problem:
    """The least-squares system of `ties`; `anchors` are the hosts held at offset 0, one per connected component."""

    def __init__(self, ties: Ties, anchors: Ints, settings: Settings) -> None:
        self.ties, self.anchors, self.settings = ties, anchors, settings
        self.hosts = len(ties.hosts)
        self.dense = self.hosts <= FEW_HOSTS and len(self.event_size) <= MANY_EVENTS
        span = ties.span_us
        self.span = span
        self.x_sent, self.x_received = ties.sent / span, ties.received / span
        self.delay = ties.received - ties.sent
        low, high = np.minimum(ties.source, ties.target), np.maximum(ties.source, ties.target)
        unordered, self.link = np.unique(low * self.hosts + high, return_inverse=True)
        self.low, self.high = unordered // self.hosts, unordered % self.hosts
        self.slot = (ties.source > ties.target).astype(np.int64)
        self.asymmetry_us = np.full(len(unordered), settings.same_lag_us)
        self.drift_us = settings.drift_ppm * 1e-6 * span
        kinds = np.unique(ties.kind).tolist()
        rows = ties.kind[ties.pair]
        self.rows = {k: slice(None) if len(kinds) == 1 else np.flatnonzero(rows == k) for k in kinds}

    def without_drift(self) -> Problem:
        """The same system with all rates taken to be equal."""
        still = copy(self)
        still.drift_us = self.settings.tolerance_us * 1e-3
        return still

    def with_asymmetry(self, asymmetry_us: Floats) -> Problem:
        """The same system with another notion of how much the two lags of each host pair may differ."""
        loose = copy(self)
        loose.asymmetry_us = asymmetry_us
        return loose

    def lags(self, found: Solution) -> Floats:
        """The two lags of each host pair, host pairs × 2; nan where no message went that way."""
        both = np.full((len(self.low), 2), np.nan)
        both[self.link, self.slot] = found.lag
        return both

    @cached_property
    def event_size(self) -> Ints:
        return np.bincount(self.ties.event) if len(self.ties.event) else np.zeros(0, np.int64)

    def fit(self, times: Floats | None = None, event_times: Floats | None = None, start: Solution | None = None,
            rounds: int | None = None) -> Solution:  # fmt: skip
        """The robust solution; `times` counts each message, `event_times` each collective (for resampling).

        With `start` its losses are kept and its weights are where the search begins.
        """
        weights = self._first_weights() if start is None else self._weights(start)
        found: Solution | None = start
        for _ in range(rounds or self.settings.rounds):
            counted = Weights(
                weights.message if times is None else weights.message * times,
                weights.member if event_times is None else weights.member * event_times[self.ties.event],
            )
            last = found
            found = self.solve(counted)
            if start is None:
                found = self._with_losses(found)
            else:
                found = replace(found, losses=start.losses, member_us=start.member_us)
            if last is not None and self._change(last, found) < self.settings.tolerance_us:
                break
            weights = self._weights(found)
        assert found is not None
        return found

    @staticmethod
    def _change(a: Solution, b: Solution) -> float:
        return float(max(np.abs(a.offset - b.offset).max(), np.abs(a.drift - b.drift).max()))

    def _first_weights(self) -> Weights:
        return Weights(np.full(len(self.delay), 1 / 50.0**2), np.full(len(self.ties.event), 1 / 10.0**2))

    def _with_losses(self, found: Solution) -> Solution:
        unknowns = 2 * np.count_nonzero(self.ties.used) + len(self.low)
        fitted = min(unknowns / max(len(self.delay), 1), 0.5)
        losses = {kind: Loss.of(found.residual[rows], self.settings, fitted) for kind, rows in self.rows.items()}
        spread = self.settings.collective_us
        if len(found.disagreement):
            spread = max(1.4826 * float(np.median(np.abs(found.disagreement))), spread)
        return replace(found, losses=losses, member_us=spread)

    def _weights(self, found: Solution) -> Weights:
        message = np.empty(len(self.delay))
        for kind, rows in self.rows.items():
            message[rows] = found.losses[kind].weight(found.residual[rows])
        away = np.abs(found.disagreement)
        spread = found.member_us
        member = np.minimum(1.0, self.settings.huber * spread / np.maximum(away, 1e-9)) / spread**2
        return Weights(message, member)

    def solve(self, weights: Weights) -> Solution:
        """The least-squares solution under fixed `weights`."""
        normal, right, lags = self.normal(weights)
        found = solver(normal)(right)
        offset, drift = found[: self.hosts], found[self.hosts : 2 * self.hosts]
        lag = lags.back(found)[self.link, self.slot] if len(self.delay) else np.zeros(0)
        ties = self.ties
        line = offset[ties.target] - offset[ties.source] + lag
        residual = self.delay - line[ties.pair] - drift[ties.target][ties.pair] * self.x_received
        residual += drift[ties.source][ties.pair] * self.x_sent
        return Solution(offset, drift, lag, residual, self._disagreement(offset, drift, weights.member))

    def _disagreement(self, offset: Floats, drift: Floats, weight: Floats) -> Floats:
        """How far each member's end lies from its collective's, scaled so that small collectives count alike."""
        ties = self.ties
        if not len(ties.event):
            return np.zeros(0)
        end = ties.left - offset[ties.member] - drift[ties.member] * ties.left / self.span
        total = np.bincount(ties.event, weight)
        mean = np.bincount(ties.event, weight * end) / np.where(total > 0, total, 1.0)
        size = self.event_size[ties.event]
        return (end - mean[ties.event]) * np.sqrt(size / np.maximum(size - 1, 1))

    def normal(self, weights: Weights) -> tuple[Matrix, Floats, Lags]:
        """The normal equations over offsets, drifts and the times of large collectives: matrix, right side, lags."""
        hosts = self.hosts
        prior = np.zeros(2 * hosts)
        prior[:hosts] = np.where(self.ties.used, 1e-12, 1.0)
        prior[self.anchors] += 1e6
        prior[hosts:] = 1 / self.drift_us**2
        every = np.arange(2 * hosts)
        total, right, lags = self._matrix(every, every, prior), np.zeros(2 * hosts), Lags.none()
        if len(self.delay):
            part, right, lags = self._messages(weights.message)
            total = total + part
        if not len(self.ties.event):
            return total, right, lags
        part, force, border, own, own_force = self._collectives(weights.member)
        total = total + part
        if len(own):
            total = bordered(total, border, own)
        return total, np.concatenate([right + force, own_force]), lags

    def _matrix(self, rows: Ints, columns: Ints, values: Floats, height: int | None = None) -> Matrix:
        """The matrix over offsets and drifts, with `height` rows if these are something else."""
        size = 2 * self.hosts
        return matrix(rows, columns, values, (size if height is None else height, size), dense=self.dense)

    def _scatter(self, columns: Ints, blocks: NDArray[np.float64]) -> Matrix:
        """The sum of the square `blocks` (n × k × k), whose rows and columns are those of `columns` (n × k)."""
        rows = np.broadcast_to(columns[:, :, None], blocks.shape)
        return self._matrix(rows, np.broadcast_to(columns[:, None, :], blocks.shape), blocks)

    def _messages(self, w: Floats) -> tuple[Matrix, Floats, Lags]:
        """The messages' part with the lags eliminated, from nine sums per directed pair."""
        first = self.ties.first
        xi, xj, z = self.x_sent, self.x_received, self.delay
        wi, wj = w * xi, w * xj
        s, si, sj, sii, sjj, sij, y, yi, yj = (
            np.add.reduceat(v, first) for v in (w, wi, wj, wi * xi, wj * xj, wi * xj, w * z, wi * z, wj * z)
        )
        block = np.stack([s, si, -s, -sj, si, sii, -si, -sij, -s, -si, s, sj, -sj, -sij, sj, sjj], -1).reshape(-1, 4, 4)
        block[:, range(4), range(4)] *= RIDGE
        at = self._columns(self.ties.source, self.ties.target)
        couple = np.stack([-s, -si, s, sj], -1)
        lags = self._lags(s, y, np.where(self.slot[:, None] == 0, couple, couple[:, [2, 3, 0, 1]]))
        reduced = np.swapaxes(lags.couple, 1, 2) @ lags.inverse
        size = 2 * self.hosts
        part = self._scatter(at, block) - self._scatter(lags.columns, reduced @ lags.couple)
        right = _sums(at, np.stack([-y, -yi, y, yj], -1), size)
        right -= _sums(lags.columns, reduced @ lags.force[:, :, None], size)
        return part, right, lags

    def _columns(self, one: Ints, other: Ints) -> Ints:
        return np.stack([one, one + self.hosts, other, other + self.hosts], -1)

    def _lags(self, s: Floats, y: Floats, couple: Floats) -> Lags:
        """Both directed lags of each host pair, tied to each other and to 0 by what is thought likely beforehand."""
        count = len(self.low)
        own = np.zeros((count, 2, 2))
        own[self.link, self.slot, self.slot] = s
        mean, half = 0.25 / self.settings.lag_us**2, 0.25 / self.asymmetry_us**2
        own = own + mean + np.array([[1, -1], [-1, 1]]) * half[:, None, None]
        full = np.zeros((count, 2, 4))
        full[self.link, self.slot] = couple
        force = np.zeros((count, 2))
        force[self.link, self.slot] = y
        return Lags(np.asarray(np.linalg.inv(own), np.float64), full, force, self._columns(self.low, self.high))

    def _collectives(self, w: Floats) -> tuple[Matrix, Floats, Matrix, Floats, Floats]:
        """The collectives' part: those with their time eliminated, and large ones as a border of a sparse matrix."""
        ties, hosts, count = self.ties, self.hosts, len(self.event_size)
        x, size = ties.left / self.span, 2 * self.hosts
        columns = np.concatenate([ties.member, ties.member + hosts])
        event, use = np.tile(ties.event, 2), np.concatenate([w, w * x])
        own, pull = _sums(ties.event, w, count) + 1e-12, _sums(ties.event, w * ties.left, count)
        border = self._matrix(event, columns, use, count)
        scaled = self._matrix(event, columns, use / own[event], count)
        kept = np.flatnonzero((self.event_size > SMALL_EVENT) & (not self.dense))
        if len(kept):
            small = np.flatnonzero(self.event_size <= SMALL_EVENT)
            inner, scaled, inner_pull = border[small], scaled[small], pull[small]
        else:
            inner, inner_pull = border, pull
        members = np.stack([_sums(ties.member, v, hosts) for v in (w * RIDGE, w * x, w * x, w * x**2 * RIDGE)], -1)
        each = np.arange(hosts)
        part = self._scatter(np.stack([each, each + hosts], -1), members.reshape(-1, 2, 2)) - inner.T @ scaled
        right = _sums(columns, np.tile(ties.left, 2) * use, size) - scaled.T @ inner_pull
        return part, right, border[kept], own[kept], pull[kept]


@dataclass(frozen=True)
class Lags:
    """What was eliminated: per host pair the inverse of the lags' own block, its coupling to the hosts, its force."""

    inverse: Floats
    couple: Floats
    force: Floats
    columns: Ints

    @staticmethod
    def none() -> Lags:
        return Lags(np.zeros((0, 2, 2)), np.zeros((0, 2, 4)), np.zeros((0, 2)), np.zeros((0, 4), np.int64))

    def back(self, found: Floats) -> Floats:
        """The lags (host pairs × 2 directions) that belong to the solution `found`."""
        rest = self.force[:, :, None] - self.couple @ found[self.columns][:, :, None]
        return np.asarray((self.inverse @ rest)[:, :, 0])


def _sums(columns: Ints, values: Floats, size: int) -> Floats:
    return np.asarray(np.bincount(columns.ravel(), values.ravel(), size), np.float64)
