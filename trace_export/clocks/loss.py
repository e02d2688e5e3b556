"""The loss of a message's residual: steep below the fitted line, shallow above it, flat if the message is far too
late."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from trace_export.clocks.observations import Floats

TAU = 0.05
"""The share of messages below the fitted line."""
ZONE, FAR = 1.5, 6.0
"""The width of the loss's round part, and where a late message loses its weight, in units of the spread of the earliest
delays."""
SAMPLED = 1 << 16
"""The shape of the loss is estimated from this many residuals."""
LEAST_PULL_US = 0.1
"""Floor on the spread of the residuals. Messages without any scatter would get weights without bound, against which
rounding errors swamp the priors and with them the rate that all clocks have in common (tests/clocks/test_align.py
draws such messages)."""


@dataclass(frozen=True)
class Loss:
    """The loss of one kind of message, as a function of the residual in µs.

    Its slope (the pull on the fitted line) is r / zone, but at least TAU - 1 and at most TAU, and falls off as
    (far / r)² beyond `far`. `scale` (µs) turns it into a negative log-likelihood.
    """

    zone: float
    far: float
    scale: float = 1.0

    @staticmethod
    def of(residual: Floats, fitted: float) -> Loss:
        """The loss whose shape fits the spread of the earliest of these residuals.

        A share `fitted` of them is about 0 whatever the noise, because the line was fitted to them.
        """
        residual = residual[:: 1 + len(residual) // SAMPLED]
        early, later = np.quantile(residual, [0.05 + fitted, 0.15 + fitted])
        spread = max(2 * float(later - early), 1.0)
        loss = Loss(ZONE * spread, FAR * spread)
        pull = loss.weight(residual) * residual
        bend = ((residual > (TAU - 1) * loss.zone) & (residual < TAU * loss.zone)).mean() / loss.zone
        moved = max(float((pull**2).mean()), LEAST_PULL_US**2)
        return replace(loss, scale=moved / max(float(bend), 1e-4))

    def weight(self, residual: Floats) -> Floats:
        """The least-squares weight that gives the same pull."""
        weight = np.maximum(residual / TAU, residual / (TAU - 1))
        np.maximum(weight, self.zone, out=weight)
        np.divide(1 / self.scale, weight, out=weight)
        late = np.flatnonzero(residual > self.far)
        weight[late] *= (self.far / residual[late]) ** 2
        return weight
