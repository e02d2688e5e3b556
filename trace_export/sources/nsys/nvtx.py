"""The NVTX ranges of an Nsight Systems export that name pipeline work.

A range's name is in `text` or, when it was registered, in StringIds under `textId`. Every export has the event
types 59 (pushed and popped on one thread) and 60 (started and ended anywhere); `end` is null while a range is open.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import polars as pl

from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.ranges.frequent import NameCounts
from trace_export.sources.ranges.ranges import RANGE, Ranges, beside_passes, gather
from trace_export.sources.shared.sqlite import Database, decoded

TABLE = "NVTX_EVENTS"
LONGEST_RANGE = 256
"""Characters of a registered name: each of its ranges has it in memory once more. Names of pipeline work have fewer."""


class Named(NamedTuple):
    """Ranges whose names `dialects` may know, and the calls of NCCL, in pieces."""

    dialects: Dialects
    named: list[pl.DataFrame]
    calls: list[pl.DataFrame]

    def pipeline(self) -> Ranges:
        """The ranges of the processes that have a block other than the optimizer's, with their NCCL calls."""
        return gather(self.named, self.calls, self.dialects)

    def beside(self, *, only: bool) -> Ranges:
        """See ranges.beside_passes."""
        return beside_passes(self.named, self.dialects, only=only)


def read_ranges(db: Database, dialects: Dialects) -> Named:
    """All ranges whose names count."""
    found = Named(dialects, [], [])
    for chunk in _chunks(db):
        found.named.append(chunk.filter(dialects.may_know("text")))
        found.calls.append(chunk.filter(pl.col("text").str.starts_with("nccl")))
    return found


def counted_names(db: Database) -> NameCounts:
    """The names of the file's ranges."""
    counts = NameCounts()
    for chunk in _chunks(db):
        counts.add(chunk["text"])
    return counts


def _chunks(db: Database) -> Iterator[pl.DataFrame]:
    """The ranges in frames of bounded size: the columns of `RANGE` and `text`. An open range ends before it starts."""
    if not db.has(TABLE):
        return
    text_id = "COALESCE(textId, -1)" if db.has(TABLE, "textId") else "-1"
    registered = pl.DataFrame(
        db.texts(
            f"SELECT id, substr(value, 1, {LONGEST_RANGE}) FROM StringIds WHERE id IN (SELECT {text_id} FROM {TABLE})"
        ),
        schema={"textId": pl.Int64, "registered": pl.String},
        orient="row",
    ).unique("textId", keep="first")
    sql = f"""SELECT rowid AS row, COALESCE(globalTid, 0) >> 24 AS process, COALESCE(globalTid, 0) AS thread,
        start AS start, COALESCE("end", start - 1) AS "end", {text_id} AS textId,
        CAST(COALESCE(text, '') AS BLOB) AS text
        FROM {TABLE} WHERE {{where}} AND eventType IN (59, 60)"""
    for frame in db.frames(TABLE, sql, blobs=["text"]):
        frame = frame.with_columns(decoded(frame["text"]))
        frame = frame.join(registered, on="textId", how="left", maintain_order="left")
        name = pl.when(pl.col("text") == "").then(pl.col("registered").fill_null("")).otherwise("text")
        yield frame.select(*RANGE, name.alias("text"))
