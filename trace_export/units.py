"""Durations and lengths as people read and write them: `3.2ms` → nanoseconds, and back; the cells of a table as text;
decimal numbers of files → whole ones."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from math import floor, log10
from typing import TYPE_CHECKING, TypeVar

from trace_export.errors import UsageError, printable

if TYPE_CHECKING:
    import polars as pl

Times = TypeVar("Times", "pl.Expr", "pl.Series")

NANOSECONDS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "": 1_000_000_000}
LIMIT_NS = 2**62
"""Longer times leave no room for a sum of two in Int64."""
EPOCH_NS = 10**17
"""Times below this (1973) count from the start of something: they are no wall clock."""
DIGITS = 19
"""A number of more digits is beyond the limit in any unit."""


def nanoseconds(text: str, parameter: str) -> int:
    """A duration such as `3.2ms`, `-40us` or `1.5s` (no unit: seconds). Raises UsageError that names `parameter`."""
    match = re.fullmatch(r"\s*([+-]?)(\d+)(?:\.(\d+))?\s*(ns|us|µs|ms|s|)\s*", text)
    if match is None:
        raise UsageError(f'"{text[:100]}" is not a time', "write it like 3.2ms, 40us or 1.5s", parameter=parameter)
    sign, whole, fraction, unit = match.groups()
    scale = NANOSECONDS[unit]
    if len(whole) > DIGITS or (value := int(whole) * scale + round(float(f"0.{fraction or 0}") * scale)) >= LIMIT_NS:
        what = f'"{text[:40]}" is too long a time'
        raise UsageError(what, "times are 64-bit nanoseconds, up to 146 years", parameter=parameter)
    return -value if sign == "-" else value


MILLIMETRES = {"mm": 1.0, "cm": 10.0, "in": 25.4, "pt": 25.4 / 72}


def millimetres(text: str, parameter: str) -> float:
    """A length on paper such as `88mm`, `3.5in` or `252pt`. Raises UsageError that names `parameter`."""
    match = re.fullmatch(r"\s*(\d{1,6}(?:\.\d+)?)\s*(mm|cm|in|pt)\s*", text)
    if match is None:
        what = f'"{text[:100]}" is not a length'
        raise UsageError(what, f"write it like 88mm; units are {', '.join(MILLIMETRES)}", parameter=parameter)
    return float(match[1]) * MILLIMETRES[match[2]]


def duration(ns: float, *, sign: bool = False) -> str:
    """A time as people read it: three significant digits in the unit that fits; with `sign` a plus where it is one."""
    plus = "+" if sign else ""
    for unit, size in (("ns", 1), ("µs", 1e3), ("ms", 1e6)):
        rounded = round(ns) if size == 1 else float(f"{ns / size:.3g}")
        if abs(rounded) < 1000:  # after rounding: 999,600 ns are 1 ms
            return f"{rounded:{plus}g} {unit}"
    return f"{float(f'{ns / 1e9:.3g}'):{plus}.6g} s"


def times(ratio: float) -> str:
    """How many times as much, as people read it: "1.43 ×", "48.7 ×", "3988 ×"."""
    return f"{ratio:.{2 if ratio < 9.995 else 1 if ratio < 99.95 else 0}f} ×"


def utc(time_ns: int) -> str:
    """An ISO 8601 time with all nine decimals."""
    seconds, rest = divmod(time_ns, 10**9)
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
    except (OverflowError, ValueError, OSError):  # a clock that says the year 30000
        return f"{seconds}.{rest:09d} s"


def moment(time_ns: int) -> str:
    """As `utc`, or, if it is not a date, the time since the clock's start."""
    return utc(time_ns) if time_ns >= EPOCH_NS else duration(time_ns)


def thousandths(text: pl.Expr) -> pl.Expr:
    """Decimal numbers as text, perhaps with blanks around → their thousandths (Int64), to the nearest, a half to the
    even one: µs → ns, ms → µs.

    Null for what is not a number or does not fit. As a float, a time of today in µs would lose nanoseconds.
    """
    import polars as pl  # here, because the command line parses durations before it needs tables

    return (text.str.strip_chars().cast(pl.Decimal(38, 3), strict=False) * 1000).cast(pl.Int64, strict=False)


def finer_than_ms(times_ns: Times) -> Times:
    """Whether times are no whole milliseconds."""
    return times_ns % 1_000_000 != 0


NOTHING = "–"


def cells_of(column: pl.Series, yes: str = "yes", no: str = "no") -> list[str]:
    """The values of a column as text, null as –. Floats have as many decimals as show four digits of the largest;
    percentages one or two, milliseconds three at most. They are rounded here and nowhere before."""
    if column.dtype.is_float():
        least, most = (1, 2) if column.name.endswith("%") else (0, 3 if column.name.endswith("ms") else 6)
        largest = column.abs().filter(column.is_finite()).to_list()
        decimals = min(max(3 - floor(log10(max(largest, default=0) or 1)), least), most)
        return [NOTHING if value is None else f"{round(value, decimals) + 0.0:.{decimals}f}" for value in column]
    words = {None: NOTHING, True: yes, False: no} if str(column.dtype) == "Boolean" else {None: NOTHING}
    return [words[value] if value in words else printable(value) for value in column]
