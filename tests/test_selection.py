"""What users write: sets of whole numbers, and the part of a run that they select."""

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import ORIGIN, profile, span, table
from trace_export.model import COLLECTIVES, P2P, STEPS, conform
from trace_export.selection import Numbers, Selection, Window, not_in_data, select

SETS = st.frozensets(st.integers(0, 30), max_size=12)
RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=4).map(
    lambda pairs: Numbers(tuple(sorted((low, low + length) for low, length in pairs)))
)


def listed(numbers: Numbers) -> list[int]:
    return [n for low, high in numbers.ranges for n in range(low, high + 1)]


def test_what_is_not_in_the_data_is_told_beside_what_is() -> None:
    five = Numbers.of([5])
    assert not_in_data("rank", five, pl.Series([0, 1])) == "--ranks 5: rank 5 is not in the data, which has ranks 0-1"
    nothing = not_in_data("rank", five, pl.Series([], dtype=pl.Int32))
    assert nothing == "--ranks 5: rank 5 is not in the data"


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


def test_a_window_of_time_leaves_no_step_whole_that_it_cuts() -> None:
    blocks = [span(0, "F", 0, 0, 10, step=0), span(0, "B", 0, 20, 30, step=0), span(0, "F", 0, 40, 50, step=1)]
    steps = conform(pl.DataFrame({"run": [0, 0], "step": [0, 1], "whole": [True, True], "counts": [True, True]}), STEPS)
    chosen = select(profile(blocks, {0: 0}, steps=steps), Selection(window=Window(15, 100)))
    assert chosen.steps.rows() == [(0, 0, False, False), (0, 1, True, True)]


def test_a_window_has_no_block_that_only_touches_it() -> None:
    blocks = [span(0, "F", n, begin, begin + 10, step=0) for n, begin in enumerate((0, 10, 20, 30))]
    chosen = select(profile(blocks, {0: 0}), Selection(window=Window(10, 30)))
    assert chosen.spans["microbatch"].to_list() == [1, 2]


def test_what_reaches_into_the_time_of_the_blocks_is_kept() -> None:
    """A receive begins before the block that waits for it."""
    times = {"before": (60, 99), "first": (80, 100), "last": (130, 170), "open": (90, None), "after": (131, 140)}
    rows = [
        {"rank": 0, "op": op, "start_ns": ORIGIN + start, "end_ns": end and ORIGIN + end}
        for op, (start, end) in times.items()
    ]
    tables = {"p2p": table(rows, P2P), "collectives": table(rows, COLLECTIVES)}
    run = profile([span(0, "F", 0, 100, 130, step=1)], {0: 0}, **tables)
    chosen = select(run, Selection(steps=Numbers.parse("1", "steps")))
    assert chosen.p2p["op"].to_list() == chosen.collectives["op"].to_list() == ["first", "last"]


def test_a_message_names_some_of_very_many_numbers() -> None:
    assert str(Numbers.of(range(0, 60, 2))) == ",".join(map(str, range(0, 60, 2)))
    text = str(Numbers.of(range(0, 200_000, 2)))
    assert text.startswith("0,2,4,") and text.endswith(",…,199998")
    assert len(text) < 200
