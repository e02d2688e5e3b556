"""The device tasks of a rocpd database, by rank and stream, for the rows below the blocks."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from trace_export.model import KernelFile
from trace_export.sources.rocpd.capture import gpus, is_nccl
from trace_export.sources.rocpd.tables import Tables
from trace_export.sources.shared.names import LONGEST_NAME
from trace_export.sources.shared.sqlite import overlapping
from trace_export.sources.shared.task_writer import MOVES_OR_COMPUTES, TaskWriter, texts_of
from trace_export.sources.source import TaskRequest


def write_tasks(processes: list[Tables], request: TaskRequest) -> tuple[KernelFile, ...]:
    """One file per rank with the tasks that the request asks for: RCCL's kernels, or all work."""
    writer = TaskWriter(request.folder)
    for tables in processes:
        if (rank := request.ranks.get(tables.process)) is None:
            continue
        for table in ("kernel_dispatch",) if request.detail == "comm" else ("kernel_dispatch", "memory_copy"):
            names = _names(tables, table)
            category = pl.lit("memory") if table == "memory_copy" else MOVES_OR_COMPUTES
            agents = {gpu: agent for agent, gpu in gpus(tables).items()}
            for chunk in _chunks(tables, table, request):
                named = texts_of(chunk["what"], names, "unnamed")
                tasks = chunk.with_columns(named, pl.format("stream {}", "stream"), category=category)
                devices = request.devices.get(tables.process, {rank: None})
                for one, device in devices.items():
                    writer.add(one, tasks if device is None else tasks.filter(pl.col("device") == agents.get(device)))
    return writer.files()


def _chunks(tables: Tables, table: str, request: TaskRequest) -> Iterator[pl.DataFrame]:
    """stream, start_ns, end_ns, what (the number of the task's name), nccl (0 or 1), and if it counts device
    (the agent; of a copy the one that it goes to)."""
    kernels = table == "kernel_dispatch"
    nccl = f"COALESCE({is_nccl(tables)}, 0)" if kernels else "0"
    only = f" AND {nccl}" if request.detail == "comm" else ""
    device = f", COALESCE(R.{'agent_id' if kernels else 'dst_agent_id'}, -1) AS device" if request.devices else ""
    sql = f"""SELECT COALESCE(R.stream_id, 0) AS stream, R.start AS start_ns, R."end" AS end_ns,
        COALESCE(R.{"kernel_id" if kernels else "name_id"}, -1) AS what, {nccl} AS nccl{device}
        FROM {tables.rows(table, "stream_id", *(["agent_id"] if device and kernels else []))}
        WHERE {overlapping(request.window_ns, "R.start", 'R."end"')}{only}"""
    return tables.db.frames(tables.name(table), sql)


def _names(tables: Tables, table: str) -> dict[int, str]:
    """The names of the tasks in `table` by their numbers."""
    names, column = ("info_kernel_symbol", "display_name") if table == "kernel_dispatch" else ("string", "string")
    number = "kernel_id" if table == "kernel_dispatch" else "name_id"
    if not tables.has(table, number):
        return {}
    sql = f"""SELECT id, substr({column}, 1, {LONGEST_NAME}) FROM {tables.name(names)}
        WHERE id IN (SELECT {number} FROM {tables.name(table)}) AND {column} IS NOT NULL"""
    return {number: str(text) for number, text in tables.db.texts(sql)}
