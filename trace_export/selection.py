"""What users write and read: sets of whole numbers ("2-4,7"), times ("3.2ms") and windows of time ("1.5s-2.0s")."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trace_export.errors import UsageError

NANOSECONDS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "": 1_000_000_000}


@dataclass(frozen=True)
class Numbers:
    """A set of whole numbers as inclusive ranges, so that 0-9999999 costs nothing."""

    ranges: tuple[tuple[int, int], ...]

    @staticmethod
    def parse(text: str, option: str) -> Numbers | None:
        """`all` gives None, "0,2-4" the numbers 0, 2, 3, 4. Raises UsageError that names `option`."""
        if text.strip().lower() == "all":
            return None
        ranges = []
        for part in text.split(","):
            match = re.fullmatch(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", part)
            if match is None or int(match[1]) > int(match[2] or match[1]):
                raise UsageError(f'{option} "{text}" is not a list of numbers', f"write it like {option} 0,1,4-7")
            ranges.append((int(match[1]), int(match[2] or match[1])))
        return Numbers(tuple(sorted(ranges)))

    def __contains__(self, number: int) -> bool:
        return any(low <= number <= high for low, high in self.ranges)

    def __str__(self) -> str:
        return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in self.ranges)


def nanoseconds(text: str, option: str) -> int:
    """A duration such as `3.2ms`, `-40us` or `1.5s` (no unit: seconds). Raises UsageError that names `option`."""
    match = re.fullmatch(r"\s*([+-]?)(\d+)(?:\.(\d+))?\s*(ns|us|µs|ms|s|)\s*", text)
    if match is None:
        raise UsageError(f'{option}: "{text}" is not a time', "write it like 3.2ms, 40us or 1.5s")
    sign, whole, fraction, unit = match.groups()
    scale = NANOSECONDS[unit]
    value = int(whole) * scale + round(float(f"0.{fraction or 0}") * scale)
    return -value if sign == "-" else value


def duration(ns: float, *, sign: bool = False) -> str:
    """A time as people read it: three significant digits in the unit that fits; with `sign` a plus where it is one."""
    plus = "+" if sign else ""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(ns) >= size:
            return f"{ns / size:{plus}.3g} {unit}"
    return f"{ns:{plus}.0f} ns"


@dataclass(frozen=True)
class Window:
    """A span of time in nanoseconds since the first event of the run."""

    start_ns: int
    end_ns: int

    @staticmethod
    def parse(text: str, option: str) -> Window:
        """`1.5s-2.0s`. Raises UsageError that names `option`."""
        start, dash, end = text.partition("-")
        if not dash:
            raise UsageError(f'{option} "{text}" is not a window of time', f"write it like {option} 1.5s-2.0s")
        window = Window(nanoseconds(start, option), nanoseconds(end, option))
        if window.start_ns >= window.end_ns:
            raise UsageError(f'{option} "{text}" ends before it starts')
        return window
