"""A Dask cluster as the workers: each machine reads what lies on its own disk, and only tables travel.

Needs the extra `dask`. What a worker was given when it died Dask gives to another one; what only the machine of an item
can read is given to its next worker. An item whose workers died of it is an error of that item; a scheduler that goes,
or does not answer, ends the run.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from trace_export.errors import SourceError, TraceExportError, UsageError
from trace_export.workers.attempt import Result, attempt
from trace_export.workers.cluster import EVERY, Cluster
from trace_export.workers.dask_client import SAME_CODE, Worker, ask, connected, gone, same_workers, usable_workers
from trace_export.workers.identity import Identity, identity

POLL_S: Final = 0.05
"""How often it is looked whether a task has ended."""
CHECK_S = 1.0
"""How often it is checked whether the tasks still have workers."""
GONE_S = 20.0
"""How long a machine may be without a worker before its items are given up; a nanny restarts one in a few seconds. A
scheduler whose `no-workers-timeout` is shorter gives up earlier."""
ATTEMPTS: Final = 3
"""How many times a task that is bound to a machine is given to its workers."""
MANY, PART = 64, 8
"""If each worker has more items, this many make one task: a task costs the scheduler as much as a small source."""


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
        groups = [
            same[first : first + size]
            for _, of_machine in groupby(range(len(items)), lambda index: _machine(items[index]))
            for same in [list(of_machine)]
            for first in range(0, len(same), size)
        ]
        _Reading(client, cluster.address, workers, function, items, take).all(groups, may_begin)


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
    places = []
    for name, folder in cluster.folders:
        if name != EVERY and not any(worker.is_called(name) for worker in workers):
            there = ", ".join(sorted({worker.host for worker in workers}))
            what = f"{name}: no worker of the cluster has this name"
            raise UsageError(what, f"hosts there: {there}", parameter="at")
        hosts = {worker.ip: worker.host for worker in reversed(workers)}
        places += [Folder(folder, machine) for machine in ([name] if name != EVERY else list(hosts.values())[::-1])]
    looks: dict[int, Result | TraceExportError] = {}
    each(cluster, partial(_of_path, function), places, looks.__setitem__)
    return [(place, looks[number]) for number, place in enumerate(places)]


def _of_path(function: Callable[[Path], Result], place: Folder) -> Result:
    return function(place.path)


def _machine(item: Placed) -> str | None:
    return getattr(item, "machine_name", None)


def _attempt_all(function: Callable[[Item], Result], items: Sequence[Item]) -> bytes:
    """The identity of the worker and its results. As bytes, so that no result can upset the client of Dask."""
    return pickle.dumps((tuple(identity()), [attempt(function, item) for item in items]), protocol=5)


def opened(returned: Any, items: Sequence[Placed]) -> list[Any]:
    """The results that a worker returned; an error for each item where the worker runs other code than this process,
    since it may have joined the cluster after its workers were compared."""
    try:
        there, results = pickle.loads(returned)
        difference = identity().differences(Identity(*there))
        if not difference and len(results) != len(items):
            difference = f"{len(results)} results instead of {len(items)}"
    except Exception as error:  # whatever other code, or no code of ours, has put there
        difference = f"what it returned cannot be understood ({type(error).__name__})"
    if not difference:
        return list(results)
    how = f"the Dask worker that read it runs other code: {difference}"
    return [SourceError(item.path, how, SAME_CODE) for item in items]


@dataclass
class _Task:
    """Items that are read together, by index, and where they are bound to a machine, the workers that may read them.
    `alone`: nothing else runs meanwhile."""

    indices: list[int]
    addresses: frozenset[str] = frozenset()
    attempts: int = 1
    alone: bool = False


class _Reading:
    """The tasks that a client has given to its cluster."""

    def __init__(
        self,
        client: Any,
        address: str,
        workers: Sequence[Worker],
        function: Callable[[Any], Any],
        items: Sequence[Any],
        take: Callable[[int, Any], None],
    ) -> None:
        distributed: Any = import_module("distributed")
        self.client, self.address, self.workers, self.items, self.take = client, address, workers, items, take
        self.function = partial(_attempt_all, function)
        self.running: dict[Any, _Task] = {}
        self.lost: list[int] = []
        """Items whose workers died. Dask blames all that a worker was given: each is tried once more, alone."""
        self.alone_since: dict[str | None, float] = {}
        self.completed = distributed.as_completed(with_results=True, raise_errors=False, loop=client.loop)

    def all(self, groups: Sequence[list[int]], may_begin: Callable[[int], bool]) -> None:
        """Reads the groups of items, each as one task."""
        waiting, checked = list(groups)[::-1], time.monotonic()
        while waiting or self.running or self.lost:
            alone = any(task.alone for task in self.running.values())
            while waiting and not alone and may_begin(waiting[-1][0]):
                self._submit(_Task(waiting.pop()))
            if self.lost and not self.running:
                self._submit(_Task([self.lost.pop(0)], alone=True))
            if not self.completed.has_ready():
                time.sleep(POLL_S)
            for future, result in list(self.completed.next_batch(block=False)):
                self._ended(future, result)
            if time.monotonic() - checked > CHECK_S:
                self._check()
                checked = time.monotonic()

    def _submit(self, task: _Task) -> None:
        """Gives a task to the workers that may read it; where the machine has none, it waits for its first one."""
        items = [self.items[index] for index in task.indices]
        machine = _machine(items[0])
        there = [worker.address for worker in self.workers if machine and worker.is_called(machine)]
        task.addresses = frozenset(there or ([machine] if machine else []))
        if machine and not there:
            future: Any = object()  # nothing runs
        else:
            future = self.client.submit(self.function, items, pure=False, workers=there or None)
            self.completed.add(future)
        self.running[future] = task

    def _ended(self, future: Any, result: Any) -> None:
        """Takes the results of a task that has ended, or notes its items as lost."""
        task = self.running.pop(future, None)
        if task is None:  # given up meanwhile
            return
        if future.status == "cancelled":
            raise gone(self.address)
        if isinstance(result, bytes):
            for index, found in zip(task.indices, opened(result, [self.items[i] for i in task.indices]), strict=True):
                self._keep(index, found)
        elif type(result[1]).__name__ in ("NoValidWorkerError", "NoWorkerError"):
            self._give_up(task.indices)
        else:
            self._lose(task, type(result[1]).__name__)

    def _check(self) -> None:
        """Gives tasks whose workers are gone to the next worker of their machine, or gives them up after a while."""
        for future in [f for f in self.running if getattr(f, "status", "") in ("error", "cancelled")]:
            # Dask had a result, lost it with its worker, and failed to get another: `as_completed` is silent about it.
            self._ended(future, (None, None if future.status == "cancelled" else ask(future.exception, self.address)))
        alive = set(ask(self.client.nthreads, self.address))
        alone = {f: task for f, task in self.running.items() if not alive.intersection(task.addresses or alive)}
        if alone:
            self.workers = usable_workers(self.client, self.address) if alive else []
        for future, task in alone.items():
            machine = _machine(self.items[task.indices[0]])
            if any(not machine or worker.is_called(machine) for worker in self.workers):
                self.alone_since.pop(machine, None)
            elif time.monotonic() - self.alone_since.setdefault(machine, time.monotonic()) < GONE_S:
                continue
            del self.running[future]
            if hasattr(future, "cancel"):
                self.client.cancel([future])
            if machine in self.alone_since:
                self._give_up(task.indices)
            elif task.attempts < ATTEMPTS:
                self._submit(_Task(task.indices, attempts=task.attempts + 1, alone=task.alone))
            else:
                self._lose(task, "each died")

    def _lose(self, task: _Task, why: str) -> None:
        """Lets the items of a task that its workers did not survive be read alone; one that was alone is an error."""
        if task.alone:
            how = f"the Dask workers that read it died or lost it ({why})"
            self._give_up(task.indices, how, "give them more memory, or read it on one machine")
        else:
            self.lost += task.indices

    def _give_up(
        self,
        indices: Sequence[int],
        how: str = "no worker is left that could read it",
        remedy: str = "start workers again, with more memory",
    ) -> None:
        for index in indices:
            self._keep(index, SourceError(self.items[index].path, how, remedy))

    def _keep(self, index: int, result: Any) -> None:
        machine = _machine(self.items[index])
        if machine and isinstance(result, TraceExportError):
            result = TraceExportError(f"{machine}: {result.what}", result.remedy)
        self.take(index, result)
