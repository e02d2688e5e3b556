"""Running counts, against counting at each moment."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trace_export.chart.running_counts import running_count

TIMES = st.lists(st.integers(0, 8), max_size=10)


@given(TIMES, TIMES)
def test_the_count_is_right_from_each_change_on(begun: list[int], ended: list[int]) -> None:
    found = running_count(np.array(begun, np.int64), np.array(ended, np.int64))
    counts = [(t, sum(b <= t for b in begun) - sum(e <= t for e in ended)) for t in sorted({*begun, *ended})]
    before = [-1, *(count for _, count in counts)]
    assert found.rows() == [new for new, old in zip(counts, before, strict=False) if new[1] != old]
