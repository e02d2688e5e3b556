"""The device tasks of an Nsight Systems export, by rank and stream, for the rows below the blocks."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from trace_export.model import KernelFile
from trace_export.sources.nsys.cupti import COPY_TABLE, DEVICE, GRAPH_TABLE, KERNEL_TABLE, is_nccl
from trace_export.sources.nsys.session import NAMES, THREADS, process_of
from trace_export.sources.shared.sqlite import Database, overlapping
from trace_export.sources.shared.task_writer import MOVES_OR_COMPUTES, TaskWriter, texts_of
from trace_export.sources.shared.timestamps import valid_task_times
from trace_export.sources.source import TaskRequest

CLEAR_TABLE = "CUPTI_ACTIVITY_KIND_MEMSET"
NAME_COLUMN = {KERNEL_TABLE: "shortName", GRAPH_TABLE: "graphId", COPY_TABLE: "copyKind", CLEAR_TABLE: "0"}
"""Table → the column that identifies the task."""
COPY_KINDS = dict(enumerate(["HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP"], start=1))
"""CUpti_ActivityMemcpyKind: from host, device or array to the other; P between two devices."""


def write_tasks(db: Database, offset_ns: int, request: TaskRequest) -> tuple[KernelFile, ...]:
    """One file per rank with the tasks that the request asks for: NCCL's kernels, or all work.

    `offset_ns` turns session time into unix time.
    """
    writer = TaskWriter(request.folder)
    numbers = [
        (process, rank, device)
        for process, only in request.ranks.items()
        for rank, device in request.devices.get(process, {only: None}).items()
    ]
    ranks = pl.DataFrame(numbers, {"process": pl.Int64, "rank": pl.Int32, "only": pl.Int64}, orient="row")
    names: dict[int, str] = {}
    for table in (KERNEL_TABLE,) if request.detail == "comm" else NAME_COLUMN:
        for chunk in _chunks(db, table, offset_ns, request):
            tasks = chunk.filter(valid_task_times(pl.col("start"), pl.col("end"))).join(ranks, on="process")
            if request.devices:
                tasks = tasks.filter(pl.col("only").is_null() | (pl.col("only") == pl.col("device")))
            tasks = tasks.with_columns(
                _name(db, table, tasks["what"], names),
                stream=pl.format("stream {}", pl.col("stream")),
                category=pl.lit("memory") if table in (COPY_TABLE, CLEAR_TABLE) else MOVES_OR_COMPUTES,
                start_ns=pl.col("start") + offset_ns,
                end_ns=pl.col("end") + offset_ns,
            )
            for (rank,), part in tasks.group_by("rank"):
                writer.add(rank, part)
    return writer.files()


def _chunks(db: Database, table: str, offset_ns: int, request: TaskRequest) -> Iterator[pl.DataFrame]:
    """process, stream, start, end, what (the number behind the task's name), nccl (0 or 1), device, if it counts."""
    if not db.has(table):
        return iter(())
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
    return (chunk.with_columns(process_of("owner")) for chunk in db.frames(table, sql))


def _name(db: Database, table: str, what: pl.Series, names: dict[int, str]) -> pl.Series:
    """The tasks' names; `names` keeps the strings that were looked up."""
    if table == KERNEL_TABLE:
        names |= db.names(NAMES, [number for number in what.unique() if number not in names])
        return texts_of(what, names, "kernel")
    if table == GRAPH_TABLE:
        return texts_of(what, {n: f"CUDA graph {n}" for n in what.unique()}, "CUDA graph")
    if table == COPY_TABLE:
        return texts_of(what, {n: f"Memcpy {kind}" for n, kind in COPY_KINDS.items()}, "Memcpy")
    return texts_of(what, {}, "Memset")
