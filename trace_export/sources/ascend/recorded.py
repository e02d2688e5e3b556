"""The content of the files of one rank of an Ascend run, a database or a text export."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from trace_export.model import Note
from trace_export.sources.ascend.database import Rows
from trace_export.sources.ascend.marker_blocks import Looks
from trace_export.sources.ascend.metadata import Metadata
from trace_export.sources.source import Source


@dataclass(frozen=True)
class Recorded:
    """One rank. A database has `rows`, whose tables are made for many at once; a text export the `tables` marks,
    operators and copies. `steps` and `counters` are those of marker_blocks.STEPS and model.COUNTERS, without a rank.
    `kernels`, `optimizing` and `looks` look at the kernels when asked. `of_device`: of a process
    with several devices the one that is this rank; `is_first` of them, and `unreached` of how many ranges none of them
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
    kernels: Callable[[], pl.DataFrame]
    optimizing: Callable[[], pl.DataFrame]
    looks: Looks = Looks()
    rows: Rows | None = None
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    epoch: str | None = None
    of_device: int | None = None
    is_first: bool = True
    unreached: int = 0
    whole: bool = True
    until: Mapping[str, int | None] = field(default_factory=dict)


def of_each(parts: Sequence[Recorded], rows: pl.DataFrame, look: str) -> pl.Series:
    """The answers of the recordings of the `rows` to one of `Looks`."""
    answers = [
        part.select("at").with_columns(answer=getattr(parts[part["capture"][0]].looks, look)(part))
        for part in rows.with_row_index("at").partition_by("capture")
    ]
    return pl.concat(answers).sort("at")["answer"]
