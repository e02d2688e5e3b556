"""Files that grow, of which what was appended is read and the last steps are kept."""

from __future__ import annotations

from collections.abc import Set
from io import BufferedReader

import polars as pl

SEEN_BYTES = 256
"""So many of the last bytes that were read must stand there still when a file is read on."""


class Starts:
    """Counts the runs of a job by the starts of its ranks, whatever numbers them: `run`, and `started`, those that were
    started in it."""

    def __init__(self) -> None:
        self.run = 0
        self.started: set[int] = set()

    def add(self, numbers: Set[int], again: Set[int]) -> bool:
        """`numbers` were started, those in `again` while they were followed; whether a new run has begun: one of these
        was started in this run before."""
        begins = bool(again & self.started)
        if begins:
            self.run += 1
            self.started = set()
        self.started |= numbers
        return begins


def goes_on(file: BufferedReader, offset: int, seen: bytes) -> bool:
    """Whether the file still has before `offset`, the first byte not read, the bytes `seen` there; the file is left at
    `offset` if so."""
    file.seek(offset - len(seen))
    return file.read(len(seen)) == seen


def last_dropped(newest: pl.Expr, keep: int, taken: int | None, most: int) -> pl.Expr:
    """The last step that is not kept of a rank whose `newest` is there: `keep` steps are, and those after `taken`, the
    last one that nobody will ask for any more, but not more than `most`."""
    if taken is None:
        return newest - keep
    return pl.max_horizontal(pl.min_horizontal(newest - keep, pl.lit(taken)), newest - most)
