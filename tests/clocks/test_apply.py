"""The correction of a clock: the formula, its inverse, and the end of Int64."""

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clock_runs import START_NS
from tests.support.profiles import table
from trace_export.clocks.apply import correct_profile, corrected_time, offset_at, uncorrected
from trace_export.errors import AlignmentError
from trace_export.model import CLOCKS, MESSAGES, RANKS, SPANS, Profile, conform

RANKS_OF_TWO_HOSTS = table([{"rank": 0, "host": "a"}, {"rank": 1, "host": "b"}], RANKS)


def clocks(**of_b: Any) -> pl.DataFrame:
    """Host a as it is, host b corrected."""
    zero = {"offset_ns": 0, "drift": 0.0, "reference_ns": 0}
    return conform(pl.DataFrame([{"host": "a", **zero}, {"host": "b", **zero, **of_b}]), CLOCKS)


def spans(*times: tuple[int, int, int]) -> Profile:
    rows = [{"rank": rank, "start_ns": start, "end_ns": end} for rank, start, end in times]
    return Profile(ranks=RANKS_OF_TWO_HOSTS, spans=table(rows, SPANS))


def test_a_worked_example_of_the_formula() -> None:
    """corrected = t - 1500 - round(2e-6 * (t - reference))."""
    clock = clocks(offset_ns=1500, drift=2e-6, reference_ns=START_NS)
    done = correct_profile(
        spans((0, START_NS, START_NS + 9), (1, START_NS, START_NS + 1_000_000), (1, START_NS - 500_000, START_NS)),
        clock,
    )
    assert done.spans["start_ns"].to_list() == [START_NS, START_NS - 1500, START_NS - 500_000 - 1500 + 1]
    assert done.spans["end_ns"].to_list() == [START_NS + 9, START_NS + 1_000_000 - 1500 - 2, START_NS - 1500]


def test_each_side_of_a_message_is_on_its_own_clock() -> None:
    row = {"src_rank": 0, "dst_rank": 1, "send_start_ns": 1, "send_end_ns": 2, "recv_start_ns": 3, "recv_end_ns": 4}
    profile = Profile(ranks=RANKS_OF_TWO_HOSTS, messages=table([row], MESSAGES))
    done = correct_profile(profile, clocks(offset_ns=-10)).messages
    assert done.select("send_start_ns", "send_end_ns", "recv_start_ns", "recv_end_ns").row(0) == (1, 2, 13, 14)


@given(st.integers(-(2**40), 2**40), st.floats(-1e-3, 1e-3), st.integers(0, 2**61), st.integers(0, 2**61))
def test_an_offset_at_another_time_is_the_whole_correction_there(
    offset: int, drift: float, reference: int, time: int
) -> None:
    frame = pl.DataFrame({"t": [time], "o": [offset], "d": [drift], "r": [reference]})
    moved = frame.select(corrected_time(pl.col("t"), pl.col("o"), pl.col("d"), pl.col("r"))).item()
    assert abs(time - moved - offset_at(time, offset, drift, reference)) <= 1


def test_the_wall_clock_leaves_every_bit() -> None:
    profile = spans((0, 5, 7), (1, 2**62, 2**62 + 1))
    assert correct_profile(profile, uncorrected(profile.ranks, "wall")).spans.equals(profile.spans)


@pytest.mark.parametrize("clock", [{"offset_ns": -(2**62)}, {"drift": -0.4, "reference_ns": -(2**62)}])
def test_times_that_leave_64_bits_are_refused(clock: dict[str, Any]) -> None:
    with pytest.raises(AlignmentError, match="of b do not fit"):
        correct_profile(spans((0, 5, 7), (1, 2**62 + 2**61, 2**62 + 2**61 + 1)), clocks(**clock))


def test_another_hosts_late_times_do_not_count() -> None:
    """Host b would move times of host a out of 64 bits, but it has none of them."""
    done = correct_profile(spans((0, 2**62 + 2**61, 2**62 + 2**61 + 1), (1, 5, 7)), clocks(offset_ns=-(2**62)))
    assert done.spans["start_ns"].to_list() == [2**62 + 2**61, 2**62 + 5]
