"""The GPU work in the tables of an Nsight Systems export, attributed to its ranges.

Read in chunks of rows; memory holds 16 bytes per launch and one row per range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import polars as pl

from trace_export.sources.ranges.attribution import GpuActivity, Ints, Launches, RangeIndex
from trace_export.sources.shared.sqlite import Database

LAUNCH_TABLE = "CUPTI_ACTIVITY_KIND_RUNTIME"
KERNEL_TABLE = "CUPTI_ACTIVITY_KIND_KERNEL"
GRAPH_TABLE = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
COPY_TABLE = "CUPTI_ACTIVITY_KIND_MEMCPY"
IS_NCCL = "shortName IN (SELECT id FROM StringIds WHERE value GLOB 'nccl*')"
DEVICE = "COALESCE(deviceId, -1)"
ORPHANS = 0.003
"""The share of GPU tasks without a launch call above which the names of the calls are doubted."""


def attribute(
    db: Database, ranges: pl.DataFrame, calls: str = "cu*Launch*", tables: Iterable[str] = (KERNEL_TABLE, GRAPH_TABLE)
) -> tuple[GpuActivity, dict[int, int]]:
    """The tasks in `tables` that calls named like `calls` launched, by range; and of each process with tasks the number
    of its GPU, of several the smallest.

    `ranges`: id (0, 1, …), process, thread, start, end, role; blocks and transfers compete, and NCCL calls among
    themselves. Reads all calls when more than a few per mille of the tasks have none of the named ones.
    """
    named = f"nameId IN (SELECT id FROM StringIds WHERE value GLOB '{calls}')"
    activity, devices = _attributed(db, ranges, named, tables)
    if activity.orphans > activity.tasks * ORPHANS:
        activity = replace(_attributed(db, ranges, "TRUE", tables)[0], every_call=True)
    return activity, devices


def devices_of(db: Database) -> dict[int, int]:
    """Process → the number of its GPU, of several the smallest; of all processes with kernels."""
    if not db.has(KERNEL_TABLE):
        return {}
    rows = db.texts(
        f"SELECT COALESCE(globalPid, 0) >> 24 AS process, min({DEVICE}) FROM {KERNEL_TABLE} GROUP BY process"
    )
    return {process: device for process, device in rows if isinstance(device, int)}


def _attributed(
    db: Database, ranges: pl.DataFrame, calls: str, tables: Iterable[str]
) -> tuple[GpuActivity, dict[int, int]]:
    processes = ranges["process"].unique().sort().to_list()
    launches = _launches(db, ranges, processes, calls)
    activity = GpuActivity.none(ranges.height)
    devices: dict[int, int] = {}
    for table in tables:
        for process, chunk in _tasks(db, table, processes):
            activity.take(launches[process], chunk["correlation"], chunk["start"], chunk["end"], chunk["nccl"] != 0)
            device = int(chunk["device"].min())
            devices[process] = min(device, devices.get(process, device))
    return activity, devices


def _launches(db: Database, ranges: pl.DataFrame, processes: list[int], calls: str) -> dict[int, Launches]:
    of_process = ranges.partition_by("process", as_dict=True)
    layers = {process: RangeIndex.both(of_process[process,]) for process in processes}
    parts: dict[int, list[tuple[Ints, Ints, Ints]]] = {process: [] for process in processes}
    sql = f"""SELECT start AS start, COALESCE(globalTid, 0) AS thread, COALESCE(correlationId, -1) AS correlation
        FROM {LAUNCH_TABLE} WHERE {{where}} AND ({calls})"""
    for chunk in db.frames(LAUNCH_TABLE, sql):
        for process, part in _by_process(chunk, "thread", processes):
            found = [layer.find(part["start"], part["thread"]).astype(np.int32) for layer in layers[process]]
            parts[process].append((part["correlation"], found[0], found[1]))
    return {process: Launches.of_parts(of) for process, of in parts.items()}


def _tasks(db: Database, table: str, processes: list[int]) -> Iterator[tuple[int, dict[str, Ints]]]:
    """The GPU tasks in `table` in pieces of one process: start, end, correlation, device, nccl (0 or 1)."""
    nccl = IS_NCCL if table == KERNEL_TABLE else "0"
    sql = f"""SELECT start AS start, "end" AS "end", COALESCE(globalPid, 0) AS owner,
        COALESCE(correlationId, -2) AS correlation, {DEVICE} AS device, {nccl} AS nccl FROM {table} WHERE {{where}}"""
    for chunk in db.frames(table, sql):
        yield from _by_process(chunk, "owner", processes)


def _by_process(chunk: pl.DataFrame, owner: str, processes: list[int]) -> Iterator[tuple[int, dict[str, Ints]]]:
    """The columns of a chunk, process by process; `owner` names the column of global ids."""
    columns = {name: chunk[name].to_numpy() for name in chunk.columns}
    of = columns[owner] >> 24
    for process in processes:
        mine = np.flatnonzero(of == process)
        if len(mine):
            yield process, {name: values[mine] for name, values in columns.items()}
