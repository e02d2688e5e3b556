"""The launches of an Nsight Systems export, for the processes in which no pass is named.

All calls are read and not only launches: what the calling thread does between two launches of the autograd engine
tells its calls apart. What stays in memory is 25 bytes a call and 37 a kernel.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator

import numpy as np
import polars as pl

from trace_export.sources.launches.kernel_names import GRAPH
from trace_export.sources.launches.process import Process
from trace_export.sources.launches.sequence_numbers import OPERATORS
from trace_export.sources.launches.threads import AUTOGRAD
from trace_export.sources.launches.work import CALLS, COMPUTE, COPY, OTHER, TRANSFER, join
from trace_export.sources.nsys.cupti import COPY_TABLE, GRAPH_TABLE, KERNEL_TABLE, LAUNCH_TABLE
from trace_export.sources.ranges.ranges import Ranges
from trace_export.sources.shared.sqlite import Database
from trace_export.sources.shared.timestamps import valid_session_times

LONGEST = 4000
"""Characters of a kernel's name with its template arguments, in which PyTorch names the functor."""
NCCL = r"^(?:void )?(?:nccl|rccl|mscclKernel)"
SENDS = r"(?i)SendRecv|(?:dev)?kernel_?Send"
HOST_COPIES = (1, 2)
"""CUpti_ActivityMemcpyKind: host to device and back."""
_COPY = -1
"""The name of a copy, where a kernel's is the id of a string and a graph's lies below this."""

Parts = defaultdict[int, list[pl.DataFrame]]


def autograd_threads(db: Database) -> dict[int, frozenset[int]]:
    """Process → its threads whose names are those of the autograd engine."""
    if not db.has("ThreadNames", "globalTid", "nameId"):
        return {}
    rows = db.texts(
        "SELECT DISTINCT globalTid FROM ThreadNames WHERE globalTid IS NOT NULL AND"
        f" nameId IN (SELECT id FROM StringIds WHERE value GLOB '{AUTOGRAD}*')"
    )
    threads: dict[int, set[int]] = defaultdict(set)
    for (thread,) in rows:
        threads[thread >> 24].add(thread)
    return {process: frozenset(own) for process, own in threads.items()}


def read_processes(
    db: Database, ranges: Ranges, operators: dict[int, pl.DataFrame], wanted: Collection[int] | None
) -> Iterator[tuple[int, Process]]:
    """The `wanted` processes (None: all) that computed anything on the GPU, one after another; `ranges`: those around
    their steps and optimizers, `operators`: the ranges around operators."""
    tasks = _tasks(db, wanted)
    calls = _calls(db, tasks.keys())
    ids = np.unique(np.concatenate([[_COPY], *(part["name"].unique() for own in tasks.values() for part in own)]))
    names = _names(db, ids)
    roles = _roles(names, ids)
    autograd = autograd_threads(db)
    for process in sorted(tasks.keys() & calls.keys()):
        own = pl.concat(tasks.pop(process))
        codes = np.searchsorted(ids, own["name"].to_numpy()).astype(np.int32)
        own = own.with_columns(name=codes, role=roles[codes]).filter(pl.col("role") != OTHER)
        work = join(pl.concat(calls.pop(process)), own, names)
        if (work.role == COMPUTE).any():
            beside = ranges.frame.filter(pl.col("process") == process)
            yield (
                process,
                Process(
                    work,
                    named=autograd.get(process, frozenset()),
                    first_thread=process << 24 | process & 0xFFFFFF,
                    optimizer=beside.filter(pl.col("kind") == "OPT").select("start", "end").to_numpy(),
                    steps=beside.filter(pl.col("role") == "step").select("start", "step"),
                    operators=operators.get(process, pl.DataFrame(schema=OPERATORS)),
                ),
            )


def _calls(db: Database, processes: Collection[int]) -> Parts:
    """The calls of the processes, with the columns of CALLS."""
    waits = "nameId IN (SELECT id FROM StringIds WHERE value GLOB '*Synchronize*')"
    sql = f"""SELECT start AS start, COALESCE(globalTid, 0) AS thread, COALESCE(correlationId, -1) AS correlation,
        COALESCE({waits}, 0) AS waits FROM {LAUNCH_TABLE} WHERE {{where}}"""
    parts: Parts = defaultdict(list)
    for chunk in db.frames(LAUNCH_TABLE, sql):
        rows = chunk.with_columns(pl.col("waits") != 0, process=pl.col("thread") // (1 << 24))
        _add(parts, rows.select("process", *CALLS), processes)
    return parts


def _tasks(db: Database, processes: Collection[int] | None) -> Parts:
    """Kernels, graphs and copies between host and device: correlation, start, end, stream and name, a number."""
    kernel = "COALESCE(demangledName, shortName, 0)" if db.has(KERNEL_TABLE, "demangledName") else "shortName"
    copies = f" AND copyKind IN {HOST_COPIES}"
    parts: Parts = defaultdict(list)
    for table, name, only in (
        (KERNEL_TABLE, kernel, ""),
        (GRAPH_TABLE, f"{_COPY} - 1 - COALESCE(graphId, 0)", ""),
        (COPY_TABLE, f"{_COPY}", copies),
    ):
        sql = f"""SELECT COALESCE(globalPid, 0) >> 24 AS process, COALESCE(correlationId, -2) AS correlation,
            start AS start, "end" AS "end", COALESCE(streamId, 0) AS stream, {name} AS name FROM {table}
            WHERE {{where}}{only}"""
        for chunk in db.frames(table, sql):
            _add(parts, chunk.filter(valid_session_times(pl.col("start"), pl.col("end"))), processes)
    return parts


def _add(parts: Parts, rows: pl.DataFrame, processes: Collection[int] | None) -> None:
    """Adds the rows of each of the `processes` (None: of all)."""
    for (process,), own in rows.group_by("process"):
        if processes is None or process in processes:
            parts[process].append(own.drop("process"))


def _names(db: Database, ids: np.ndarray) -> pl.Series:
    """What the numbers of names mean."""
    sql = f"SELECT id, substr(value, 1, {LONGEST}) FROM StringIds WHERE id IN (SELECT value FROM json_each(?))"
    known = dict(db.texts(sql, [json.dumps(ids.tolist())]))
    graphs = {n: f"{GRAPH}{_COPY - 1 - n}" for n in ids.tolist() if n < _COPY}
    return pl.Series("name", [graphs.get(n) or known.get(n) or "" for n in ids.tolist()], pl.String)


def _roles(names: pl.Series, ids: np.ndarray) -> np.ndarray:
    """The role of what bears each of the `names`, whose numbers are `ids`."""
    nccl, sends = names.str.contains(NCCL).to_numpy(), names.str.contains(SENDS).to_numpy()
    roles = np.where(nccl & sends, TRANSFER, np.where(nccl, OTHER, COMPUTE)).astype(np.int8)
    roles[ids == _COPY] = COPY
    return roles
