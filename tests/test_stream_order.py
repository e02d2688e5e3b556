"""How long a task of a stream can last: worked examples, and the definition by a loop against the program."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trace_export.stream_order import FEW, possible_ends

MS = 10**6
tasks = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 20), st.integers(0, 12)), min_size=1, max_size=12
)


def ends(*rows: tuple[int, int, int, int]) -> list[int]:
    """Of tasks (stream, launch, start, end), in ms."""
    stream, launch, start, end = np.array(rows, np.int64).T
    return (possible_ends(stream, launch, start * MS, end * MS)[0] // MS).tolist()


def test_the_example_of_the_docstring() -> None:
    assert ends((7, 1, 0, 10), (7, 2, 20, 900), (7, 3, 30, 40)) == [10, 30, 40]


def test_streams_run_beside_each_other_and_the_nodes_of_a_graph_too() -> None:
    assert ends((7, 1, 0, 10), (8, 2, 5, 15), (7, 3, 12, 20), (7, 3, 14, 22)) == [10, 15, 20, 22]


def test_what_begins_before_an_earlier_launch_says_nothing_of_it() -> None:
    assert ends((7, 1, 100, 110), (7, 2, 3, 5), (7, 3, 120, 130)) == [110, 5, 130]


def test_a_programmatic_launch_may_overlap_by_a_tenth_of_a_millisecond() -> None:
    stream, launch = np.array([7, 7, 7]), np.array([1, 2, 3])
    start, end = np.array([0, 900_000, 1_800_000]), np.array([1_000_000, 1_900_001, 2_000_000])
    assert possible_ends(stream, launch, start, end)[0].tolist() == [1_000_000, 1_800_000, 2_000_000]


def test_a_number_under_which_most_tasks_overlap_is_no_stream() -> None:
    """Nine tasks and more; each lasts until the next but one begins."""
    overlapping = [(0, launch, 10 * launch, 10 * launch + 15) for launch in range(20)]
    assert ends(*overlapping) == [row[3] for row in overlapping]
    assert ends(*overlapping[:5]) == [10, 20, 30, 40, 55]


def test_what_ends_too_late_is_no_longer_than_the_others_of_its_stream() -> None:
    later = [(7, number, 60 + 10 * number, 65 + 10 * number) for number in range(3, 11)]
    assert ends((7, 1, 0, 10), (7, 2, 20, 900), *later)[1] == 30
    assert ends((7, 1, 0, 10), (7, 2, 20, 900), *later[:6])[1] == 90


def test_the_last_of_a_stream_lasts_no_longer_than_all_before_it() -> None:
    before = [(7, number, 10 * number, 10 * number + 5 + number % 3) for number in range(FEW)]
    assert ends(*before, (7, FEW, 80, 900))[-1] == 87
    assert ends(*before, (7, FEW, 80, 150))[-1] == 150
    assert ends(*before[1:], (7, FEW, 80, 900))[-1] == 900  # too few to tell
    stream, launch, start, end = np.array([*before, (7, FEW, 80, 900)]).T
    earlier, _ = possible_ends(stream, launch, start * MS, end * MS, begun_ns=-1000 * MS)
    assert earlier[-1] == 900 * MS  # of a piece of a long recording


@given(tasks)
def test_a_task_ends_at_the_latest_where_the_next_of_its_stream_begins(rows: list[tuple[int, int, int, int]]) -> None:
    rows = [(stream, launch, start, start + length) for stream, launch, start, length in rows]
    result = dict(zip(rows, ends(*rows), strict=True))
    for stream in {row[0] for row in rows}:
        of_stream = [row for row in rows if row[0] == stream]
        if len({row[1:3] for row in of_stream}) < len(
            of_stream
        ):  # which of two is the last one of a launch is not known
            continue
        cut = {}
        for row in of_stream:
            _, launch, start, end = row
            later = sorted(r[1:3] for r in of_stream if r[1] > launch)
            last = start == max(r[2] for r in of_stream if r[1] == launch)
            if last and later and start < later[0][1] < end:
                cut[row] = later[0][1]
        lengths = [row[3] - row[2] for row in of_stream if row not in cut]
        first, last = min(row[2] for row in rows), max(of_stream, key=lambda row: row[1:3])
        for row in of_stream:
            if row == last and len(of_stream) > FEW and row[3] - row[2] > row[2] - first:
                continue
            wanted = cut.get(row, row[3])
            if row in cut and len(lengths) >= FEW:
                wanted = min(wanted, row[2] + max(lengths))
            assert result[row] == wanted, row
