"""The device tasks of a rocpd database, by rank and stream, for the rows below the blocks."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from trace_export.model import KernelFile
from trace_export.sources.rocpd.capture import gpus, is_nccl
from trace_export.sources.rocpd.tables import Tables
from trace_export.sources.shared.names import LONGEST_NAME
from trace_export.sources.shared.sqlite import overlapping
from trace_export.sources.shared.task_writer import TaskWriter
from trace_export.sources.source import TaskRequest


def write_tasks(processes: list[Tables], request: TaskRequest) -> tuple[KernelFile, ...]:
    """One file per rank with the tasks that the request asks for: RCCL's kernels, or all work."""
    writer = TaskWriter(request.folder)
    for tables in processes:
        if tables.process not in request.ranks:
            continue
        for table in ("kernel_dispatch",) if request.detail == "comm" else ("kernel_dispatch", "memory_copy"):
            names = _names(tables, table)
            for chunk in _chunks(tables, table, request):
                writer.add_of(request, chunk, names, "unnamed", memory=table == "memory_copy")
    return writer.files()


def _chunks(tables: Tables, table: str, request: TaskRequest) -> Iterator[pl.DataFrame]:
    """The tasks as `TaskWriter.add_of` takes them; the device of a copy is the one that it goes to."""
    kernels = table == "kernel_dispatch"
    nccl = f"COALESCE({is_nccl(tables)}, 0)" if kernels else "0"
    only = f" AND {nccl}" if request.detail == "comm" else ""
    device = f", COALESCE(R.{'agent_id' if kernels else 'dst_agent_id'}, -1) AS device" if request.devices else ""
    sql = f"""SELECT COALESCE(R.stream_id, 0) AS stream, R.start AS start_ns, R."end" AS end_ns,
        COALESCE(R.{"kernel_id" if kernels else "name_id"}, -1) AS what, {nccl} AS nccl{device}
        FROM {tables.rows(table, "stream_id", *(["agent_id"] if device and kernels else []))}
        WHERE {overlapping(request.window_ns, "R.start", 'R."end"')}{only}"""
    columns = {"process": pl.lit(tables.process, pl.Int64)}
    if request.devices:
        columns["device"] = pl.col("device").replace_strict(gpus(tables), default=None, return_dtype=pl.Int64)
    return (chunk.with_columns(**columns) for chunk in tables.db.frames(tables.name(table), sql))


def _names(tables: Tables, table: str) -> dict[int, str]:
    """The names of the tasks in `table` by their numbers."""
    names, column = ("info_kernel_symbol", "display_name") if table == "kernel_dispatch" else ("string", "string")
    number = "kernel_id" if table == "kernel_dispatch" else "name_id"
    if not tables.has(table, number):
        return {}
    sql = f"""SELECT id, substr({column}, 1, {LONGEST_NAME}) FROM {tables.name(names)}
        WHERE id IN (SELECT {number} FROM {tables.name(table)}) AND {column} IS NOT NULL"""
    return {number: str(text) for number, text in tables.db.texts(sql)}
