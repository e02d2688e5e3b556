"""Which recorded times can be true: profilers write 0 for what they do not know, and broken files hold anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, overload

import polars as pl

from trace_export.model import Note, Profile

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ints = npt.NDArray[np.signedinteger[Any]]

LATEST_NS: Final = 1 << 62
"""In the year 2116. The sum of two times before it fits into 64 bits."""
NO_TIME_NS: Final = -LATEST_NS
"""Stands for a time that cannot be read; no time is as early, of whatever clock."""

UNTIMED: Final = "without a valid time, left out"


def usable(start: str = "start_ns", end: str = "end_ns") -> pl.Expr:
    """Whether something can have run from `start` to `end`, columns of unix time; null where nobody can tell."""
    return (pl.col(start) > 0) & (pl.col(end) >= pl.col(start)) & (pl.col(end) < LATEST_NS)


@overload
def taken(start: pl.Expr, end: pl.Expr) -> pl.Expr: ...
@overload
def taken(start: Ints, end: Ints) -> npt.NDArray[np.bool_]: ...
def taken(start: Any, end: Any) -> Any:
    """Whether a profiler took the times `start` and `end`, expressions or arrays: it writes 0 where it could not.

    They are of a clock of its own, which may have been shifted, so that other times are below 0.
    """
    return (start != 0) & (start > NO_TIME_NS) & (start <= end) & (end < LATEST_NS)


def plausible(profile: Profile, path: Path) -> Profile:
    """The `profile` that was read from `path` less the rows whose times cannot be true, and notes that count them."""
    names = {"spans": "blocks", "p2p": "sends and receives", "collectives": "collectives", "counters": "samples"}
    kept: dict[str, Any] = {}
    notes = []
    for table, what in names.items():
        whole: pl.DataFrame = getattr(profile, table)
        times = ("ts_ns", "ts_ns") if table == "counters" else ("start_ns", "end_ns")
        if whole.is_empty():
            continue
        kept[table] = whole.filter(usable(*times).fill_null(True))
        if lost := whole.height - kept[table].height:
            notes.append(Note("times-unusable", "warning", f"{what} {UNTIMED}", str(path), lost))
    return replace(profile, **kept, notes=(*profile.notes, *notes)) if notes else profile
