"""The launches of a process in a rocpd database, for one in which no pass is named.

HIP's calls and the dispatches of kernels say the same as those of CUPTI (see sources/nsys/unmarked.py). Most of RCCL's
kernels have one name; which of them send and receive follows from the calls of RCCL, where these were recorded.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import polars as pl

from trace_export.inference.kernel_names import GENERIC, SENDS, KernelNames
from trace_export.inference.process import Process
from trace_export.inference.sequence_numbers import OPERATORS
from trace_export.inference.work import CALLS, DEVICE_CALLS, LONGEST, TASKS, coded, work_of
from trace_export.sources.ranges.by_launch import KERNEL_LAUNCHES
from trace_export.sources.rocpd import capture
from trace_export.sources.rocpd.tables import RCCL, Tables
from trace_export.sources.shared.timestamps import valid_task_times

_SENDING = ["ncclSend", "ncclRecv"]


def read_process(tables: Tables, operators: pl.DataFrame | None) -> Process:
    """A process; `operators`: the ranges around operators, if they have any."""
    tasks, devices, untimed = _tasks(tables)
    calls = _calls(tables)
    numbers, codes = coded(tasks["name"])
    names, tasks = _names(tables, numbers), tasks.with_columns(codes)
    work = work_of(calls, tasks, KernelNames(names), _between(tables, tasks, calls, names))
    named = pl.DataFrame(schema=OPERATORS) if operators is None else operators
    return Process(work, devices, operators=named, untimed=untimed)


def _calls(tables: Tables) -> pl.DataFrame:
    """The calls of HIP that concern the device: schema CALLS."""
    named = " OR ".join(tables.named(f"hip{pattern}") for pattern in DEVICE_CALLS)
    of = {"waits": "*Synchronize*", "launches": KERNEL_LAUNCHES, "graphs": "*GraphLaunch*"}
    parts = capture.calls(tables, named, **{flag: tables.named(f"hip{pattern}") for flag, pattern in of.items()})
    schema = {**CALLS, "graphs": pl.Boolean()}
    flags = pl.col("waits", "launches", "graphs").cast(pl.Boolean)
    calls = pl.concat([pl.DataFrame(schema=schema), *(part.with_columns(flags) for part in parts)])
    return calls.with_columns(launches=pl.col("launches") & ~pl.col("graphs").any()).drop("graphs")


def _tasks(tables: Tables) -> tuple[pl.DataFrame, Counter[int], int]:
    """Kernels: correlation, start, end, stream and name, the number of its symbol; how many ran on each GPU; and how
    many have invalid times, which are left out."""
    parts = [pl.DataFrame(schema={**TASKS, "name": pl.Int64()}).drop("role")]
    devices: Counter[int] = Counter()
    numbers = capture.gpus(tables)
    untimed = 0
    for chunk in capture.kernels(tables, name="COALESCE(R.kernel_id, 0)", agent="COALESCE(R.agent_id, -1)"):
        rows = chunk.filter(valid_task_times(pl.col("start"), pl.col("end")))
        untimed += chunk.height - rows.height
        for agent, count in rows["agent"].value_counts().iter_rows():
            devices[numbers.get(agent, -1)] += count
        parts.append(rows.drop("agent"))
    return pl.concat(parts), devices, untimed


def _names(tables: Tables, numbers: pl.Series) -> pl.Series:
    """The texts of the numbers of names."""
    symbols = tables.name("info_kernel_symbol")
    sql = f"SELECT id, substr(display_name, 1, {LONGEST}) FROM {symbols} WHERE display_name IS NOT NULL"
    texts = dict(tables.db.texts(sql))
    return pl.Series("name", [str(texts.get(number, "")) for number in numbers], pl.String)


def _between(tables: Tables, tasks: pl.DataFrame, calls: pl.DataFrame, names: pl.Series) -> pl.Series:
    """Whether the tasks, whose names are rows of `names`, are sends or receives; null where their names say it."""
    generic = names.str.contains(GENERIC) & ~names.str.contains(SENDS)
    rows = np.flatnonzero(generic.to_numpy()[tasks["name"].to_numpy()])
    between = pl.Series([None], dtype=pl.Boolean).new_from_index(0, tasks.height)
    return between.scatter(rows, _sending(tables, tasks[rows], calls)) if len(rows) else between


def _sending(tables: Tables, kernels: pl.DataFrame, calls: pl.DataFrame) -> np.ndarray:
    """Whether each of RCCL's `kernels` was launched after a call that sends or receives, the last one of its thread."""
    sql = f"""SELECT R.start AS at, COALESCE(R.tid, 0) AS thread, R.name_id AS name
        FROM {tables.rows("region", "tid")} {tables.event()} WHERE {tables.of_category(RCCL)}"""
    operations = _operations(tables)
    sending = [number for number, name in operations.items() if name in _SENDING]
    called = pl.concat(
        [pl.DataFrame(schema={"at": pl.Int64, "thread": pl.Int64, "name": pl.Int64}),
         *tables.db.frames(tables.name("region"), sql)]
    ).filter(pl.col("name").is_in(list(operations)))  # fmt: skip
    launched = kernels.with_row_index("row").join(
        calls.select("correlation", "thread", at="start").unique("correlation", keep="first"), on="correlation"
    )
    launched_after = launched.sort("at").join_asof(
        called.sort("at"), on="at", by="thread", suffix="_of_call", check_sortedness=False
    )
    out = np.zeros(kernels.height, np.bool_)
    out[launched_after["row"].to_numpy()] = launched_after["name_of_call"].is_in(sending).fill_null(False).to_numpy()
    return out


def _operations(tables: Tables) -> dict[int, str]:
    """The numbers of the names of RCCL's operations; groups are not operations."""
    operation = "string GLOB 'nccl[A-Z]*' AND string NOT GLOB 'ncclGroup*'"
    sql = f"SELECT id, string FROM {tables.name('string')} WHERE {operation}"
    return {number: str(name) for number, name in tables.db.texts(sql) if isinstance(number, int)}
