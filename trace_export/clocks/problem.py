"""The system that the clock fit solves: the observations as coefficients, and the priors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from trace_export.clocks.observations import Floats, Ints, Observations

FEW_HOSTS = 32
MANY_EVENTS = 1 << 14
"""With more hosts than the first, or more collectives than the second, matrices are sparse."""
ANCHORED, UNOBSERVED, FREE = 1e6, 1.0, 1e-12
"""Weights (1/µs²) of the prior offset 0: of an anchor, of a host without observations, of any other."""


DRIFT_PPM, LATENCY_US = 20.0, 2000.0
"""The priors of a host's rate and of a latency: one standard deviation about 0."""
SAME_LATENCY_US = 0.01
"""The prior of half the difference between a host pair's two latencies if they are assumed equal."""
TOLERANCE_US = 0.01
"""The fit has converged if a round moves no clock by more than this."""


@dataclass(frozen=True)
class Geometry:
    """The part of the system that depends only on the observations.

    `x_sent`, `x_received`, `x_left`: times as a share of the `span` (µs). `delay`: received - sent, in µs. `low`,
    `high`: the hosts of each host pair; `link`, `slot`: the host pair of each directed pair, and which of its two
    directions it is. `rows`: the messages of each kind. `event_size`: the members of each collective.
    """

    observations: Observations
    span: float
    x_sent: Floats
    x_received: Floats
    x_left: Floats
    delay: Floats
    low: Ints
    high: Ints
    link: Ints
    slot: Ints
    rows: dict[int, slice | Ints]
    event_size: Ints

    @staticmethod
    def of(observed: Observations) -> Geometry:
        hosts, span = len(observed.hosts), observed.span_us
        low, high = np.minimum(observed.source, observed.target), np.maximum(observed.source, observed.target)
        unordered, link = np.unique(low * hosts + high, return_inverse=True)
        kinds = np.unique(observed.kind).tolist()
        kind_of_row = observed.kind[observed.pair]
        return Geometry(
            observations=observed,
            span=span,
            x_sent=observed.sent / span,
            x_received=observed.received / span,
            x_left=observed.left / span,
            delay=observed.received - observed.sent,
            low=unordered // hosts,
            high=unordered % hosts,
            link=link,
            slot=(observed.source > observed.target).astype(np.int64),
            rows={k: slice(None) if len(kinds) == 1 else np.flatnonzero(kind_of_row == k) for k in kinds},
            event_size=np.bincount(observed.event) if len(observed.event) else np.zeros(0, np.int64),
        )

    @cached_property
    def hosts(self) -> int:
        return len(self.observations.hosts)

    @cached_property
    def pair_columns(self) -> Ints:
        """The columns of the unknowns (a_i, d_i, a_j, d_j) of each directed pair i → j: all offsets, then all
        drifts."""
        return self._columns(self.observations.source, self.observations.target)

    @cached_property
    def link_columns(self) -> Ints:
        """The same of each host pair, the lower host first."""
        return self._columns(self.low, self.high)

    def _columns(self, one: Ints, other: Ints) -> Ints:
        return np.stack([one, one + self.hosts, other, other + self.hosts], -1)

    @property
    def dense(self) -> bool:
        """Whether dense matrices are faster."""
        return self.hosts <= FEW_HOSTS and len(self.event_size) <= MANY_EVENTS


@dataclass(frozen=True)
class Problem:
    """A least-squares system: one offset and one drift per host, two latencies per host pair, a time per collective.

    `anchors` are the hosts held at offset 0, one per connected component; `drift_us` is the prior of the drift over the
    span, `asymmetry_us` that of half the difference between the two latencies of each host pair.
    """

    geometry: Geometry
    anchors: Ints
    drift_us: float
    asymmetry_us: Floats

    @staticmethod
    def of(observed: Observations, anchors: Ints) -> Problem:
        """The system of `observed` with drift, and with equal latencies in both directions."""
        geometry = Geometry.of(observed)
        drift_us = DRIFT_PPM * 1e-6 * geometry.span
        return Problem(geometry, anchors, drift_us, np.full(len(geometry.low), SAME_LATENCY_US))

    @cached_property
    def prior(self) -> Floats:
        """The weight (1/µs²) of the prior 0 of each offset and each drift."""
        hosts = self.geometry.hosts
        prior = np.full(2 * hosts, 1 / self.drift_us**2)
        prior[:hosts] = np.where(self.observations.observed, FREE, UNOBSERVED)
        prior[self.anchors] += ANCHORED
        return prior

    @cached_property
    def latency_prior(self) -> Floats:
        """The weights (1/µs²) of the prior of the two latencies of each host pair, host pairs × 2 × 2:
        ((L_0 + L_1) / 2)² / LATENCY_US² + ((L_0 - L_1) / 2)² / asymmetry_us²."""
        mean, half = 0.25 / LATENCY_US**2, 0.25 / self.asymmetry_us**2
        return mean + np.array([[1, -1], [-1, 1]]) * half[:, None, None]

    def without_drift(self) -> Problem:
        """The same system with all rates taken to be equal."""
        return replace(self, drift_us=TOLERANCE_US * 1e-3)

    def with_asymmetry(self, asymmetry_us: Floats) -> Problem:
        """The same system with another prior of the difference between the two latencies of each host pair."""
        return replace(self, asymmetry_us=asymmetry_us)

    @property
    def observations(self) -> Observations:
        return self.geometry.observations


@dataclass(frozen=True)
class Weights:
    """The weight of each message and of each member of a collective, in 1/µs²."""

    message: Floats
    member: Floats
