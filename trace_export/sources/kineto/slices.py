"""Joins the begins of slices with their ends, which come later in the file but in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trace_export.errors import SourceError

_BEGIN, _END = 1, 2


class SliceEnds:
    """Begins and ends in the order of the file. Memory holds what is wanted of the begins that have no end yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begun: list[pl.DataFrame] = []
        self._ends: list[pl.DataFrame] = []
        self._begins = self._ended = 0  # how many there were
        self._ending = False  # whether the last was an end
        self._whole = self._finished = 0  # how many begins and their ends are known to be whole, and were given away

    @property
    def pending(self) -> bool:
        """Whether begins wait for their ends."""
        return self._ended < self._begins

    def add(self, kind: NDArray[np.int64], events: pl.DataFrame, wanted: NDArray[np.bool_]) -> None:
        """Takes in the `events` (track, start and further columns), of which `kind` says what each is; only begins that
        are `wanted` are kept. Raises SourceError when an end comes before its begin, or a begin after some ends of
        those before it and before the others.

        Example: `begin begin end end begin end` is in order, `begin begin end begin end end` is not.
        """
        both = np.flatnonzero((kind == _BEGIN) | (kind == _END))
        if not len(both):
            return
        end = kind[both] == _END
        begun, ended = self._begins + np.cumsum(~end), self._ended + np.cumsum(end)
        anew = ~end & np.append(self._ending, end[:-1])
        if (ended > begun).any() or (ended[anew] < begun[anew] - 1).any():
            raise self._disorder()
        if anew.any():
            self._whole = int(ended[anew][-1])
        self._begins, self._ended, self._ending = int(begun[-1]), int(ended[-1]), bool(end[-1])
        kept = ~end & wanted[both]
        self._begun.append(events[both[kept]].with_columns(number=pl.Series(begun[kept] - 1)))
        ends = events[both[end]].select("track", end="start").with_columns(number=pl.Series(ended[end] - 1))
        self._ends.append(ends.join(pl.concat(part.select("number") for part in self._begun), on="number", how="semi"))

    def finished(self, *, last: bool = False) -> Iterator[pl.DataFrame]:
        """The wanted slices that have become complete: their columns and `end`; with `last` all that have an end.
        Begins without one, where the trace breaks off, are dropped. Raises SourceError when the tracks of ends are not
        those of the begins."""
        whole = self._ended if last or not self.pending else self._whole
        if whole == self._finished:
            return
        begun, ends = pl.concat(self._begun), pl.concat(self._ends)
        found = begun.filter(pl.col("number") < whole).join(ends, on="number", maintain_order="left", suffix="_end")
        if (found["track"] != found["track_end"]).any():
            raise self._disorder()
        self._begun, self._ends = ([part.filter(pl.col("number") >= whole)] for part in (begun, ends))
        self._finished = whole
        yield found.drop("number", "track_end")

    def _disorder(self) -> SourceError:
        what = "its slices do not end in the order they begin, as torch.profiler writes them"
        return SourceError(self._path, what, "export the trace as .json")
