"""Tables in the order of columns, against Polars' own sort."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from trace_export.ordering import distinct, group_number, is_ordered, ordered, repeated, rows_by, rows_of, stretches

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
def test_looking_agrees_with_sorting(rows: list[tuple[int, int | None, int]]) -> None:
    frame = table(rows)
    whole = frame["start_ns"].null_count() == 0
    in_order = whole and frame.select(KEYS).equals(frame.select(KEYS).sort(KEYS))
    assert is_ordered(frame, *KEYS) is in_order
    assert is_ordered(frame, *KEYS, strictly=True) is (in_order and not frame.select(KEYS).is_duplicated().any())


def test_ranks_in_order_of_time_are_moved_as_a_whole() -> None:
    frame = table([(1, 0, 1), (1, 2, 3), (0, 0, 2), (0, 1, 2), (1, 4, 5)])
    moved = ordered(frame, *KEYS)
    assert moved["id"].to_list() == [2, 3, 0, 1, 4]


def test_stretches_have_their_keys_and_lengths() -> None:
    frame = table([(1, 5, 0), (1, 5, 1), (0, None, 1), (0, None, 2), (0, 5, 2), (1, 5, 2)])
    assert stretches(frame, "rank", "start_ns").to_dict(as_series=False) == {
        "len": [2, 2, 1, 1], "rank": [1, 0, 0, 1], "start_ns": [5, None, 5, 5],
    }  # fmt: skip


@given(ROWS)
def test_what_a_stretch_has_is_repeated_for_its_rows(rows: list[tuple[int, int | None, int]]) -> None:
    frame = table(rows)
    parts = stretches(frame, *KEYS)
    assert repeated(parts["end_ns"], parts["len"]).equals(frame["end_ns"], check_names=True)


@given(ROWS)
def test_groups_are_numbered_in_the_order_of_their_keys(rows: list[tuple[int, int | None, int]]) -> None:
    frame = table(rows)
    expected = frame.select(pl.struct(KEYS).rank("dense")).to_series()
    assert group_number(frame, *KEYS).to_list() == expected.to_list()


@given(st.sets(st.integers(-3, 2000)), st.lists(st.integers(-3, 2000)))
def test_rows_of_numbers_are_theirs(numbers: set[int], asked: list[int]) -> None:
    rising = sorted(numbers)
    found = rows_of(np.array(rising, np.int64), np.array(asked, np.int64)).tolist()
    assert found == [rising.index(n) if n in numbers else len(rising) for n in asked]


@given(st.lists(st.integers(0, 3).map(lambda n: n << 14) | st.integers(0, 1 << 33), max_size=12))
def test_rows_by_numbers_of_any_size_are_those_of_a_stable_sort(numbers: list[int]) -> None:
    values = np.array(numbers, np.int64)
    assert rows_by(values).tolist() == np.argsort(values, kind="stable").tolist()


@given(st.lists(st.integers(0, 9) | st.integers(0, 1 << 40), max_size=12))
def test_distinct_numbers_are_those_of_numpy(numbers: list[int]) -> None:
    values = np.array(numbers, np.int64)
    expected = np.unique(values, return_inverse=True)
    assert [part.tolist() for part in distinct(values)] == [part.tolist() for part in expected]
