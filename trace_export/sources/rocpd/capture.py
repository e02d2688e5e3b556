"""The GPU work in a rocpd database, attributed to its ranges by the calls of HIP that launched it.

`stack_id` of the event of a call and of a kernel is the same number, unique in the process; `correlation_id` is the
application's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import polars as pl

from trace_export.inference.kernel_names import is_like
from trace_export.sources.ranges.by_launch import KERNEL_LAUNCHES
from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.ranges.named import Named
from trace_export.sources.ranges.ranges import RANGE
from trace_export.sources.rocpd.tables import MARKERS, RCCL, Tables
from trace_export.sources.shared.names import LONGEST_NAME
from trace_export.sources.shared.sqlite import decoded

_PLACE = ("agent_id", "queue_id", "stream_id")
"""Where a kernel ran."""
_STREAM = """((COALESCE(R.agent_id, -1) * 65536 + COALESCE(R.queue_id, 0) % 65536) * 65536
    + COALESCE(R.stream_id, 0) % 65536)"""
"""One number for that. Streams that were not recorded share one number, and the queue tells them apart."""


def launches_kernels(tables: Tables) -> bool:
    """Whether there is a call that launches a kernel."""
    rows = tables.rows("region").format(where="TRUE")
    return bool(tables.db.texts(f"SELECT 1 FROM {rows} WHERE {tables.named(f'hip{KERNEL_LAUNCHES}')} LIMIT 1"))


def is_nccl(tables: Tables) -> str:
    """The condition that a dispatch runs a kernel of RCCL, which has NCCL's names."""
    symbols = tables.name("info_kernel_symbol")
    return f"R.kernel_id IN (SELECT id FROM {symbols} WHERE {is_like('display_name')})"


def calls(tables: Tables, condition: str, **more: str) -> Iterator[pl.DataFrame]:
    """start, thread and correlation of the calls that meet the condition, and `more`, column → SQL."""
    columns = "".join(f", {sql} AS {name}" for name, sql in more.items())
    sql = f"""SELECT R.start AS start, COALESCE(R.tid, 0) AS thread,
        COALESCE(NULLIF(E.stack_id, 0), -1) AS correlation{columns}
        FROM {tables.rows("region", "tid")} {tables.event()} WHERE {condition}"""
    return tables.db.frames(tables.name("region"), sql)


def kernels(tables: Tables, **more: str) -> Iterator[pl.DataFrame]:
    """correlation, start, end and stream (of all queues of all agents) of the kernels, and `more`, column → SQL."""
    columns = "".join(f", {sql} AS {name}" for name, sql in more.items())
    sql = f"""SELECT COALESCE(NULLIF(E.stack_id, 0), -2) AS correlation, R.start AS start, R."end" AS "end",
        {_STREAM} AS stream{columns} FROM {tables.rows("kernel_dispatch", *_PLACE)} {tables.event()}"""
    return tables.db.frames(tables.name("kernel_dispatch"), sql)


def gpus(tables: Tables) -> dict[int, int]:
    """Agent → the GPU's number on its host."""
    if not tables.has("info_agent", "type", "type_index"):
        return {}
    rows = tables.db.texts(f"SELECT id, type_index FROM {tables.name('info_agent')} WHERE type = 'GPU'")
    return {agent: gpu for agent, gpu in rows if isinstance(gpu, int) and gpu >= 0}


def read_ranges(processes: Iterable[Tables], dialects: Dialects) -> Named:
    """All ranges whose names count."""
    named = Named(dialects)
    for tables in processes:
        for chunk in recorded(tables):
            named.add(chunk)
            named.calls.append(chunk.filter(pl.col("text").str.starts_with("nccl")))
    return named


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
