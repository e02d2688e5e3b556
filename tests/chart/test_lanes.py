"""Lanes: no two slices of a lane overlap, and no lane is used that could have been spared."""

from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trace_export.chart import lanes as lanes_module
from trace_export.chart.lanes import Lanes

BLOCKS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=25)


def lanes_by_hand(blocks: list[tuple[int, int]]) -> list[int]:
    """Each block on the first lane that is free, tried one by one."""
    ends: list[int] = []
    result = []
    for start, end in blocks:
        lane = next((i for i, last in enumerate(ends) if last <= start), len(ends))
        ends[lane : lane + 1] = [end]
        result.append(lane)
    return result


@given(BLOCKS, st.integers(0, 25), st.sampled_from([64, 2, 0]))
def test_lowest_free_lane_in_one_batch_and_in_two(raw: list[tuple[int, int]], cut: int, deep: int) -> None:
    with patch.object(lanes_module, "_DEEP", deep):
        check(raw, cut)


def check(raw: list[tuple[int, int]], cut: int) -> None:
    blocks = sorted((start, start + length) for start, length in raw)
    start, end = np.array(blocks, np.int64).reshape(-1, 2).T
    expected = lanes_by_hand(blocks)
    assert Lanes().assign(start, end).tolist() == expected
    lanes = Lanes()
    halves = [*lanes.assign(start[:cut], end[:cut]), *lanes.assign(start[cut:], end[cut:])]
    assert halves == expected
    assert lanes.count == max(expected, default=-1) + 1
