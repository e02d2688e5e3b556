"""The parts of a fit's uncertainty, by worked examples."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.clocks.observed import observed
from trace_export.clocks.loss import Loss
from trace_export.clocks.problem import Problem
from trace_export.clocks.solve import Solution, fit
from trace_export.clocks.uncertainty import (
    COMMON_SPREAD_US,
    PROBED,
    centred,
    drift_variation,
    member_variance,
    uncertainty,
)

STRETCH_US = 125.0
"""The eighth part of a window of 1000 µs."""


def variation(apart: list[float], scatter: float = 0.0) -> float:
    """`drift_variation` of two hosts that are `apart` in the stretches of the window, as two messages of each direction
    say in each, which scatter by ±`scatter`."""
    messages, residual = [], []
    for back in (False, True):
        for stretch, y in enumerate(apart):
            for late in (-scatter, scatter):
                sent = (stretch + 0.5) * STRETCH_US
                messages.append((int(back), int(not back), sent, 1000.0 if stretch == 0 else sent))
                residual.append((-y if back else y) + late)
    loss = {0: Loss(zone=1.0, far=1e6)}
    nothing = np.zeros(0)
    return drift_variation(
        observed(2, messages, []), Solution(nothing, nothing, nothing, np.array(residual), nothing, loss)
    )


def test_drift_variation_of_places_that_alternate_is_shared_by_both_clocks() -> None:
    """y = +4, -4, +4, … µs has the variance 16 µs²; half of it is that of each clock."""
    assert variation([4.0, -4.0] * 4) == pytest.approx(np.sqrt(16 / 2))


def test_drift_variation_counts_no_constant_distance() -> None:
    assert variation([100.0] * 8) == 0.0
    assert variation([100.0 + y for y in [4.0, -4.0] * 4]) == pytest.approx(np.sqrt(8))


def test_drift_variation_subtracts_the_noise_of_the_messages() -> None:
    """Two messages ±3 µs have the variance 18 µs² and their mean 9 µs²; y has (9 + 9) / 4 = 4.5 µs², of which 7/8 is
    expected about the mean of eight stretches. 16 - 3.94 is more than 3 standard errors, 3 · 3.94 · √(2/8) = 5.9."""
    assert variation([4.0, -4.0] * 4, scatter=3.0) == pytest.approx(np.sqrt((16 - 4.5 * 7 / 8) / 2))


def test_drift_variation_within_the_noise_is_none() -> None:
    """1 µs² is less than the 3.94 µs² that the noise explains."""
    assert variation([1.0, -1.0] * 4, scatter=3.0) == 0.0


def test_drift_variation_is_the_same_in_every_run_to_the_last_digit() -> None:
    apart = [math.sin(1.7 * n) * 1e3 for n in range(8)]
    assert len({variation(apart, scatter=math.pi) for _ in range(50)}) == 1


def test_drift_variation_needs_three_stretches() -> None:
    assert variation([50.0, -50.0]) == 0.0


def test_centred_takes_the_mean_of_each_component_away() -> None:
    values, component = np.array([1.0, 3.0, 10.0, 11.0, 12.0]), np.array([0, 0, 1, 1, 1])
    assert centred(values, component).tolist() == [-1.0, 1.0, -1.0, 0.0, 1.0]


def test_collectives_that_leave_nothing_to_compare_scatter_as_is_common() -> None:
    """Two hosts and one collective: its two ends determine the offset, so nothing shows how they scatter."""
    known = observed(2, [], [(0, 0, 5.0), (0, 1, 9.0)])
    nothing = np.zeros(0)
    solution = Solution(np.zeros(2), np.zeros(2), nothing, nothing, np.zeros(2), member_us=50.0)
    assert member_variance(Problem.of(known, np.zeros(1, np.int64)), solution) == COMMON_SPREAD_US**2


SPAN_US = 1e6


def test_of_more_hosts_than_are_solved_for_the_others_get_the_largest_deviation() -> None:
    """A chain of hosts, of which every other one is solved for; those at its ends are known least."""
    hosts = PROBED + 1
    sent = np.linspace(0, SPAN_US, 12)
    jitter = [3.0, -5.0, 8.0, -2.0, 6.0, -7.0, 1.0, -4.0, 9.0, -1.0, 2.0, -6.0]
    chain = [(a, b, s, s + 20 + j) for n in range(hosts - 1) for a, b in ((n, n + 1), (n + 1, n))
             for s, j in zip(sent, jitter, strict=True)]  # fmt: skip
    problem = Problem.of(observed(hosts, chain, []), np.zeros(2 * (hosts - 1), np.int64))
    deviation, _ = uncertainty(problem, fit(problem), np.zeros(hosts, np.int64))
    solved, others = deviation[::2], deviation[1::2]
    assert solved.argmin() not in (0, len(solved) - 1)
    assert solved.max() > 1.5 * solved.min()
    assert (others == solved.max()).all()


def test_without_drift_all_rates_are_equal() -> None:
    """A clock that gains 500 µs over the window, and nothing else."""
    sent = np.linspace(0, SPAN_US - 2000, 100)
    there = [(0, 1, s, s + 20 + 500 * s / SPAN_US) for s in sent]
    back = [(1, 0, s + 500 * s / SPAN_US, s + 20) for s in sent + 500]
    free = replace(Problem.of(observed(2, there + back, []), np.zeros(1, np.int64)), drift_us=1e-3 * SPAN_US)
    assert np.ptp(fit(free).drift) == pytest.approx(500, rel=0.01)
    assert np.ptp(fit(free.without_drift()).drift) == pytest.approx(0.0, abs=1e-9)
