"""Several sources worked out together: one profile of all of them, and from it that of each.

Where little is read of each source, most of the time goes into the calls of the table library and not into their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence, Sized
from contextlib import ExitStack, suppress
from typing import TypeVar

import numpy as np
import polars as pl

from trace_export.errors import SourceError
from trace_export.model import INT, Profile

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


def places(tables: Sequence[Sized]) -> pl.Series:
    """For each row of the `tables` of several sources, put one after the other, the place of its source (Int32)."""
    rows = np.fromiter(map(len, tables), np.int64)
    return pl.Series(np.arange(len(tables), dtype=np.int32).repeat(rows), dtype=INT)


def read_opened(
    sources: Sequence[Key],
    opened: Callable[[Key, ExitStack], Item | None],
    make: Callable[[Sequence[Item]], Sequence[Profile | None] | None],
) -> list[Profile | None]:
    """The profile of each source, made `by_halves` of what `opened` gives for it; None where that is None. What
    `opened` puts on the stack stays open until all are made."""
    with ExitStack() as stack:
        known = {source: one for source in sources if (one := opened(source, stack)) is not None}
        made = dict(zip(known, by_halves(make, list(known.values())), strict=True))
        return [made.get(source) for source in sources]


def by_halves(
    make: Callable[[Sequence[Item]], Sequence[Profile | None] | None], items: Sequence[Item]
) -> list[Profile | None]:
    """What `make` gives for all `items` together, or where that is None or an error of the data, for each half of them,
    and so on: one of which there is something to say does not keep the others from being made together. None for such
    a one: its reader says it."""
    made = None
    if items:
        with suppress(SourceError, pl.exceptions.PolarsError):
            made = make(items)
    if made is not None:
        return list(made)
    if len(items) < 2:
        return [None] * len(items)
    middle = len(items) // 2
    return by_halves(make, items[:middle]) + by_halves(make, items[middle:])
