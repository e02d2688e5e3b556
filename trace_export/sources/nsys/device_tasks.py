"""The device tasks of an Nsight Systems export, by rank and stream, for the rows below the blocks."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from trace_export.model import KernelFile
from trace_export.sources.nsys.cupti import COPY_TABLE, DEVICE, GRAPH_TABLE, KERNEL_TABLE, is_nccl
from trace_export.sources.nsys.session import NAMES, THREADS, process_of
from trace_export.sources.shared.sqlite import Database, overlapping
from trace_export.sources.shared.task_writer import TaskWriter
from trace_export.sources.shared.timestamps import valid_task_times
from trace_export.sources.source import TaskRequest

CLEAR_TABLE = "CUPTI_ACTIVITY_KIND_MEMSET"
NAME_COLUMN = {KERNEL_TABLE: "shortName", GRAPH_TABLE: "graphId", COPY_TABLE: "copyKind", CLEAR_TABLE: "0"}
"""Table → the column that identifies the task."""
MISSING = {KERNEL_TABLE: "kernel", GRAPH_TABLE: "CUDA graph", COPY_TABLE: "Memcpy", CLEAR_TABLE: "Memset"}
"""Table → the name of a task without one."""
COPY_KINDS = dict(enumerate(["HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP"], start=1))
"""CUpti_ActivityMemcpyKind: from host, device or array to the other; P between two devices."""


def write_tasks(db: Database, offset_ns: int, request: TaskRequest) -> tuple[KernelFile, ...]:
    """One file per rank with the tasks that the request asks for: NCCL's kernels, or all work.

    `offset_ns` turns session time into unix time.
    """
    writer, kernels = TaskWriter(request.folder), dict[int, str]()
    for table in (KERNEL_TABLE,) if request.detail == "comm" else NAME_COLUMN:
        for chunk in _chunks(db, table, offset_ns, request):
            if table == KERNEL_TABLE:
                kernels |= db.names(NAMES, [number for number in chunk["what"].unique() if number not in kernels])
            names = kernels if table == KERNEL_TABLE else _names(table, chunk["what"])
            memory = table in (COPY_TABLE, CLEAR_TABLE)
            writer.add_of(request, chunk, names, MISSING[table], memory=memory)
    return writer.files()


def _names(table: str, what: pl.Series) -> dict[int, str]:
    """The names of tasks that are no kernels by their numbers."""
    if table == GRAPH_TABLE:
        return {number: f"CUDA graph {number}" for number in what.unique()}
    return {number: f"Memcpy {kind}" for number, kind in COPY_KINDS.items()} if table == COPY_TABLE else {}


def _chunks(db: Database, table: str, offset_ns: int, request: TaskRequest) -> Iterator[pl.DataFrame]:
    """The tasks as `TaskWriter.add_of` takes them."""
    if not db.has(table):
        return
    nccl = is_nccl(db, table)
    only = f" AND {nccl}" if request.detail == "comm" else ""
    only += " AND " + overlapping(request.window_ns, "start", '"end"', offset_ns)
    processes = [process for process in request.ranks if process is not None]
    owners = (
        min(processes) * THREADS,
        (max(processes) + 1) * THREADS - 1,
    )  # a list of many makes SQLite's expression too deep
    only += f" AND COALESCE(globalPid, 0) BETWEEN {owners[0]} AND {owners[1]}"
    device = f", {DEVICE} AS device" if request.devices else ""
    sql = f"""SELECT COALESCE(globalPid, 0) AS owner, COALESCE(streamId, 0) AS stream, start AS start, "end" AS "end",
        COALESCE({NAME_COLUMN[table]}, 0) AS what, CAST({nccl} AS INTEGER) AS nccl{device}
        FROM {table} WHERE {{where}}{only}"""
    times = {f"{end}_ns": pl.col(end) + offset_ns for end in ("start", "end")}
    for chunk in db.frames(table, sql):
        timed = chunk.filter(valid_task_times(pl.col("start"), pl.col("end")))
        yield timed.with_columns(process_of("owner"), **times)
