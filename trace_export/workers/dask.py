"""A Dask cluster as the workers: each machine reads what lies on its own disk, and only tables travel.

Needs the extra `dask`. What a worker was given when it died Dask gives to another one; what only the machine of an item
can read is given to its next worker. An item whose workers died of it is an error of that item; a scheduler that goes,
or does not answer, ends the run.
"""

from __future__ import annotations

import queue
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from trace_export.errors import SourceError, TraceExportError, UsageError
from trace_export.workers.attempt import Result, attempt
from trace_export.workers.cluster import EVERY, Cluster
from trace_export.workers.dask_client import SAME_CODE, Worker, ask, connected, gone, same_workers, usable_workers
from trace_export.workers.identity import Identity, identity

CHECK_S = 1.0
"""How long nothing may end until it is checked whether all tasks still have workers."""
GONE_S = 20.0
"""How long a machine may be without a worker before its items are given up; a nanny restarts one in a few seconds. A
scheduler whose `no-workers-timeout` is shorter gives up earlier."""
ATTEMPTS: Final = 3
"""How many times a task that is bound to a machine is given to its workers."""
MANY, PART = 64, 8
"""If each worker has more items, this many make one task: a task costs the scheduler as much as a small source."""
NONE_LEFT: Final = "no worker is left that could read it", "start workers again, with more memory"


class Placed(Protocol):
    """An item: a path, which only the machine `machine_name` can read where it has one that is not None."""

    @property
    def path(self) -> Path: ...


Item = TypeVar("Item", bound=Placed)


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
    each(cluster, partial(_of_path, function), folders, looks.__setitem__)
    return [(one, looks[number]) for number, one in enumerate(folders)]


def _of_path(function: Callable[[Path], Result], folder: Folder) -> Result:
    return function(folder.path)


def _machine(item: Placed) -> str | None:
    return getattr(item, "machine_name", None)


def _attempt_all(function: Callable[[Item], Result], items: Sequence[Item]) -> tuple[tuple[str, ...], list[Any]]:
    """The identity of the worker and its results."""
    return tuple(identity()), [attempt(function, item) for item in items]


class _Reading:
    """The items that a client gives to its cluster, and the tasks of it that run: each a future with the items that it
    reads, by index, and the addresses of the workers that may read them where only these can."""

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
        self.running: dict[Any, tuple[list[int], set[str]]] = {}
        self.ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.attempts: Counter[int] = Counter()
        self.without_worker_since: dict[str | None, float] = {}

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
                future, ended = self.ended.get(timeout=CHECK_S)
            except queue.Empty:
                lost += self._check()
            else:
                if future in self.running:  # not given up meanwhile
                    lost += self._take(future, ended)

    def _submit(self, indices: list[int]) -> None:
        """Gives a group to the workers that may read it; where its machine has none, it waits for its first one."""
        machine = _machine(self.items[indices[0]])
        there = {worker.address for worker in self.workers if machine and worker.is_called(machine)}
        if machine and not there:
            future: Any = object()  # nothing runs
        else:
            items = [self.items[index] for index in indices]
            future = self.client.submit(self.function, items, pure=False, workers=sorted(there) or None)
            future.add_done_callback(self._fetch)
        self.running[future] = indices, there or ({machine} if machine else set())
        self.attempts[indices[0]] += 1

    def _fetch(self, future: Any) -> None:
        """Fetches what a task returned, or its error, in a thread of Dask: it waits where the worker that has it died
        meanwhile, and the task must be given to another."""
        try:
            theirs, results = future.result()
            difference = identity().differences(Identity(*theirs))  # it may have joined after they were compared
            self.ended.put((future, difference or results))
        except Exception as error:
            self.ended.put((future, error))

    def _take(self, future: Any, ended: list[Any] | str | Exception) -> list[int]:
        """Takes the results of a task that has ended. Returns its items where it has none, for its workers died."""
        indices, _ = self.running.pop(future)
        if future.status == "cancelled":
            raise gone(self.address)
        if isinstance(ended, list):
            for index, result in zip(indices, ended, strict=True):
                self._keep(index, result)
        elif isinstance(ended, str):
            self.give_up(indices, f"the Dask worker that read it runs other code: {ended}", SAME_CODE)
        elif type(ended).__name__ in ("NoValidWorkerError", "NoWorkerError"):
            self.give_up(indices, *NONE_LEFT)
        else:
            return indices
        return []

    def _check(self) -> list[int]:
        """Gives tasks whose workers are gone to the next worker of their machine, or gives them up after a while.
        Returns the items of those that were given to several."""
        alive = set(ask(self.client.nthreads, self.address))
        lacking = [f for f, (_, addresses) in self.running.items() if not alive.intersection(addresses or alive)]
        if lacking:
            self.workers = usable_workers(self.client, self.address) if alive else []
        lost: list[int] = []
        for future in lacking:
            indices, _ = self.running[future]
            machine = _machine(self.items[indices[0]])
            there = any(not machine or worker.is_called(machine) for worker in self.workers)
            since = self.without_worker_since.setdefault(machine, time.monotonic())
            if there:
                del self.without_worker_since[machine]
            elif time.monotonic() - since < GONE_S:
                continue
            del self.running[future]
            if hasattr(future, "cancel"):
                self.client.cancel([future])
            if not there:
                self.give_up(indices, *NONE_LEFT)
            elif self.attempts[indices[0]] < ATTEMPTS:
                self._submit(indices)
            else:
                lost += indices
        return lost

    def give_up(self, indices: Sequence[int], how: str, remedy: str) -> None:
        """Makes each item an error."""
        for index in indices:
            self._keep(index, SourceError(self.items[index].path, how, remedy))

    def _keep(self, index: int, result: Any) -> None:
        machine = _machine(self.items[index])
        if machine and isinstance(result, TraceExportError):
            result = TraceExportError(f"{machine}: {result.what}", result.remedy)
        self.take(index, result)
