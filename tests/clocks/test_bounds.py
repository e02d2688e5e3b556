"""How far hosts can be misplaced, and what contradicts itself, by worked examples."""

import numpy as np
import polars as pl
import pytest

from tests.clocks.observed import Message, observed
from trace_export.clocks.bounds import bounds
from trace_export.clocks.fit import fit_observations
from trace_export.clocks.solve import Solution
from trace_export.model import RANKS, conform
from trace_export.tolerances import CAUSALITY_NS

SLACK_US = CAUSALITY_NS / 1e3
RANKS_OF_THREE = pl.DataFrame({"rank": [0, 1, 2], "host": ["host0", "host1", "host2"]})


def placed(hosts: int, residual: list[float], latency: list[float]) -> Solution:
    nothing = np.zeros(hosts)
    return Solution(nothing, nothing, np.array(latency), np.array(residual), np.zeros(0))


def between(*ends: tuple[int, int]) -> list[Message]:
    return [(source, target, 0.0, 0.0) for source, target in ends]


def test_two_hosts_share_the_room_that_their_messages_leave() -> None:
    """0 → 1 takes at least 3 + 1 µs and 1 → 0 at least 5 + 1 µs: half of the longer one for each."""
    data = observed(2, between((0, 1), (0, 1), (1, 0)), [])
    bound, slack, cycle = bounds(data, placed(2, [3, 9, 5], [1, 1]), np.zeros(2, np.int64))
    assert bound == pytest.approx([(6 + SLACK_US) / 2] * 2)
    assert (slack, cycle) == (SLACK_US, [])


def test_messages_that_are_too_early_round_a_circle_contradict_each_other() -> None:
    """Three hosts, each message 10 µs early: 10 µs of slack are needed. The fourth host has no part in it."""
    data = observed(4, between((0, 1), (0, 3), (1, 2), (2, 0), (3, 0)), [])
    solution = placed(4, [-10, 50, -10, -10, 50], [0] * 5)
    bound, slack, cycle = bounds(data, solution, np.zeros(4, np.int64))
    assert cycle == [0, 1, 2]
    assert slack == 10
    assert np.isfinite(bound).all()


def test_pairs_whose_messages_go_one_way_and_those_with_few_are_named() -> None:
    """0 → 1 alone, nine messages; eight between 1 and 2, and seven between 0 and 2."""
    ends = [(0, 1)] * 9 + [(1, 2)] * 4 + [(2, 1)] * 4 + [(0, 2)] * 4 + [(2, 0)] * 3
    result = fit_observations(observed(3, between(*sorted(ends)), []), conform(RANKS_OF_THREE, RANKS))
    assert result.one_way == ("host0 – host1",)
    assert result.few_messages == ("host0 – host2",)
