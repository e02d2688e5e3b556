"""The ranges of a source whose names may be those of pipeline work, as its profiler recorded them."""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

from trace_export.model import TEXT
from trace_export.sources.ranges import emitted
from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.ranges.ranges import RANGE


@dataclass
class Named:
    """Ranges whose names `dialects` may know (`RANGE`, text), and the `calls` of NCCL (with some of `CALL`), in pieces.
    `operators`: whether nodes of the autograd engine have ranges, too (emit_nvtx)."""

    dialects: Dialects
    ranges: list[pl.DataFrame] = field(default_factory=list)
    calls: list[pl.DataFrame] = field(default_factory=list)
    operators: bool = False

    def add(self, rows: pl.DataFrame) -> None:
        """Takes in those of the ranges (`RANGE`, text and other columns) that count."""
        counts = rows.lazy().filter(self.dialects.may_know("text")).select(*RANGE, "text")
        self.ranges.append(counts.collect())
        self.operators = self.operators or emitted.numbers_nodes(rows["text"])

    @property
    def texts(self) -> pl.Series:
        """The names of the ranges."""
        return pl.concat([pl.Series("text", [], TEXT), *(rows["text"] for rows in self.ranges)])
