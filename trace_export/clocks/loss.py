"""What can be tuned, and the pull that a message has on the fitted line: late ones little, far too late ones none."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from trace_export.clocks.observations import Floats

ENOUGH = 1 << 16
"""So many residuals tell the shape of the loss."""
LEAST_PULL_US = 0.1
"""Messages that all take the same time count as if they scattered so much: weights without bound would drown what is
thought likely beforehand in rounding errors, and with it the rate that all clocks have in common."""


@dataclass(frozen=True)
class Settings:
    """All that can be tuned, in µs unless said otherwise.

    `tau`: the share of messages below the fitted line. `zone`: width of the loss's round part, `far`: where a late
    message loses its pull, both in units of the spread of the earliest delays. `lag_us`, `drift_ppm`: what is thought
    likely beforehand (one standard deviation about 0).
    """

    tau: float = 0.05
    zone: float = 1.5
    far: float = 6.0
    drift_ppm: float = 20.0
    lag_us: float = 2000.0
    same_lag_us: float = 0.01
    collective_us: float = 2.0
    huber: float = 1.345
    rounds: int = 30
    tolerance_us: float = 0.01
    seed: int = 0


@dataclass(frozen=True)
class Loss:
    """The pull of a message whose residual is r µs, for one kind of tie; `scale` turns it into a likelihood."""

    tau: float
    zone: float
    far: float
    scale: float = 1.0

    @staticmethod
    def of(residual: Floats, settings: Settings, fitted: float) -> Loss:
        """The loss whose shape fits the spread of the earliest of these residuals.

        A share `fitted` of them is about 0 whatever the noise, because the line was drawn through them.
        """
        residual = residual[:: 1 + len(residual) // ENOUGH]
        early, later = np.quantile(residual, [0.05 + fitted, 0.15 + fitted])
        spread = max(2 * float(later - early), 1.0)
        tau, zone = settings.tau, settings.zone * spread
        loss = Loss(tau, zone, settings.far * spread)
        pull = loss.weight(residual) * residual
        bend = ((residual > (tau - 1) * zone) & (residual < tau * zone)).mean() / zone
        moved = max(float((pull**2).mean()), LEAST_PULL_US**2)
        return replace(loss, scale=moved / max(float(bend), 1e-4))

    def weight(self, residual: Floats) -> Floats:
        """The least-squares weight that gives the same pull."""
        weight = np.maximum(residual / self.tau, residual / (self.tau - 1))
        np.maximum(weight, self.zone, out=weight)
        np.divide(1 / self.scale, weight, out=weight)
        late = np.flatnonzero(residual > self.far)
        weight[late] *= (self.far / residual[late]) ** 2
        return weight
