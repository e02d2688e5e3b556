"""The content of the files of one rank of an Ascend run, a database or a text export."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from trace_export.model import Note
from trace_export.sources.ascend.database import Rows
from trace_export.sources.ascend.marker_blocks import Kernels
from trace_export.sources.ascend.metadata import Metadata
from trace_export.sources.source import Source


@dataclass(frozen=True)
class Recorded:
    """One rank. A database has `rows`, whose tables are made for many at once; a text export the `tables` marks,
    operators and copies. `steps` and `counters` are those of marker_blocks.STEPS and model.COUNTERS, without a rank.
    The blocks that markers show are put to `looks`, others are made of the `kernels`. `of_device`: of a process with
    several devices the one that is this rank; `is_first` of them, and `unreached` of how many ranges none of them
    reached the end. `whole`: all tasks were read; `until`: `Profile.recorded_until`.
    """

    source: Source
    rank: int
    rank_origin: str
    device: int | None
    host: str
    label: str
    meta: Metadata
    steps: pl.DataFrame
    counters: pl.DataFrame
    kernels: Kernels
    looks: Kernels
    rows: Rows | None = None
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    epoch: str | None = None
    of_device: int | None = None
    is_first: bool = True
    unreached: int = 0
    whole: bool = True
    until: Mapping[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class KernelsOfAll(Kernels):
    """The kernels of several recordings, which answer for the rows of their captures."""

    parts: Sequence[Recorded]

    def busy(self, ranges: pl.DataFrame) -> pl.Series:
        return self._of_each(ranges, lambda kernels, rows: kernels.busy(rows))

    def before(self, times: pl.DataFrame) -> pl.Series:
        return self._of_each(times, lambda kernels, rows: kernels.before(rows))

    def between(self, ranges: pl.DataFrame) -> pl.Series:
        return self._of_each(ranges, lambda kernels, rows: kernels.between(rows))

    def _of_each(self, rows: pl.DataFrame, look: Callable[[Kernels, pl.DataFrame], pl.Series]) -> pl.Series:
        answers = [
            pl.DataFrame([part["at"], look(self.parts[part["capture"][0]].looks, part).alias("answer")])
            for part in rows.with_row_index("at").partition_by("capture")
        ]
        return pl.concat(answers).sort("at")["answer"]
