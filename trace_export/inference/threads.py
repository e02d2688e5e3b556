"""Which thread of a process calls forwards and the optimizer, and which ones are autograd's.

While a backward runs, PyTorch launches its kernels from a thread of the autograd engine, and the thread that called it
waits. So the thread of a launch tells backwards from the rest.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from trace_export.inference.work import COMPUTE, Ints, Work

AUTOGRAD = "pt_autograd"
"""The names of the threads of PyTorch's autograd engine begin with this (torch/csrc/autograd/engine.cpp)."""
ENGINE_NODE = "autograd::engine::evaluate_function"
"""The names of the ranges around the nodes that the engine executes begin with this."""

LEAST_SHARE = 0.1
"""A nameless thread that launched at least this part of the kernels counts as the engine's."""
ONE_GRAPH = 0.5
"""If graphs take at least this part of the device's time, a process with one launching thread replays whole steps."""


class Threads(NamedTuple):
    main: int
    autograd: frozenset[int]


def find_threads(
    work: Work, named: frozenset[int], engine: frozenset[int], usual_main: int | None, *, optimizer: bool = False
) -> Threads | str:
    """The calling thread and the engine's, or why they cannot be determined.

    `named`: threads whose names begin like AUTOGRAD. `engine`: threads that executed nodes of a graph of autograd while
    another one recorded operators. `usual_main`: the thread that a process begins with. `optimizer`: a range names the
    optimizer. With neither names nor nodes the calling thread is that of the optimizer's kernels, else the first one of
    the process; any other with a tenth of the kernels is the engine's, if there is an optimizer, or such a thread
    launches a kernel named like a backward's: inference may run on several threads, too.

    Example: of 900 kernels thread 7 launched 400, thread 9 (`pt_autograd_0`) 495, and thread 12, of the data loader, 5:
    main 7, autograd {9}. Were 9 nameless and 7 the process's first thread, the same.
    """
    rows = np.flatnonzero(work.role == COMPUTE)
    threads = work.thread[rows]
    launched = _launches_of(threads)
    autograd = frozenset(launched) & (named or engine)
    if autograd:
        rest = {t: n for t, n in launched.items() if t not in autograd}
        return Threads(max(rest, key=lambda t: (rest[t], t)), autograd) if rest else _whole_graph(work, rows)
    names = work.name[rows]
    updates = threads[work.names.optimizer[names]]
    main = _main_thread(updates, launched, usual_main)
    others = frozenset(t for t, n in launched.items() if t != main and n >= LEAST_SHARE * len(rows))
    if main is None or not others:
        return _whole_graph(work, rows)
    trained = optimizer or len(updates) or work.names.backward[names[np.isin(threads, list(others))]].any()
    return Threads(main, others) if trained else "no kernel is named like a backward or an optimizer"


def _launches_of(threads: Ints) -> dict[int, int]:
    """How many launches each thread made, given the thread of each; mostly the next one is the same."""
    begins = np.flatnonzero(np.append(True, threads[1:] != threads[:-1])[: len(threads)])
    launched, run = np.unique(threads[begins], return_inverse=True)
    counts = np.bincount(run, np.diff(np.append(begins, len(threads)))).astype(np.int64)
    return dict(zip(launched.tolist(), counts.tolist(), strict=True))


def _main_thread(updates: Ints, launched: dict[int, int], usual: int | None) -> int | None:
    """The thread with most of the optimizer's launches, whose threads are `updates`, else the usual one."""
    if len(updates):
        threads, counts = np.unique(updates, return_counts=True)
        return int(threads[counts.argmax()])
    return usual if usual in launched else max(launched, key=lambda t: (launched[t], t), default=None)


def _whole_graph(work: Work, rows: Ints) -> str:
    """Why nothing tells forwards from backwards."""
    time = work.end[rows] - work.start[rows]
    graph = work.names.graph[work.name[rows]]
    if len(rows) and time[graph].sum() > ONE_GRAPH * time.sum():
        return "one graph holds the whole step"
    return "one thread launches everything"


def engine_threads(operators: pl.DataFrame) -> frozenset[int]:
    """The threads among `operators` (thread, name, seq) that executed nodes of the autograd engine, but the calling
    one: some nodes run there."""
    if operators.is_empty():
        return frozenset()
    nodes = operators.filter(pl.col("name").str.starts_with(ENGINE_NODE))
    return frozenset(nodes["thread"].unique()) - {calling_thread(operators)}


def calling_thread(operators: pl.DataFrame) -> int | None:
    """The thread that recorded most numbered operators."""
    numbered = operators.filter(~pl.col("name").str.starts_with("autograd") & pl.col("seq").is_not_null())
    return numbered["thread"].value_counts(sort=True)["thread"].first()  # type: ignore[return-value]
