"""Map a function over items: in this process, on threads of it, on worker processes, or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Generic, TypeVar

from trace_export.errors import TraceExportError
from trace_export.scratch import scratch_folder
from trace_export.workers.attempt import Item, Result, attempt
from trace_export.workers.cluster import Cluster
from trace_export.workers.sizing import Workers

Part = TypeVar("Part")

MOST: Final = 32
"""No process holds more results than this, those that are merged counting as one, and while they are merged again as
two."""
AT_ONCE: Final = MOST // 2
"""This many are merged at a time: fewer would be copied more often."""

Merge = Callable[[Sequence[Part]], Part]
"""Several neighbouring results as one, in their order."""


def run(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    workers: Workers | Cluster,
    done: Callable[[int], None] = lambda index: None,
) -> list[Result | TraceExportError]:
    """The result of each item in their order, or its error; `done` is called with the index of each that is ready.

    Where processes work, `function`, items and results must be picklable. Raises TraceExportError when no process can
    be started, and as `dask.each` does.
    """
    results: list[Any] = [None] * len(items)

    def take(index: int, result: Result | TraceExportError) -> None:
        results[index] = result
        done(index)

    _each(function, items, workers, take)
    return results


def reduce(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    workers: Workers | Cluster,
    merge: Merge[Result],
    failed: Callable[[TraceExportError, Item], Result],
    done: Callable[[int], None] = lambda index: None,
) -> Result:
    """The results of all items merged in their order, those of items with an error as `failed` makes them. At most
    `MOST` results are held. Raises as `run` does."""
    fold = Fold(merge, len(items))

    def take(index: int, result: Result | TraceExportError) -> None:
        fold.put(index, failed(result, items[index]) if isinstance(result, TraceExportError) else result)
        done(index)

    _each(function, items, workers if isinstance(workers, Cluster) else Workers(workers.count), take, fold.may_begin)
    return fold.result()


def _each(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    workers: Workers | Cluster,
    take: Callable[[int, Result | TraceExportError], None],
    may_begin: Callable[[int], bool] = lambda index: True,
) -> None:
    """Calls `take` with the index and the result, or the error, of each item."""
    if isinstance(workers, Cluster):
        from trace_export.workers.dask import each

        each(workers, function, items, take, may_begin)
        return
    count = min(workers.count, len(items))
    if count > 1 and not workers.threads:
        from trace_export.workers.pool import Pool  # with multiprocessing, which one process does not need

        with scratch_folder() as scratch:
            Pool(function, items, take, scratch, may_begin).run(count)
        return
    with _threads(count) as work:
        for index, result in enumerate(work(partial(attempt, function), items)):
            take(index, result)


@contextmanager
def _threads(count: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """`map` on this many threads, or the plain one; what has not begun when the caller gives up is not begun."""
    if count <= 1:
        yield map
        return
    pool = ThreadPoolExecutor(count)
    try:
        yield pool.map
    finally:
        pool.shutdown(cancel_futures=True)


class Fold(Generic[Part]):
    """The results of the items 0, 1, …, this many, which come in any order, merged in that of the items. An item may be
    begun when `may_begin` says so; then no more than `MOST` results are ever here."""

    def __init__(self, merge: Merge[Part], count: int) -> None:
        self.merge, self.count = merge, count
        self.merged: list[Part] = []
        self.waiting: dict[int, Part] = {}
        self.first = 0
        """The first item that is not merged yet."""

    def may_begin(self, index: int) -> bool:
        return index < self.first + MOST - 2

    def put(self, index: int, part: Part) -> None:
        self.waiting[index] = part
        end = self.first
        while end in self.waiting:
            end += 1
        if end - self.first >= AT_ONCE or end == self.count:
            neighbours = [self.waiting.pop(at) for at in range(self.first, end)]
            self.merged = [self.merge([*self.merged, *neighbours])]
            self.first = end

    def result(self) -> Part:
        return self.merged[0] if self.merged else self.merge([])
