"""How far hosts can be misplaced, and what contradicts itself, by worked examples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.clocks.test_normal_equations import Message, observed
from trace_export.clocks.bounds import bounds
from trace_export.clocks.fit_tables import pairs
from trace_export.clocks.observations import BLOCKS
from trace_export.clocks.solve import Solution
from trace_export.tolerances import CAUSALITY_NS

SLACK_US = CAUSALITY_NS / 1e3


def placed(hosts: int, residual: list[float], latency: list[float]) -> Solution:
    nothing = np.zeros(hosts)
    return Solution(nothing, nothing, np.array(latency), np.array(residual), np.zeros(0))


def between(*ends: tuple[int, int]) -> list[Message]:
    return [(source, target, 0.0, 0.0) for source, target in ends]


def test_two_hosts_share_the_room_that_their_messages_leave() -> None:
    """0 → 1 takes at least 3 + 1 µs and 1 → 0 at least 5 + 1 µs: half of the longer one for each."""
    known = observed(2, between((0, 1), (0, 1), (1, 0)), [])
    bound, slack, cycle = bounds(known, placed(2, [3, 9, 5], [1, 1]), np.zeros(2, np.int64))
    assert bound == pytest.approx([(6 + SLACK_US) / 2] * 2)
    assert (slack, cycle) == (SLACK_US, [])


def test_messages_that_are_too_early_round_a_circle_contradict_each_other() -> None:
    """Three hosts, each message 10 µs early: 10 µs of slack are needed. The fourth host has no part in it."""
    known = observed(4, between((0, 1), (0, 3), (1, 2), (2, 0), (3, 0)), [])
    solution = placed(4, [-10, 50, -10, -10, 50], [0] * 5)
    bound, slack, cycle = bounds(known, solution, np.zeros(4, np.int64))
    assert cycle == [0, 1, 2]
    assert slack == 10
    assert np.isfinite(bound).all()


def test_the_table_of_host_pairs() -> None:
    """Residuals 0, 2, 10 µs one way and 1, 4, 5 µs back: medians 2 and 4, of whose difference each clock has half."""
    known = observed(2, between((0, 1), (0, 1), (0, 1), (1, 0), (1, 0), (1, 0)), [])
    (row,) = pairs(known, placed(2, [0, 2, 10, 1, 4, 5], [3, 5]), tau=0.5).rows(named=True)
    assert (row["host_a"], row["host_b"], row["made_of"]) == ("host0", "host1", "p2p")
    assert (row["messages_ab"], row["messages_ba"]) == (3, 3)
    assert (row["disagreement_ns"], row["latency_ns"]) == (-1000, 4000)
    blocks = replace(known, kind=np.full(2, BLOCKS))
    assert pairs(blocks, placed(2, [0, 2, 10, 1, 4, 5], [3, 5]), tau=0.5)["made_of"].to_list() == ["blocks"]
