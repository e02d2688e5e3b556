"""What users write: sets of whole numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trace_export.selection import Numbers

SETS = st.frozensets(st.integers(0, 30), max_size=12)
RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=4).map(
    lambda pairs: Numbers(tuple(sorted((low, low + length) for low, length in pairs)))
)


def listed(numbers: Numbers) -> list[int]:
    return [n for low, high in numbers.ranges for n in range(low, high + 1)]


def test_a_set_as_people_write_it() -> None:
    assert str(Numbers.of([7, 3, 2, 4, 3])) == "2-4,7"
    assert str(Numbers(((0, 9_999_999),)).without(Numbers.of([0, 1, 5]))) == "2-4,6-9999999"


@given(SETS)
def test_a_set_holds_its_numbers(numbers: frozenset[int]) -> None:
    assert listed(Numbers.of(numbers)) == sorted(numbers)


@given(RANGES, SETS)
def test_what_one_set_has_and_another_lacks(numbers: Numbers, other: frozenset[int]) -> None:
    """Ranges may overlap, as in 0-5,3; what is left names each number once."""
    assert listed(numbers.without(Numbers.of(other))) == sorted(set(listed(numbers)) - other)
