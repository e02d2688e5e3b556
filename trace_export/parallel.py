"""Map a function over sources: in this process or on a pool of processes; results come in the order of the items."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Generic, TypeVar

from trace_export.errors import TraceExportError

SMALL_BYTES = 64 << 20
Item = TypeVar("Item")
Result = TypeVar("Result")


def available_cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def sensible_jobs(paths: Sequence[Path]) -> int:
    """The number of processes worth starting: one where the input is so small that starting costs more than reading."""
    size = sum(p.stat().st_size for p in paths if p.is_file())
    return available_cores() if size > SMALL_BYTES and len(paths) > 1 else 1


def run(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    jobs: int,
    done: Callable[[int], None] = lambda index: None,
) -> Iterator[Result | TraceExportError]:
    """The result of each item in order, or the error that it raised; `done` is told the index of each that is ready.

    With `jobs` 1 everything happens in this process. Only TraceExportErrors are results: another exception is a
    mistake of ours and ends the run.
    """
    if jobs <= 1 or len(items) <= 1:
        for index, item in enumerate(items):
            yield _attempt(function, item)
            done(index)
        return
    pool = ProcessPoolExecutor(min(jobs, len(items)), multiprocessing.get_context("spawn"), _single_threaded)
    try:
        for index, result in enumerate(pool.map(_Attempt(function), items)):
            yield result
            done(index)
        pool.shutdown()
    except BaseException:
        for process in (pool._processes or {}).values():  # Ctrl-C must not wait for a reader that is in a large file
            process.terminate()
        pool.shutdown(wait=False, cancel_futures=True)
        raise


class _Attempt(Generic[Item, Result]):
    """`_attempt` of one function, in a form that can be sent to a worker process."""

    def __init__(self, function: Callable[[Item], Result]) -> None:
        self.function = function

    def __call__(self, item: Item) -> Result | TraceExportError:
        return _attempt(self.function, item)


def _attempt(function: Callable[[Item], Result], item: Item) -> Result | TraceExportError:
    try:
        return function(item)
    except TraceExportError as error:
        return error


def _single_threaded() -> None:
    """One thread of Polars a process: the processes already use all cores."""
    os.environ["POLARS_MAX_THREADS"] = "1"
