"""The parts of a fit's uncertainty, by worked examples."""

from dataclasses import replace

import numpy as np
import pytest

from tests.clocks.observed import observed
from trace_export.clocks.problem import Problem
from trace_export.clocks.solve import Solution, fit
from trace_export.clocks.uncertainty import (
    COMMON_SPREAD_US,
    PROBED,
    member_variance,
    uncertainty,
)


def test_collectives_that_leave_nothing_to_compare_scatter_as_is_common() -> None:
    """Two hosts and one collective: its two ends determine the offset, so nothing shows how they scatter."""
    data = observed(2, [], [(0, 0, 5.0), (0, 1, 9.0)])
    nothing = np.zeros(0)
    solution = Solution(np.zeros(2), np.zeros(2), nothing, nothing, np.zeros(2), member_us=50.0)
    assert member_variance(Problem.of(data, np.zeros(1, np.int64)), solution) == COMMON_SPREAD_US**2


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
