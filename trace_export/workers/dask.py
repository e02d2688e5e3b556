"""Map a function over items on a Dask cluster: each machine reads what lies on its own disk, and only tables travel.

Needs the extra `dask`. An item that is bound to a machine is submitted to the workers of that machine only, and to new
ones there when they die. An item that cannot be read is an error of that item. A scheduler that is started again is
given what is not read yet; one that stays away or does not answer ends the run.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

from trace_export.errors import SourceError, TraceExportError, UsageError
from trace_export.workers.attempt import Result, attempt
from trace_export.workers.cluster import EVERY, Cluster
from trace_export.workers.dask_client import (
    POLL_S,
    SAME_CODE,
    Worker,
    ask,
    connected,
    gone,
    same_workers,
    through_restarts,
    usable_workers,
)
from trace_export.workers.identity import Identity, identity

CHECK_S: Final = 1.0
"""How often it is checked whether the machines of bound items still have workers."""
MANY, PART = 64, 8
"""Of more items for each worker so many make one task, for a task costs the scheduler as much as a small source."""
GONE_S = 20.0
"""How long a machine may be without a worker before its items are given up; a nanny restarts one in a few seconds. A
scheduler whose `no-workers-timeout` is shorter gives up earlier."""
ATTEMPTS: Final = 3
"""How many times a task that is bound to a machine is given to its workers."""

NO_WORKER: Final = ("no worker is left that could read it", "start workers again, with more memory")
MORE_MEMORY: Final = "give them more memory, or read it on one machine"


class Placed(Protocol):
    """An item: a path, which only the machine `machine_name` can read where that is not None."""

    @property
    def path(self) -> Path: ...
    @property
    def machine_name(self) -> str | None: ...


Item = TypeVar("Item", bound=Placed)


def run(
    cluster: Cluster,
    function: Callable[[Item], Result],
    items: Sequence[Item],
    done: Callable[[int], None] = lambda index: None,
) -> list[Result | TraceExportError]:
    """The result of each item in their order, or its error, as `local.run`; read by the cluster's workers.

    Raises TraceExportError when the scheduler does not answer, goes and does not come back, or a worker cannot run this
    program.
    """
    found: dict[int, Result | TraceExportError] = {}

    def rest(client: Any) -> None:
        """What is not read yet."""
        left = [index for index in range(len(items)) if index not in found]

        def keep(number: int, result: Result | TraceExportError) -> None:
            found[left[number]] = result
            done(left[number])

        workers = same_workers(client, cluster.address)
        _Run(client, cluster.address, workers, function, [items[index] for index in left], keep).all()

    through_restarts(cluster.address, rest)
    return [found[index] for index in range(len(items))]


@dataclass(frozen=True)
class Place:
    """A folder of a machine."""

    path: Path
    machine_name: str


def in_each_folder(
    cluster: Cluster, function: Callable[[Path], Result]
) -> list[tuple[Place, Result | TraceExportError]]:
    """The result of `function` for each of the cluster's folders, on the machine that has it.

    Raises TraceExportError as `run` does, and UsageError for a machine that has no worker.
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
            names = [name] if name != EVERY else list(hosts.values())[::-1]
            places += [Place(folder, machine) for machine in names]
        looks: dict[int, Result | TraceExportError] = {}
        _Run(client, cluster.address, workers, partial(_of_path, function), places, looks.__setitem__).all()
        return [(place, looks[number]) for number, place in enumerate(places)]


def _of_path(function: Callable[[Path], Result], place: Place) -> Result:
    return function(place.path)


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
    """Items that are read together, by index. `addresses` are the workers that may do that where it is bound to a
    machine; `unrunnable_since` is set while there are none. `alone`: nothing else runs with it."""

    indices: list[int]
    machine: str | None
    addresses: tuple[str, ...] = ()
    attempts: int = 0
    unrunnable_since: float | None = None
    alone: bool = False


class _Run(Generic[Item, Result]):
    """One run over `items`: the tasks that run or wait for workers, and those whose workers died, which then run alone.
    `keep` is given the index and the result, or the error, of each item."""

    def __init__(
        self,
        client: Any,
        address: str,
        workers: Sequence[Worker],
        function: Callable[[Item], Result],
        items: Sequence[Item],
        keep: Callable[[int, Result | TraceExportError], None],
    ) -> None:
        distributed: Any = import_module("distributed")
        self.client, self.address, self.workers, self.items, self.keep = client, address, workers, items, keep
        self.function = partial(_attempt_all, function)
        self.running: dict[Any, _Task] = {}
        self.waiting: list[_Task] = []
        self.suspects: list[_Task] = []
        self.completed = distributed.as_completed(with_results=True, raise_errors=False, loop=client.loop)

    def all(self) -> None:
        """Reads all items."""
        for task in self._tasks():
            self._submit(task)
        checked = time.monotonic()
        while self.running or self.waiting or self.suspects:
            if not (self.running or self.waiting):
                self._submit(self.suspects.pop())
            for future, result in self._next():
                self._take(future, result)
            if time.monotonic() - checked > CHECK_S:
                self._resubmit_unrunnable()
                checked = time.monotonic()

    def _tasks(self) -> Iterator[_Task]:
        """The items of a task are all on the same machine."""
        size = PART if len(self.items) > MANY * len(self.workers) else 1
        for machine, same in groupby(range(len(self.items)), lambda index: self.items[index].machine_name):
            indices = list(same)
            yield from (_Task(indices[i : i + size], machine) for i in range(0, len(indices), size))

    def _submit(self, task: _Task) -> None:
        """Gives the task to the scheduler, or lets it wait where its machine has no worker."""
        task.addresses = tuple(w.address for w in self.workers if task.machine and w.is_called(task.machine))
        if task.machine and not task.addresses:
            task.unrunnable_since = task.unrunnable_since or time.monotonic()
            self.waiting.append(task)
            return
        task.attempts += 1
        task.unrunnable_since = None
        items = [self.items[index] for index in task.indices]
        future = self.client.submit(self.function, items, pure=False, workers=task.addresses or None)
        self.running[future] = task
        self.completed.add(future)

    def _next(self) -> list[tuple[Any, Any]]:
        """The tasks that have ended, with their results."""
        if not self.completed.has_ready():
            time.sleep(POLL_S)
        return list(self.completed.next_batch(block=False))

    def _take(self, future: Any, result: Any) -> None:
        """Processes the end of one task: results, an error, or a lost scheduler."""
        task = self.running.pop(future, None)
        if task is None:  # given up meanwhile
            return
        if future.status == "cancelled":
            raise gone(self.address)
        if future.status == "error":
            self._failed(task, result[1])
        else:
            self._settle(task, opened(result, [self.items[index] for index in task.indices]))

    def _failed(self, task: _Task, error: BaseException) -> None:
        """Several items that cannot be read in one task are read in one each."""
        if type(error).__name__ in ("NoValidWorkerError", "NoWorkerError"):
            task.unrunnable_since = float("-inf")  # the scheduler has waited for its no-workers-timeout
            self.waiting.append(task)
        elif len(task.indices) > 1:
            for index in task.indices:
                self._submit(_Task([index], task.machine))
        elif type(error).__name__ == "KilledWorker" and not task.alone:
            self._suspect(task)
        else:
            how = f"the Dask workers that read it died or lost it ({type(error).__name__})"
            self._give_up(task, how, MORE_MEMORY)

    def _suspect(self, task: _Task) -> None:
        """Lets the items of a task whose workers died be read when nothing else is: the workers may have died of what
        else they were given, and Dask blames all of it."""
        self.suspects += [_Task([index], task.machine, alone=True) for index in task.indices]

    def _resubmit_unrunnable(self) -> None:
        """Resubmits tasks to new workers of their machine, or gives them up after `GONE_S` without one."""
        for future in [f for f in self.running if f.status in ("error", "cancelled")]:
            # Dask had a result, lost it with its worker, and failed to get another: `as_completed` is silent about it.
            self._take(future, (None, None if future.status == "cancelled" else ask(future.exception, self.address)))
        alive = set(ask(self.client.nthreads, self.address))
        unrunnable: list[tuple[Any, _Task]] = [(None, task) for task in self.waiting]
        for future, task in self.running.items():
            if alive.intersection(task.addresses or alive):
                task.unrunnable_since = None
            else:
                unrunnable.append((future, task))
        if unrunnable:
            self.workers = usable_workers(self.client, self.address) if alive else []
        for future, task in unrunnable:
            self._retry(future, task)

    def _retry(self, future: Any, task: _Task) -> None:
        """Resubmits a task that no worker may run, at last alone, keeps it for a while, or gives it up. `future` is
        None where it waits."""
        task.unrunnable_since = task.unrunnable_since or time.monotonic()
        there = any(not task.machine or worker.is_called(task.machine) for worker in self.workers)
        if not there and time.monotonic() - task.unrunnable_since < GONE_S:
            return
        if future is None:
            self.waiting.remove(task)
        else:
            del self.running[future]
            self.client.cancel([future])
        if there and task.attempts < ATTEMPTS:
            self._submit(task)
        elif there and not task.alone:
            self._suspect(task)
        elif there:
            self._give_up(task, "each Dask worker that read it died", MORE_MEMORY)
        else:  # neither is there one for what has yet to run alone on the same machine
            without = [task, *(each for each in self.suspects if each.machine == task.machine)]
            self.suspects = [each for each in self.suspects if each.machine != task.machine]
            for each in without:
                self._give_up(each, *NO_WORKER)

    def _give_up(self, task: _Task, how: str, remedy: str) -> None:
        self._settle(task, [SourceError(self.items[index].path, how, remedy) for index in task.indices])

    def _settle(self, task: _Task, results: Sequence[Result | TraceExportError]) -> None:
        for index, result in zip(task.indices, results, strict=True):
            if task.machine and isinstance(result, TraceExportError):
                result = TraceExportError(f"{task.machine}: {result.what}", result.remedy)
            self.keep(index, result)
