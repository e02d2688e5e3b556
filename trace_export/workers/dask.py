"""A Dask cluster as the workers: each machine reads what lies on its own disk, and only tables travel.

Needs the extra `dask`. What a worker was given when it died Dask gives to another one, and what only the machine of an
item can read to the next worker there. An item whose workers died of it is an error of that item; a scheduler that
goes, or does not answer, ends the run.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from trace_export.errors import SourceError, TraceExportError, UsageError
from trace_export.workers.attempt import HasPath, Item, Result, attempt
from trace_export.workers.cluster import EVERY, Cluster
from trace_export.workers.dask_client import (
    ANSWER_S,
    SAME_CODE,
    Worker,
    ask,
    connected,
    differences,
    gone,
    host_of,
    identity,
    same_workers,
)

CHECK_S = 1.0
"""How long nothing may end until it is checked whether all machines still have workers."""
GONE_S = 20.0
"""How long a machine may be without a worker before its items are given up; a nanny restarts one in a few seconds. A
scheduler whose `no-workers-timeout` is shorter gives up earlier."""
MANY, PART = 64, 8
"""If each worker has more items, this many make one task: a task costs the scheduler as much as a small source."""
NONE_LEFT: Final = "no worker is left that could read it", "start workers again, with more memory"


def each(
    cluster: Cluster,
    function: Callable[[Item], Result],
    items: Sequence[Item],
    take: Callable[[int, Result | TraceExportError], None],
    may_begin: Callable[[int], bool] = lambda index: True,
) -> None:
    """Calls `take` with the index and the result, or the error, of each item; an item is begun when `may_begin` says
    so. Raises TraceExportError when the scheduler does not answer or goes, or a worker cannot run this program."""
    with connected(cluster.address) as client:
        workers = same_workers(client, cluster.address)
        size = PART if len(items) > MANY * len(workers) else 1
        of_machines = [list(same) for _, same in groupby(range(len(items)), lambda index: _machine(items[index]))]
        waiting = [same[first : first + size] for same in of_machines for first in range(0, len(same), size)][::-1]
        reading = _Reading(client, cluster.address, workers, function, items, take)
        while waiting:
            # Dask blames all that a worker was given when it died: each item is tried once more, alone.
            for index in reading.all(waiting, may_begin):
                for _ in reading.all([[index]]):
                    how = "the Dask workers that read it died or lost it"
                    reading.give_up([index], how, "give them more memory, or read it on one machine")


@dataclass(frozen=True)
class Folder:
    """A folder of a machine."""

    path: Path
    machine_name: str


def in_each_folder(
    cluster: Cluster, function: Callable[[Path], Result]
) -> list[tuple[Folder, Result | TraceExportError]]:
    """The result of `function` for each of the cluster's folders, on the machine that has it.

    Raises TraceExportError as `each` does, and UsageError for a machine that has no worker.
    """
    with connected(cluster.address) as client:
        workers = same_workers(client, cluster.address)
    folders = []
    for name, folder in cluster.folders:
        if name != EVERY and not any(worker.is_called(name) for worker in workers):
            there = ", ".join(sorted({worker.host for worker in workers}))
            what = f"{name}: no worker of the cluster has this name"
            raise UsageError(what, f"hosts there: {there}", parameter="at")
        hosts = {worker.ip: worker.host for worker in reversed(workers)}
        folders += [Folder(folder, machine) for machine in ([name] if name != EVERY else list(hosts.values())[::-1])]
    looks: dict[int, Result | TraceExportError] = {}
    each(cluster, lambda folder: function(folder.path), folders, looks.__setitem__)
    return [(one, looks[number]) for number, one in enumerate(folders)]


def _machine(item: HasPath) -> str | None:
    """The machine that alone can read an item, where there is one."""
    return getattr(item, "machine_name", None)


def _attempt_all(function: Callable[[Item], Result], items: Sequence[Item]) -> tuple[dict[str, str], list[Any]]:
    """The identity of the worker and its results."""
    return identity(), [attempt(function, item) for item in items]


class _Reading:
    """The items that a client gives to its cluster, and the tasks of it that run: each a future with the items that it
    reads, by index, and the hosts whose workers may read them where only these can."""

    def __init__(
        self,
        client: Any,
        address: str,
        workers: Sequence[Worker],
        function: Callable[[Any], Any],
        items: Sequence[Any],
        take: Callable[[int, Any], None],
    ) -> None:
        self.client, self.address, self.workers, self.items, self.take = client, address, workers, items, take
        self.function = partial(_attempt_all, function)
        self.running: dict[Any, tuple[list[int], frozenset[str]]] = {}
        self.ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.without_worker_since: dict[frozenset[str], float] = {}

    def all(self, waiting: list[list[int]], may_begin: Callable[[int], bool] = lambda index: True) -> list[int]:
        """Reads groups of items, the last first, each as one task, until none is left that may begin. Returns the
        items whose workers died."""
        lost: list[int] = []
        while True:
            while waiting and may_begin(waiting[-1][0]):
                self._submit(waiting.pop())
            if not self.running:
                return lost
            try:
                future = self.ended.get(timeout=CHECK_S)
            except queue.Empty:
                self._check()
            else:
                if future in self.running:  # not given up meanwhile
                    lost += self._take(future)

    def _submit(self, indices: list[int]) -> None:
        """Gives a group to the workers that may read it, or to those that start on their hosts."""
        machine = _machine(self.items[indices[0]])
        hosts = frozenset(host_of(worker.address) for worker in self.workers if machine and worker.is_called(machine))
        if machine and not hosts:
            self.give_up(indices, *NONE_LEFT)
            return
        items = [self.items[index] for index in indices]
        future = self.client.submit(self.function, items, pure=False, workers=sorted(hosts) or None)
        self.running[future] = indices, hosts
        future.add_done_callback(self.ended.put)

    def _take(self, future: Any) -> list[int]:
        """Takes the results of a task that has ended. Returns its items where it has none, for its workers died, also
        the one that had the results."""
        indices, _ = self.running.pop(future)
        try:
            theirs, results = future.result(timeout=ANSWER_S)
        except Exception as error:
            if future.status == "cancelled":
                raise gone(self.address) from error
            if type(error).__name__ not in ("NoValidWorkerError", "NoWorkerError"):
                return indices
            self.give_up(indices, *NONE_LEFT)
            return []
        if difference := differences(theirs):  # it may have joined after they were compared
            self.give_up(indices, f"the Dask worker that read it runs other code: {difference}", SAME_CODE)
            return []
        for index, result in zip(indices, results, strict=True):
            self._keep(index, result)
        return []

    def _check(self) -> None:
        """Gives up the tasks whose hosts have had no worker for a while."""
        alive = set(map(host_of, ask(self.client.nthreads, self.address)))
        for future, (indices, hosts) in list(self.running.items()):
            if alive.intersection(hosts or alive):
                self.without_worker_since.pop(hosts, None)
            elif time.monotonic() - self.without_worker_since.setdefault(hosts, time.monotonic()) >= GONE_S:
                del self.running[future]
                self.client.cancel([future])
                self.give_up(indices, *NONE_LEFT)

    def give_up(self, indices: Sequence[int], how: str, remedy: str) -> None:
        """Makes each item an error."""
        for index in indices:
            self._keep(index, SourceError(self.items[index].path, how, remedy))

    def _keep(self, index: int, result: Any) -> None:
        machine = _machine(self.items[index])
        if machine and isinstance(result, TraceExportError):
            result = TraceExportError(f"{machine}: {result.what}", result.remedy)
        self.take(index, result)
