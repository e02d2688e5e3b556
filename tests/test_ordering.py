"""Tables in the order of columns, against Polars' own sort."""

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from trace_export.ordering import group_number, ordered, rows_by

ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 2) | st.none(), st.integers(0, 2)), max_size=12)
KEYS = ("rank", "start_ns", "end_ns")


def table(rows: list[tuple[int, int | None, int]]) -> pl.DataFrame:
    return pl.DataFrame(rows, dict.fromkeys(KEYS, pl.Int64), orient="row").with_row_index("id")


@given(ROWS)
def test_the_order_is_that_of_a_stable_sort(rows: list[tuple[int, int | None, int]]) -> None:
    frame = table(rows)
    assert ordered(frame, *KEYS).equals(frame.sort(KEYS, maintain_order=True))


@given(ROWS, st.sampled_from([1, 1 << 40, 1 << 61]))
def test_times_that_are_far_apart_are_sorted_too(rows: list[tuple[int, int | None, int]], unit: int) -> None:
    """Where no one number tells all keys apart."""
    frame = table(rows).with_columns(pl.col("start_ns", "end_ns") * unit)
    assert ordered(frame, *KEYS).equals(frame.sort(KEYS, maintain_order=True))


@given(ROWS)
def test_groups_are_numbered_in_the_order_of_their_keys(rows: list[tuple[int, int | None, int]]) -> None:
    frame = table(rows)
    expected = frame.select(pl.struct(KEYS).rank("dense")).to_series()
    assert group_number(frame, *KEYS).to_list() == expected.to_list()


@given(st.lists(st.integers(0, 3).map(lambda n: n << 14) | st.integers(0, 1 << 33), max_size=12))
def test_rows_by_numbers_of_any_size_are_those_of_a_stable_sort(numbers: list[int]) -> None:
    values = np.array(numbers, np.int64)
    assert rows_by(values).tolist() == np.argsort(values, kind="stable").tolist()
