"""The launches of a torch.profiler trace in which no pass is named: the trace is read a second time, for what the
first one leaves out, the names of kernels, operators and threads.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from trace_export.inference.kernel_names import KernelNames
from trace_export.inference.process import Process
from trace_export.inference.sequence_numbers import OPERATORS
from trace_export.inference.threads import AUTOGRAD
from trace_export.inference.work import CALLS, TASKS, coded, work_of
from trace_export.sources.kineto.device_tasks import DEVICE_CATEGORIES, TIMED
from trace_export.sources.kineto.gpu_work import CALLS as CALL_NAMES
from trace_export.sources.kineto.gpu_work import STREAM
from trace_export.sources.kineto.json_events import THREAD_NAME, Wanted, thread
from trace_export.sources.kineto.trace import open_trace
from trace_export.sources.ranges.by_launch import KERNEL_LAUNCHES
from trace_export.sources.ranges.ranges import Ranges

WANTED = Wanted(rf"\w+_runtime|Runtime|\w+_driver|cpu_op|user_annotation|Operator|{DEVICE_CATEGORIES}", threads=True)

_POINT_TO_POINT = "^(?i:send|recv|sendrecv|coalesced|batch_isend_irecv)$"
_NODE = r"^\w*Backward\d*$|^torch::autograd::"
"""The operators that execute the nodes of autograd, as PyTorch names them."""
ANNOTATIONS = {"thread": pl.Int64(), "nodes": pl.UInt32(), "others": pl.UInt32()}


_TASKS = {**TASKS, "name": pl.String(), "between": pl.Boolean()}
del _TASKS["role"]
"""`between`: whether PyTorch says of a kernel of NCCL that it is between two ranks; null where it says nothing."""


@dataclass
class _Content:
    """Pieces of `calls` (see CALLS), `tasks` (_TASKS), and of operators: thread, start, end, name and
    seq, their sequence number; the threads named like the autograd engine's; of annotations (which in 2021 the
    operators are, too) how many of each thread are nodes of autograd (ANNOTATIONS); how many kernels ran on each
    device; how many tasks have invalid times; whether graphs were launched."""

    calls: list[pl.DataFrame] = field(default_factory=lambda: [pl.DataFrame(schema=CALLS)])
    tasks: list[pl.DataFrame] = field(default_factory=lambda: [pl.DataFrame(schema=_TASKS)])
    operators: list[pl.DataFrame] = field(default_factory=lambda: [pl.DataFrame(schema=OPERATORS)])
    named: set[int] = field(default_factory=set)
    annotations: list[pl.DataFrame] = field(default_factory=lambda: [pl.DataFrame(schema=ANNOTATIONS)])
    devices: Counter[int] = field(default_factory=Counter)
    untimed: int = 0
    graphs: bool = False


def read_process(path: Path, ranges: Ranges) -> Process:
    """The process of a trace; `ranges`: those around its steps and optimizers."""
    content = _Content()
    with open_trace(path, WANTED, operators=True) as trace:
        for events in trace.events():
            _gather(content, events)
    calls, tasks, operators = pl.concat(content.calls), pl.concat(content.tasks), pl.concat(content.operators)
    if content.graphs:
        calls = calls.with_columns(launches=pl.lit(False))
    named = content.named or (_engine(pl.concat(content.annotations)) if operators.is_empty() else set())
    names, codes = coded(tasks["name"])
    work = work_of(calls, tasks.with_columns(codes), KernelNames(names), tasks["between"])
    return Process(work, content.devices, ranges.frame, frozenset(named), operators=operators, untimed=content.untimed)


def _gather(content: _Content, events: pl.DataFrame) -> None:
    kind = pl.col("cat")
    names = events.filter((kind == THREAD_NAME) & pl.col("args name").str.contains(AUTOGRAD, literal=True))
    content.named |= set(names.select(thread()).to_series())
    calls = events.filter(kind.str.contains("_(?:runtime|driver)$"))
    waits = pl.col("name").str.contains("Synchronize", literal=True).fill_null(False).alias("waits")
    launches = pl.col("name").str.contains(CALL_NAMES[KERNEL_LAUNCHES]).fill_null(False).alias("launches")
    graphs = pl.col("name").str.contains("GraphLaunch", literal=True).fill_null(False)
    content.graphs |= bool(calls.select(graphs.any()).item())
    content.calls.append(calls.select("start", thread(), _number("correlation", -1), waits, launches))
    every = events.filter(kind == "kernel")
    tasks = every.filter(TIMED)
    content.untimed += every.height - tasks.height
    kernels = tasks.group_by(_number("device", -1)).len()
    content.devices.update(dict(kernels.iter_rows()))
    between = pl.col("Collective name").str.contains(_POINT_TO_POINT).alias("between")
    content.tasks.append(tasks.select(_number("correlation", -2), "start", "end", STREAM, "name", between))
    node = pl.col("name").str.contains(_NODE).fill_null(False)
    annotations = events.filter(kind == "user_annotation").group_by(thread())
    content.annotations.append(annotations.agg(nodes=node.sum(), others=(~node).sum()))
    operators = events.filter(kind == "cpu_op")
    content.operators.append(
        operators.select(thread(), "start", "end", "name", _number("Sequence number").alias("seq"))
    )


def _engine(annotations: pl.DataFrame) -> set[int]:
    """The threads of the autograd engine by the names of its nodes, in a trace that names no thread: all that executed
    some but the one with most other operators, on which some run, too."""
    threads = annotations.group_by("thread").sum().sort("others", "thread")
    return set(threads.filter(pl.col("nodes") > 0)["thread"]) - set(threads["thread"].tail(1))


def _number(name: str, none: int | None = None) -> pl.Expr:
    number = pl.col(name).cast(pl.Int64, strict=False)
    return number if none is None else number.fill_null(none)
