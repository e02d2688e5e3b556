"""The ROCTx ranges of a rocpd database that name pipeline work, and its calls of RCCL.

A range's name is the message in the data of its event; a call of RCCL has the name of its region. What took no time is
in another table: a mark, and no range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import polars as pl

from trace_export.inference.sequence_numbers import OPERATORS
from trace_export.sources.ranges import emitted
from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.ranges.frequent import NameCounts
from trace_export.sources.ranges.named import Named
from trace_export.sources.ranges.ranges import RANGE
from trace_export.sources.rocpd.tables import MARKERS, RCCL, Tables
from trace_export.sources.shared.names import LONGEST_NAME
from trace_export.sources.shared.sqlite import decoded


def read_ranges(processes: Iterable[Tables], dialects: Dialects) -> Named:
    """All ranges whose names count."""
    named = Named(dialects)
    for tables in processes:
        for chunk in recorded(tables):
            named.add(chunk)
            named.calls.append(chunk.filter(pl.col("text").str.starts_with("nccl")))
    return named


def read_operators(tables: Tables) -> pl.DataFrame:
    """The ranges of torch's emit_nvtx around operators and nodes: schema sequence_numbers.OPERATORS."""
    ranges = (chunk.select("thread", "start", "end", "text") for chunk in recorded(tables))
    return pl.concat([pl.DataFrame(schema=OPERATORS), *(emitted.operators(chunk) for chunk in ranges)])


def counted_names(processes: Iterable[Tables]) -> NameCounts:
    """The names of all ranges."""
    counts = NameCounts()
    for tables in processes:
        for chunk in recorded(tables):
            counts.add(chunk["text"])
    return counts


def recorded(tables: Tables) -> Iterator[pl.DataFrame]:
    """The ranges in frames of bounded size: the columns of `RANGE` and `text`."""
    message = "CASE WHEN json_valid(E.extdata) THEN json_extract(E.extdata, '$.message') END"
    text = f"substr(COALESCE({message}, N.string, ''), 1, {LONGEST_NAME})"
    sql = f"""SELECT R.row AS row, {tables.process} AS process, COALESCE(R.tid, 0) AS thread, R.start AS start,
        R."end" AS "end", CAST({text} AS BLOB) AS text
        FROM {tables.rows("region", "tid")} {tables.event()}
        LEFT JOIN {tables.name("string")} AS N ON N.id = R.name_id
        WHERE {tables.of_category(MARKERS, RCCL)}"""
    for frame in tables.db.frames(tables.name("region"), sql, blobs=["text"]):
        yield frame.with_columns(decoded(frame["text"])).select(*RANGE, "text")
