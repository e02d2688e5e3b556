"""The launches of a torch.profiler trace in which no pass is named: the trace is read a second time, for what the
first one leaves out, the names of kernels, operators and threads.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import polars as pl

from trace_export.inference.kernel_names import KernelNames
from trace_export.inference.process import Process
from trace_export.inference.threads import AUTOGRAD
from trace_export.inference.work import coded, work_of
from trace_export.sources.kineto.device_tasks import DEVICE_CATEGORIES, TIMED
from trace_export.sources.kineto.gpu_work import CALLS as CALL_NAMES
from trace_export.sources.kineto.gpu_work import STREAM
from trace_export.sources.kineto.json_events import THREAD_NAME, Wanted, thread
from trace_export.sources.kineto.trace import open_trace
from trace_export.sources.ranges.by_launch import KERNEL_LAUNCHES

WANTED = Wanted(rf"\w+_runtime|Runtime|\w+_driver|cpu_op|user_annotation|Operator|{DEVICE_CATEGORIES}", threads=True)

_POINT_TO_POINT = "^(?i:send|recv|sendrecv|coalesced|batch_isend_irecv)$"
_NODE = r"^\w*Backward\d*$|^torch::autograd::"
"""The operators that execute the nodes of autograd, as PyTorch names them."""


class _Taken(NamedTuple):
    """What is taken of some events: `calls` (see CALLS), and whether each launches a graph; `tasks` (see TASKS) with
    their names, their device, and whether PyTorch says that a kernel of NCCL is `between` two ranks (null where it says
    nothing); `operators` (see OPERATORS); of annotations, which in 2021 the operators are, too, how many of each thread
    are nodes of autograd; and the threads named like those of the autograd engine."""

    calls: pl.DataFrame
    tasks: pl.DataFrame
    operators: pl.DataFrame
    annotations: pl.DataFrame
    named: pl.DataFrame


def read_process(path: Path) -> Process:
    """The process of a trace."""
    with open_trace(path, WANTED) as trace:
        pieces = [_taken(events) for events in trace.events()]
    calls, every, operators, annotations, named = (pl.concat(frames) for frames in zip(*pieces, strict=True))
    calls = calls.with_columns(launches=pl.col("launches") & ~pl.col("graphs").any()).drop("graphs")
    tasks = every.filter(TIMED)
    names, codes = coded(tasks["name"])
    work = work_of(calls, tasks.with_columns(codes), KernelNames(names), tasks["between"])
    devices = Counter(dict(tasks["device"].value_counts().iter_rows()))
    engine = _engine(annotations) if operators.is_empty() and named.is_empty() else named["thread"]
    untimed = every.height - tasks.height
    return Process(work, devices, frozenset(engine), operators=operators, untimed=untimed)


def _taken(events: pl.DataFrame) -> _Taken:
    kind, name = pl.col("cat"), pl.col("name")
    names = events.filter((kind == THREAD_NAME) & pl.col("args name").str.contains(AUTOGRAD, literal=True))
    waits, graphs = (name.str.contains(part, literal=True).fill_null(False) for part in ("Synchronize", "GraphLaunch"))
    launches = name.str.contains(CALL_NAMES[KERNEL_LAUNCHES]).fill_null(False)
    calls = events.filter(kind.str.contains("_(?:runtime|driver)$")).select(
        "start", thread(), _number("correlation", -1), waits=waits, launches=launches, graphs=graphs
    )
    between = pl.col("Collective name").str.contains(_POINT_TO_POINT).alias("between")
    tasks = events.filter(kind == "kernel").select(
        _number("correlation", -2), "start", "end", STREAM, "name", _number("device", -1), between
    )
    node = name.str.contains(_NODE).fill_null(False)
    annotations = events.filter(kind == "user_annotation").group_by(thread())
    operators = events.filter(kind == "cpu_op")
    return _Taken(
        calls,
        tasks,
        operators.select(thread(), "start", "end", "name", _number("Sequence number").alias("seq")),
        annotations.agg(nodes=node.sum(), others=(~node).sum()),
        names.select(thread()),
    )


def _engine(annotations: pl.DataFrame) -> set[int]:
    """The threads of the autograd engine by the names of its nodes, in a trace that names no thread: all that executed
    some but the one with most other operators, on which some run, too."""
    threads = annotations.group_by("thread").sum().sort("others", "thread")
    return set(threads.filter(pl.col("nodes") > 0)["thread"]) - set(threads["thread"].tail(1))


def _number(name: str, none: int | None = None) -> pl.Expr:
    number = pl.col(name).cast(pl.Int64, strict=False)
    return number if none is None else number.fill_null(none)
