"""Map a function over items on this machine: in this process, on threads of it, or on worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

from trace_export.errors import TraceExportError
from trace_export.scratch import scratch_folder
from trace_export.workers.attempt import Item, Result, attempt
from trace_export.workers.pool import Pool
from trace_export.workers.sizing import Workers


def run(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    workers: Workers,
    done: Callable[[int], None] = lambda index: None,
) -> list[Result | TraceExportError]:
    """The result of each item in their order, or its error; `done` is called with the index of each that is ready.

    Where processes work, `function`, items and results must be picklable. Raises TraceExportError when no process can
    be started.
    """
    count = min(workers.count, len(items))
    if count > 1 and not workers.threads:
        with scratch_folder() as scratch:
            return Pool(function, items, done, scratch).run(count)
    results = []
    with _threads(count) as work:
        for index, result in enumerate(work(partial(attempt, function), items)):
            results.append(result)
            done(index)
    return results


@contextmanager
def _threads(count: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """`map` on so many threads, or the plain one; what has not begun when the caller gives up is not begun."""
    if count <= 1:
        yield map
        return
    pool = ThreadPoolExecutor(count)
    try:
        yield pool.map
    finally:
        pool.shutdown(cancel_futures=True)
