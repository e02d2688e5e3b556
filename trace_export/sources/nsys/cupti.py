"""The GPU work in the tables of an Nsight Systems export, attributed to its ranges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np
import polars as pl

from trace_export.inference.kernel_names import GLOBS, is_like
from trace_export.sources.nsys.session import THREAD_BITS, process_of
from trace_export.sources.ranges.attribution import DEVICE_SHIFT
from trace_export.sources.ranges.by_launch import Piece, attribute
from trace_export.sources.ranges.ranges import Ranges
from trace_export.sources.shared.sqlite import Database

LAUNCH_TABLE = "CUPTI_ACTIVITY_KIND_RUNTIME"
KERNEL_TABLE = "CUPTI_ACTIVITY_KIND_KERNEL"
GRAPH_TABLE = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
COPY_TABLE = "CUPTI_ACTIVITY_KIND_MEMCPY"
DEVICE = "COALESCE(deviceId, -1)"
MOST_LISTED = 64
"""Names that a condition lists by their ids."""


def is_named(db: Database, column: str, *patterns: str) -> str:
    """The condition that the name whose id is in `column` is like one of the `patterns` (GLOB); NULL where there is no
    id. The ids are looked up once: a condition with a query in it would look through all names again for every piece of
    a table."""
    query = f"SELECT id FROM StringIds WHERE {is_like('value', patterns)}"
    ids = [number for (number,) in db.texts(query)]
    return f"{column} IN ({query})" if len(ids) > MOST_LISTED else listed(column, ids)


def listed(column: str, ids: Iterable[object]) -> str:
    """The condition that a column holds one of the ids; values that are not whole numbers are not ids."""
    numbers = ", ".join(str(number) for number in ids if isinstance(number, int))
    return f"{column} IN ({numbers})" if numbers else "FALSE"


def is_nccl(db: Database, table: str) -> str:
    """The condition that a task in `table` is a kernel of NCCL."""
    return f"COALESCE({is_named(db, 'shortName', *GLOBS)}, FALSE)" if table == KERNEL_TABLE else "FALSE"


def stream_and_nccl(db: Database, table: str) -> str:
    """Twice one number for the stream of a task in `table`, and 1 more for NCCL's kernels. Every context of a device
    numbers its own streams; a stream that is not known has the number 0 of its device."""
    context = "contextId * 131072" if db.has(table, "contextId") else "0"
    device = 2 << DEVICE_SHIFT
    stream = f"COALESCE(deviceId * {device} + {context} + streamId * 2, {DEVICE} * {device})"
    return f"{stream} + {is_nccl(db, table)}"


def devices_of(db: Database) -> dict[int, int]:
    """Process → the number of its GPU, of several the smallest; of all processes with kernels."""
    if not db.has(KERNEL_TABLE):
        return {}
    sql = f"SELECT COALESCE(globalPid, 0) AS owner, {DEVICE} AS device FROM {KERNEL_TABLE} WHERE {{where}}"
    devices: dict[int, int] = {}
    for chunk in db.frames(KERNEL_TABLE, sql):
        smallest = chunk.group_by(process_of("owner")).agg(pl.col("device").min())
        for process, device in smallest.iter_rows():
            devices[process] = min(device, devices.get(process, device))
    return devices


def calls(db: Database, pattern: str | None, processes: list[int]) -> Iterator[Piece]:
    """The calls whose names fit the pattern after their `cu` or `cuda`, or all: start, thread, correlation."""
    condition = is_named(db, "nameId", f"cu{pattern}") if pattern else "TRUE"
    sql = f"""SELECT start AS start, COALESCE(globalTid, 0) AS thread, COALESCE(correlationId, -1) AS correlation
        FROM {LAUNCH_TABLE} WHERE {{where}} AND {condition}"""
    for chunk in db.frames(LAUNCH_TABLE, sql):
        yield from _by_process(chunk, "thread", processes)


def tasks(db: Database, processes: list[int], *tables: str, seen: Counter[int] | None = None) -> Iterator[Piece]:
    """The GPU tasks of these processes in the tables, see GpuActivity.take; `seen` counts those of each process in the
    file. The number of the stream and whether a task is NCCL's are one column, which takes a tenth of the time of
    reading."""
    for table in filter(db.has, tables):
        sql = f"""SELECT start AS start, "end" AS "end", COALESCE(globalPid, 0) AS owner,
            COALESCE(correlationId, -2) AS correlation,
            {stream_and_nccl(db, table)} AS stream_and_nccl FROM {table} WHERE {{where}}"""
        for frame in db.frames(table, sql):
            for process, chunk in _by_process(frame, "owner", processes, seen):
                yield process, {**chunk, "stream": chunk["stream_and_nccl"] >> 1, "nccl": chunk["stream_and_nccl"] & 1}


def _by_process(
    chunk: pl.DataFrame, owner: str, processes: list[int], seen: Counter[int] | None = None
) -> Iterator[Piece]:
    """The columns of a chunk, process by process; `owner` names the column of global ids. `seen`: see `tasks`."""
    columns = {name: chunk[name].to_numpy() for name in chunk.columns}
    of = columns[owner] >> THREAD_BITS
    rows_of = {process: np.flatnonzero(of == process) for process in processes}
    if seen is not None:
        seen.update({process: len(rows) for process, rows in rows_of.items()})
        if sum(map(len, rows_of.values())) < len(of):
            seen.update(of[~np.isin(of, processes)].tolist())
    for process, rows in rows_of.items():
        if len(rows):  # all of them in most files, which are of one process
            yield process, columns if len(rows) == len(of) else {name: v[rows] for name, v in columns.items()}


def last_copies(db: Database, ranges: Ranges, named: pl.DataFrame) -> pl.Series:
    """The end of the last copy launched in each of the `named` ranges that receive."""
    receives = pl.col("text").is_in(ranges.transfers.filter(pl.col("role") == "recv")["text"].implode())
    wanted = named.select("id", "process", "thread", "start", "end", "role", receives=receives)
    numbered = wanted.with_columns(id=pl.int_range(pl.len()))
    copies = attribute(numbered, partial(calls, db), lambda processes: tasks(db, processes, COPY_TABLE), "*emcpy*")
    return wanted.select(last=pl.when("receives").then(copies.frame()["work_end"]))["last"]
