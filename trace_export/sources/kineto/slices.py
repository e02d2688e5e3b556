"""Joins the begins of slices with their ends, which come later in the file but in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

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
        self._begins = self._ended = 0
        self._ends: list[pl.DataFrame] = []
        self._finished: list[pl.DataFrame] = []

    @property
    def pending(self) -> bool:
        """Whether begins wait for their ends."""
        return self._ended < self._begins

    def add(self, kind: NDArray[np.int64], events: pl.DataFrame, wanted: NDArray[np.bool_]) -> None:
        """Takes in the `events` (track, start and further columns), of which `kind` says what each is; only begins that
        are `wanted` are kept. Raises SourceError when the tracks of ends are not those of the begins."""
        both = np.flatnonzero((kind == _BEGIN) | (kind == _END))
        borders = [0, *(np.flatnonzero(np.diff(kind[both])) + 1).tolist(), len(both)]
        for low, high in pairwise(borders):
            rows = both[low:high]
            if len(rows) and kind[rows[0]] == _BEGIN:
                self._begin(events, rows, wanted)
            elif len(rows):
                self._end(events, rows)

    def finished(self, *, last: bool = False) -> Iterator[pl.DataFrame]:
        """The wanted slices that have become complete: their columns and `end`; with `last` all that have an end."""
        if self._ended and (last or not self.pending):
            self._close()
        yield from self._finished
        self._finished = []

    def _begin(self, events: pl.DataFrame, rows: NDArray[Any], wanted: NDArray[np.bool_]) -> None:
        if self._ended and self.pending:
            raise self._disorder()
        if self._ended:
            self._close()
        number = np.arange(self._begins, self._begins + len(rows))
        kept = wanted[rows]
        self._begun.append(events[rows[kept]].with_columns(number=pl.Series(number[kept])))
        self._begins += len(rows)

    def _end(self, events: pl.DataFrame, rows: NDArray[Any]) -> None:
        ends = (
            events[rows].select("track", end="start").with_row_index("number", self._ended).cast({"number": pl.Int64})
        )
        self._ended += len(rows)
        if self._ended > self._begins:
            raise self._disorder()
        self._ends.append(ends.join(pl.concat(self._begun).select("number"), on="number", how="semi"))

    def _close(self) -> None:
        """Joins what was taken in; begins without an end, where the trace breaks off, are dropped."""
        found = pl.concat(self._begun).join(pl.concat(self._ends), on="number", maintain_order="left", suffix="_end")
        if (found["track"] != found["track_end"]).any():
            raise self._disorder()
        self._finished.append(found.drop("number", "track_end"))
        self._begun, self._ends, self._begins, self._ended = [], [], 0, 0

    def _disorder(self) -> SourceError:
        what = "its slices do not end in the order they begin, as torch.profiler writes them"
        return SourceError(self._path, what, "export the trace as .json")
