"""How long a task of a stream can last: worked examples, and the definition by a loop against the program."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trace_export.stream_order import possible_ends

MS = 10**6
tasks = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 20), st.integers(0, 12)), min_size=1, max_size=12
)


def ends(*rows: tuple[int, int, int, int]) -> list[int]:
    """Of tasks (stream, launch, start, end), in ms."""
    stream, launch, start, end = np.array(rows, np.int64).T
    return (possible_ends(stream, launch, start * MS, end * MS) // MS).tolist()


def test_the_example_of_the_docstring() -> None:
    assert ends((7, 1, 0, 10), (7, 2, 20, 900), (7, 3, 30, 40)) == [10, 30, 40]


def test_streams_run_beside_each_other_and_the_nodes_of_a_graph_too() -> None:
    assert ends((7, 1, 0, 10), (8, 2, 5, 15), (7, 3, 12, 20), (7, 3, 14, 22)) == [10, 15, 20, 22]


def test_what_begins_before_an_earlier_launch_says_nothing_of_it() -> None:
    assert ends((7, 1, 100, 110), (7, 2, 3, 5), (7, 3, 120, 130)) == [110, 5, 130]


def test_a_programmatic_launch_may_overlap_by_a_tenth_of_a_millisecond() -> None:
    stream, launch = np.array([7, 7, 7]), np.array([1, 2, 3])
    start, end = np.array([0, 900_000, 1_800_000]), np.array([1_000_000, 1_900_001, 2_000_000])
    assert possible_ends(stream, launch, start, end).tolist() == [1_000_000, 1_800_000, 2_000_000]


def test_a_number_under_which_most_tasks_overlap_is_no_stream() -> None:
    """Nine tasks and more, each of which lasts until the next but one begins."""
    overlapping = [(0, launch, 10 * launch, 10 * launch + 15) for launch in range(20)]
    assert ends(*overlapping) == [row[3] for row in overlapping]
    assert ends(*overlapping[:5]) == [10, 20, 30, 40, 55]


@given(tasks)
def test_a_task_ends_at_the_latest_where_the_next_of_its_stream_begins(rows: list[tuple[int, int, int, int]]) -> None:
    rows = [(stream, launch, start, start + length) for stream, launch, start, length in rows]
    wanted = []
    for row in rows:
        stream, launch, start, end = row
        others = sorted(r[1:3] for r in rows if r[0] == stream)
        same = [begin for number, begin in others if number == launch]
        later = [begin for number, begin in others if number > launch]
        last = start == max(same) and sum(begin == start for begin in same) == 1
        cut = last and later and start < later[0] < end
        wanted.append(later[0] if cut else end)
    found = ends(*rows)
    for row, expected, got in zip(rows, wanted, found, strict=True):
        alike = [r for r in rows if r[:3] == row[:3]]
        assert len(alike) > 1 or got == expected, row
