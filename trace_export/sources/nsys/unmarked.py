"""The launches of an Nsight Systems export, for the processes in which no pass is named.

Besides launches of kernels, calls that copy, fill or wait are read: such calls of the calling thread between two
launches of the autograd engine tell the engine's calls apart. 25 bytes a call and 32 a kernel stay in memory.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np
import polars as pl

from trace_export.inference.kernel_names import GRAPH, Codes, KernelNames
from trace_export.inference.process import Process
from trace_export.inference.sequence_numbers import OPERATORS
from trace_export.inference.work import COMPUTE, DEVICE_CALLS, LONGEST, Ints, work_of
from trace_export.sources.nsys.cupti import GRAPH_TABLE, KERNEL_TABLE, LAUNCH_TABLE, listed
from trace_export.sources.nsys.session import NAMES, THREADS, autograd_threads
from trace_export.sources.ranges.by_launch import KERNEL_LAUNCHES, ORPHANS
from trace_export.sources.shared.sqlite import Database
from trace_export.sources.shared.timestamps import valid_task_times

_NO_CORRELATION = 0xFFFFFFFF
"""The id of a call without one; no task has it."""
_GRAPH = -1
"""From here down lie the names of graphs, where a kernel's is the id of a string."""

_STREAMS = 1 << 24
"""Numbers of streams, which differ by as much from one device to the next."""

Parts = defaultdict[int, list[pl.DataFrame]]


def read_processes(
    db: Database, operators: Mapping[int, pl.DataFrame], wanted: Collection[int] | None
) -> Iterator[tuple[int, Process]]:
    """The `wanted` processes (None: all) that computed anything on the GPU, one after another; `operators`: the ranges
    around operators."""
    tasks, devices, untimed = _tasks(db, wanted)
    calls = _calls(db, tasks)
    what, stream, name, names = _kinds(db, tasks)
    autograd = autograd_threads(db)
    for process in sorted(tasks.keys() & calls.keys()):
        mine = pl.concat(tasks.pop(process), rechunk=True)
        kind = np.searchsorted(what, mine["what"].to_numpy())
        mine = mine.select("correlation", "start", "end").with_columns(stream=stream[kind], name=name[kind])
        work = work_of(pl.concat(calls.pop(process), rechunk=True), mine, names)
        if (work.role == COMPUTE).any():
            yield (
                process,
                Process(
                    work,
                    devices[process],
                    named=autograd.get(process, frozenset()),
                    first_thread=process * THREADS | process % THREADS,
                    operators=operators.get(process, pl.DataFrame(schema=OPERATORS)),
                    untimed=untimed[process],
                ),
            )


def _calls(db: Database, tasks: Parts) -> Parts:
    """The calls of the processes with `tasks` that concern the device, with the columns of CALLS; all calls of a
    process in which fewer bear the names of such calls than there are tasks."""
    patterns = " OR ".join(f"value GLOB 'cu{pattern}'" for pattern in DEVICE_CALLS)
    asked = ("*Synchronize*", f"cu{KERNEL_LAUNCHES}", "*GraphLaunch*")
    globs = ", ".join(f"value GLOB '{pattern}'" for pattern in asked)
    named = db.texts(f"SELECT id, {globs} FROM StringIds WHERE {patterns}")
    waiting = [number for number, waits, *_ in named if waits]
    graphs = any(graph for *_, graph in named)
    launching = [number for number, _, launches, _ in named if launches and not graphs]
    names = waiting, launching
    parts = _read_calls(db, listed("nameId", (number for number, *_ in named)), names, tasks)
    few = [
        process for process, pieces in tasks.items() if _rows(parts.get(process, ())) < _rows(pieces) * (1 - ORPHANS)
    ]
    return parts | _read_calls(db, "TRUE", names, few) if few else parts


def _rows(parts: Iterable[pl.DataFrame]) -> int:
    return sum(part.height for part in parts)


def _read_calls(db: Database, condition: str, names: tuple[list[int], list[int]], processes: Collection[int]) -> Parts:
    """The calls of the processes that meet the condition; `names`: of those that wait for the device, and of those that
    launch kernels."""
    packed = _packed("nameId", "correlationId", "COALESCE(nameId, 0)", f"COALESCE(correlationId, {_NO_CORRELATION})")
    sql = f"""SELECT start AS start, globalTid AS thread, {packed} AS packed
        FROM {LAUNCH_TABLE} WHERE {{where}} AND {condition}"""
    parts: Parts = defaultdict(list)
    thread, both = pl.col("thread").fill_null(0), pl.col("packed")
    waits, launches = ((both // (1 << 32)).is_in(of) for of in names)
    for chunk in db.frames(LAUNCH_TABLE, sql):
        columns = (
            "start",
            thread,
            (both & 0xFFFFFFFF).alias("correlation"),
            waits.alias("waits"),
            launches.alias("launches"),
        )
        of_process = chunk.select((thread // THREADS).alias("process"), *columns).partition_by(
            "process", as_dict=True, include_key=False
        )
        for (process,), piece in of_process.items():
            if process in processes:
                parts[process].append(piece)
    return parts


def _tasks(db: Database, processes: Collection[int] | None) -> tuple[Parts, dict[int, Counter[int]], Counter[int]]:
    """Kernels and graphs: correlation, start, end, and `what`, the number of the name and the stream; how many kernels
    and graphs each process ran on each device; and how many tasks of each process have invalid times, which are left
    out. SQLite packs two numbers into each of two columns:

    | column | upper bits | lower bits |
    |---|---|---|
    | owner | process | 24: device + 1, so that -1, an unknown one, is 0 |
    | what of a kernel | id of its name | 32: stream, with the device above 24 of them |
    | what of a graph | -1 less its own id | the same |
    """
    kernel = "demangledName, shortName" if db.has(KERNEL_TABLE, "demangledName") else "shortName, NULL"
    of_process, of_device = f"globalPid - globalPid % {THREADS}", f"(deviceId + {THREADS + 1}) % {THREADS}"
    owner = f"COALESCE({of_process} + {of_device}, COALESCE({of_process}, 0) + COALESCE({of_device}, 0))"
    device = "(COALESCE(deviceId, 0) + 256) % 256"
    stream = f"({device} * {_STREAMS} + (streamId % {_STREAMS} + {_STREAMS}) % {_STREAMS})"
    parts: Parts = defaultdict(list)
    devices: dict[int, Counter[int]] = defaultdict(Counter)
    untimed: Counter[int] = Counter()
    names = {KERNEL_TABLE: f"COALESCE({kernel}, 0)", GRAPH_TABLE: f"({_GRAPH} - COALESCE(graphId, 0))"}
    for table, name in names.items():
        what = _packed(name, stream, name, f"COALESCE({stream}, 0)")
        sql = f"""SELECT {owner} AS owner, correlationId AS correlation, start AS start, "end" AS "end", {what} AS what
            FROM {table} WHERE {{where}}"""
        for chunk in db.frames(table, sql):
            rows = chunk.filter(valid_task_times(pl.col("start"), pl.col("end")))
            if rows.height < chunk.height:
                untimed.update((chunk["owner"] // THREADS).to_list())
                untimed.subtract((rows["owner"] // THREADS).to_list())
            rows = rows.with_columns(pl.col("correlation").fill_null(-2))
            for (of,), piece in rows.partition_by("owner", as_dict=True, include_key=False).items():
                process, device = divmod(of, THREADS)
                if processes is None or process in processes:
                    parts[process].append(piece)
                    devices[process][device - 1] += piece.height
    return parts, devices, untimed


def _packed(high: str, low: str, or_high: str, or_low: str) -> str:
    """Two numbers of 32 bits as one column, those after `or` where one of the first two is NULL: reading a column costs
    more than computing with it."""
    return f"COALESCE({high} * {1 << 32} + {low}, {or_high} * {1 << 32} + {or_low})"


def _kinds(db: Database, tasks: Parts) -> tuple[Ints, Ints, Codes, KernelNames]:
    """The kinds of all `tasks`: the sorted numbers that stand for a name and a stream; of each the stream, and the row
    of the name; and the names."""
    parts = [part["what"].unique() for pieces in tasks.values() for part in pieces]
    what = np.unique(np.concatenate([np.zeros(0, np.int64), *parts]))
    ids, name = np.unique(what >> 32, return_inverse=True)
    return what, what & 0xFFFFFFFF, name.astype(np.int32), KernelNames(_names(db, ids))


def _names(db: Database, ids: np.ndarray) -> pl.Series:
    """The texts of the numbers of names."""
    texts = db.names(NAMES, ids.tolist(), LONGEST)
    graphs = {n: f"{GRAPH}{_GRAPH - n}" for n in ids.tolist() if n <= _GRAPH}
    return pl.Series("name", [graphs.get(n) or texts.get(n) or "" for n in ids.tolist()], pl.String)
