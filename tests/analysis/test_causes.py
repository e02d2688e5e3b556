"""What is slower than its peers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trace_export.analysis.causes import medians_of_others


@given(st.lists(st.integers(0, 5), min_size=2, max_size=9), st.integers(1, 3))
def test_each_value_is_compared_with_the_median_of_all_others(values: list[int], rows: int) -> None:
    table = np.array([np.roll(values, n) for n in range(rows)], np.float64)
    expected = [[np.median(np.delete(row, n)) for n in range(len(row))] for row in table]
    np.testing.assert_array_equal(medians_of_others(table), expected)


def test_the_median_of_others_worked_out() -> None:
    # Others of 9: 1, 2, 4; of 1: 2, 4, 9; of 4: 1, 2, 9; of 2: 1, 4, 9.
    np.testing.assert_array_equal(medians_of_others(np.array([9.0, 1.0, 4.0, 2.0])), [2, 4, 2, 4])
