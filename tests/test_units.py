"""Durations as people write them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_export.errors import UsageError
from trace_export.units import LIMIT_NS, nanoseconds


@pytest.mark.parametrize(
    ("text", "ns"), [("3.2ms", 3_200_000), ("-40us", -40_000), ("+1.5s", 1_500_000_000), ("7 ns", 7), ("2", 2 * 10**9)]
)
def test_a_duration_in_nanoseconds(text: str, ns: int) -> None:
    assert nanoseconds(text, "--offset") == ns


@pytest.mark.parametrize("text", ["9999999999999999s", "9" * 40, "-" + "9" * 5000 + "ns", f"{LIMIT_NS}ns"])
def test_a_duration_beyond_64_bits_is_one_sentence(text: str) -> None:
    with pytest.raises(UsageError, match=r"--offset.*too long a time") as error:
        nanoseconds(text, "--offset")
    assert len(str(error.value)) < 200


@given(st.text(alphabet="0123456789.+-nµums \n", max_size=60))
def test_whatever_is_written_is_a_time_that_fits_or_refused(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert abs(nanoseconds(text, "--time")) < LIMIT_NS
