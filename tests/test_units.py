"""Durations as people write them, and decimal numbers as files hold them."""

import contextlib
from decimal import ROUND_HALF_EVEN, Decimal

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_export.errors import UsageError
from trace_export.units import EPOCH_NS, LIMIT_NS, duration, moment, nanoseconds, thousandths, times


@pytest.mark.parametrize(
    ("text", "ns"), [("3.2ms", 3_200_000), ("-40us", -40_000), ("+1.5s", 1_500_000_000), ("7 ns", 7), ("2", 2 * 10**9)]
)
def test_a_duration_in_nanoseconds(text: str, ns: int) -> None:
    assert nanoseconds(text, "--offset") == ns


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (999, "999 ns"), (999.6, "1 µs"), (999_499, "999 µs"), (999_600, "1 ms"), (-999_600, "-1 ms"), (0, "0 ns"),
        (999_999_600, "1 s"), (1_234_567, "1.23 ms"), (12_345 * 10**9, "12300 s"), (4.4, "4 ns"),
    ],
)  # fmt: skip
def test_a_duration_is_rounded_before_its_unit_is_chosen(ns: float, text: str) -> None:
    assert duration(ns) == text
    assert duration(ns, sign=True) == ("" if ns < 0 else "+") + text


@pytest.mark.parametrize(
    ("ratio", "text"), [(1.4321, "1.43 ×"), (9.994, "9.99 ×"), (9.997, "10.0 ×"), (48.67, "48.7 ×"), (3988.2, "3988 ×")]
)
def test_a_ratio_has_three_digits_or_all_before_the_point(ratio: float, text: str) -> None:
    assert times(ratio) == text


def test_a_moment_is_a_date_on_a_wall_clock_only() -> None:
    assert moment(EPOCH_NS + 1) == "1973-03-03T09:46:40.000000001Z"
    assert moment(8_438_593_750) == "8.44 s"


@pytest.mark.parametrize("text", ["9999999999999999s", "9" * 40, "-" + "9" * 5000 + "ns", f"{LIMIT_NS}ns"])
def test_a_duration_beyond_64_bits_is_one_sentence(text: str) -> None:
    with pytest.raises(UsageError, match=r"--offset.*too long a time") as error:
        nanoseconds(text, "--offset")
    assert len(str(error.value)) < 200


@given(st.text(alphabet="0123456789.+-nµums \n", max_size=60))
def test_whatever_is_written_is_a_time_that_fits_or_refused(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert abs(nanoseconds(text, "--time")) < LIMIT_NS


def thousandths_of(*texts: str) -> list[int | None]:
    return pl.DataFrame({"text": texts}, {"text": pl.String}).select(thousandths(pl.col("text"))).to_series().to_list()


def test_thousandths_of_microseconds_are_exact_nanoseconds() -> None:
    assert thousandths_of("1764246877073569.641", " 12.25\t", "7", "1e3", "-1.5", "") == [
        1764246877073569641, 12250, 7000, 1_000_000, -1500, None,
    ]  # fmt: skip
    assert thousandths_of("time", "nan", "9223372036854775.807", "9223372036854775.808", "9" * 50) == [
        None, None, 2**63 - 1, None, None,
    ]  # fmt: skip


@given(st.decimals(-(2**62) // 1000, 2**62 // 1000, allow_nan=False, places=6))
def test_thousandths_are_to_the_nearest(number: Decimal) -> None:
    assert thousandths_of(str(number)) == [int((number * 1000).to_integral_value(ROUND_HALF_EVEN))]
