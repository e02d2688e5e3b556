"""Which timestamps are valid: profilers write 0 for a time that they do not know, and broken files hold anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast, overload

import polars as pl

from trace_export.model import Note, Profile

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ints = npt.NDArray[np.signedinteger[Any]]

LATEST_NS: Final = 1 << 62
"""In the year 2116. The sum of two times before it fits into 64 bits."""
LONGEST_TASK_NS: Final = 86_400 * 10**9
"""A day. Kernels take milliseconds, and those that wait for a lost partner are ended after hours (NCCL's watchdog waits
10 minutes unless it is given another time)."""
NO_TIME_NS: Final = -LATEST_NS
"""Stands for a time that cannot be read; no time is as early, of whatever clock."""
FAR_NS: Final = 60 * 10**9
"""A time belongs to another clock if it is this far from a recording, and FAR_TIMES as far as nearly all times are
apart."""
FAR_TIMES: Final = 10

ZERO_NS: Final = 1_000_000_000
"""Where times that count from 0 begin: a time of 0 would count as missing."""

UNTIMED: Final = "without a valid time, left out"


def valid_unix_times(start: str = "start_ns", end: str = "end_ns") -> pl.Expr:
    """Whether the columns `start` and `end` of unix time are a valid interval; null where one of them is."""
    return (pl.col(start) > 0) & (pl.col(end) >= pl.col(start)) & (pl.col(end) < LATEST_NS)


@overload
def valid_task_times(start: pl.Expr, end: pl.Expr) -> pl.Expr: ...
@overload
def valid_task_times(start: Ints, end: Ints) -> npt.NDArray[np.bool_]: ...
def valid_task_times(start: Any, end: Any) -> Any:
    """Whether `start` and `end`, expressions or arrays, are a valid interval in the profiler's time in which a device
    can have run one task.

    A profiler writes 0 for a time that it does not know. Its clock may have been shifted, so that other times are
    below 0.
    """
    ordered = (start != 0) & (start > NO_TIME_NS) & (start <= end) & (end < LATEST_NS)
    return ordered & (end - start <= LONGEST_TASK_NS)


def valid_tasks() -> pl.Expr:
    """Whether `start_ns` and `end_ns`, unix times, are a valid interval in which a device can have run one task."""
    return valid_unix_times() & (pl.col("end_ns") - pl.col("start_ns") <= LONGEST_TASK_NS)


def is_far(start: pl.Expr) -> pl.Expr:
    """Which starts in one recording, which has no gaps, are of another clock: they lie far from nearly all others."""
    low, middle, high = (start.quantile(part, "nearest") for part in (0.05, 0.5, 0.95))
    return (start - middle).abs() > FAR_NS + FAR_TIMES * (high - low)


def without_invalid_times(profile: Profile, path: Path) -> Profile:
    """The `profile` of the source at `path` without the rows whose times are invalid, and notes that count them."""
    names = {"spans": "blocks", "p2p": "sends and receives", "collectives": "collectives", "counters": "samples"}
    kept: dict[str, Any] = {}
    notes = []
    for table, what in names.items():
        whole: pl.DataFrame = getattr(profile, table)
        times = ("ts_ns", "ts_ns") if table == "counters" else ("start_ns", "end_ns")
        if _are_valid(whole[times[0]], whole[times[1]]):
            continue
        valid = whole.select(valid_unix_times(*times).fill_null(True)).to_series()
        if lost := whole.height - int(valid.sum()):
            kept[table] = whole.filter(valid)
            notes.append(Note("times-unusable", "warning", f"{what} {UNTIMED}", str(path), lost))
    return replace(profile, **kept, notes=(*profile.notes, *notes)) if notes else profile


def _are_valid(start: pl.Series, end: pl.Series) -> bool:
    """Whether all these intervals are known to be valid. The extremes tell so in a tenth of the time of a test of each
    row, which counts where there are many small sources."""
    extremes = [cast("int | None", time) for time in (start.min(), end.min(), end.max())]
    if not all(time is not None and 0 < time < LATEST_NS for time in extremes):
        return start.is_empty()
    shortest = cast("int | None", (end - start).min())
    return shortest is None or shortest >= 0
