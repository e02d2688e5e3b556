"""All device tasks of an Ascend rank, for the rows below the blocks: read in pieces, kept in a file."""

from __future__ import annotations

import polars as pl

from trace_export.model import KernelFile
from trace_export.sources.ascend import text_export
from trace_export.sources.ascend.database import ON_DEVICE, texts
from trace_export.sources.shared.external_sort import ExternalSort
from trace_export.sources.shared.sqlite import Database, overlapping
from trace_export.sources.source import TaskRequest

PIECE_ROWS = 1 << 19


def from_database(db: Database, request: TaskRequest) -> tuple[KernelFile, ...]:
    """What the request asks for of the table TASK: the small tasks of communication, or everything.

    A task is called as its kernel, as the small task of communication that it is, or as its own type.
    """
    communicates = db.has("COMMUNICATION_TASK_INFO", "globalTaskId", "taskType")
    computes = request.detail == "kernels" and db.has("COMPUTE_TASK_INFO", "globalTaskId", "name")
    if request.detail == "comm" and not communicates:
        return ()
    inner = "" if request.detail == "comm" else "LEFT "
    joins = ""
    if communicates:
        info = db.keyed("COMMUNICATION_TASK_INFO", "globalTaskId", "taskType")
        joins += f"{inner}JOIN {info} m ON m.globalTaskId = t.globalTaskId "
    if computes:
        info = db.keyed("COMPUTE_TASK_INFO", "globalTaskId", "name")
        joins += f"LEFT JOIN {info} c ON c.globalTaskId = t.globalTaskId "
    transfer, kernel = "m.taskType" if communicates else "NULL", "c.name" if computes else "NULL"
    sorter, names = ExternalSort(request.folder), dict[int, str]()
    inside = overlapping(request.window_ns, "t.startNs", "t.endNs")
    for where in db.chunks("TASK", PIECE_ROWS):
        rows = db.frame(
            f"SELECT t.startNs AS start_ns, t.endNs AS end_ns, t.streamId AS stream, {kernel} IS NOT NULL AS computes,"
            f" {transfer} IS NOT NULL AS communicates, COALESCE({kernel}, {transfer}, t.taskType) AS name"
            f" FROM TASK t {joins}WHERE t.{where} AND {inside} AND NOT ({ON_DEVICE})"
        )
        sorter.add(request.rank, _named(db, rows, names))
    return sorter.files()


def _named(db: Database, rows: pl.DataFrame, names: dict[int, str]) -> pl.DataFrame:
    """`rows` with names, streams and categories; `names` keeps the texts that were looked up."""
    ids = rows["name"].unique()
    names |= texts(db, [i for i in ids if i not in names])
    found = pl.Series("text", [names.get(i, "task") for i in ids], pl.String)
    known = pl.DataFrame([ids, found]).with_columns(
        pl.col("text").cast(pl.Categorical), memory=pl.col("text").str.contains("^(?:MEMCPY|SDMA)")
    )
    streams = rows.select(pl.col("stream").unique()).with_columns(title=pl.format("stream {}", "stream"))
    return (
        rows.join(known, on="name", how="left", maintain_order="left")
        .join(streams, on="stream", how="left", maintain_order="left")
        .select(
            "start_ns", "end_ns", stream="title", name="text",
            category=pl.when(pl.col("computes") != 0).then(pl.lit("compute"))
            .when(pl.col("communicates") != 0).then(pl.lit("communication"))
            .when("memory").then(pl.lit("memory")),
        )
    )  # fmt: skip


def from_text(rows: pl.LazyFrame, request: TaskRequest) -> tuple[KernelFile, ...]:
    """The same of kernel_details.csv (text_export.KERNELS); operators of communication are a stream of their own."""
    communicates = pl.col("core").is_in(text_export.COMMUNICATION).fill_null(False)
    if request.detail == "comm":
        rows = rows.filter(communicates)
    if request.window_ns is not None:
        first, last = request.window_ns
        rows = rows.filter((pl.col("end_ns") >= first) & (pl.col("start_ns") <= last))
    stream = pl.format("stream {}", pl.col("stream").fill_null(0))
    tasks = rows.select(
        "start_ns", "end_ns", pl.col("name").cast(pl.Categorical),
        stream=pl.when(communicates).then(pl.lit("communication")).otherwise(stream),
        category=pl.when(communicates).then(pl.lit("communication")).otherwise(pl.lit("compute")),
    )  # fmt: skip
    sorter = ExternalSort(request.folder)
    for piece in tasks.collect_batches(chunk_size=PIECE_ROWS):
        sorter.add(request.rank, piece)
    return sorter.files()
