"""Map a function over sources on a Dask cluster: each machine reads what lies on its own disk, only tables travel.

Needs the extra `dask`. A task that is bound to a machine goes to the workers of that machine only; when they die and
new ones come up there, it is given to those. What a machine cannot read is an error of that source and never ends the
run.
"""

from __future__ import annotations

import logging
import queue
import socket
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any, Generic, NamedTuple, NoReturn, Protocol, TypeVar

from trace_export.errors import SourceError, TraceExportError, UsageError
from trace_export.workers.attempt import attempt

CONNECT_S = 10
LOOK_S = 1.0
"""How often it is checked whether the machines of bound tasks are still there."""
MANY, PART = 64, 8
"""Of more sources for each worker so many make one task, for a task costs the scheduler as much as a small source."""
TOGETHER_S = 0.25
"""How long results may wait for others to be fetched with them."""
GONE_S = 20.0
"""How long a machine may be without a worker before its tasks are given up; a nanny restarts one in a few seconds."""
FETCH_S = 5.0
"""How long a small table may take to travel; a result whose worker has died never comes."""
TRIES = 3
"""How many workers of its machine a bound task may outlive."""
EVERY = "*"


class Placed(Protocol):
    """An item: a path, which only the machine `machine_name` can read where that is not None."""

    @property
    def path(self) -> Path: ...
    @property
    def machine_name(self) -> str | None: ...


Item = TypeVar("Item", bound=Placed)
Result = TypeVar("Result")


@dataclass(frozen=True)
class Cluster:
    """The Dask scheduler at `address`, and which machine reads which folder of its own, in order.

    A machine is called by the name or address of its workers or by its host name; `*` stands for every machine. No
    folders: every worker sees the log_dir under the same name.
    """

    address: str
    folders: tuple[tuple[str, Path], ...] = ()
    plans: tuple[Path, ...] = ()
    """The TOML files that name folders."""

    @staticmethod
    def parse(address: str, entries: Sequence[str]) -> Cluster:
        """`entries` are `MACHINE:FOLDER`, or a TOML file with a table `machines` that holds `MACHINE = "FOLDER"` or a
        list of folders. Raises UsageError."""
        folders: list[tuple[str, Path]] = []
        plans = tuple(Path(entry) for entry in entries if entry.endswith(".toml"))
        for entry in entries:
            if entry.endswith(".toml"):
                folders += _plan(Path(entry))
                continue
            machine, colon, folder = entry.partition(":")
            if not (machine and colon and folder):
                raise UsageError(f'--at "{entry}" is not MACHINE:FOLDER', "write it like --at node1:/scratch/profiles")
            folders.append((machine, Path(folder)))
        return Cluster(address, tuple(folders), plans)


def _plan(file: Path) -> list[tuple[str, Path]]:
    try:
        machines = tomllib.loads(file.read_text(encoding="utf-8"))["machines"]
        named = [(m, [f] if isinstance(f, str) else f) for m, f in machines.items()]
        return [(machine, Path(folder)) for machine, folders in named for folder in folders]
    except OSError as error:
        raise UsageError(f"--at {file}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, AttributeError, TypeError) as error:
        remedy = 'it needs a table [machines] with lines like node1 = "/scratch/profiles"'
        raise UsageError(f"--at {file}: is not a plan", remedy) from error


def run(
    cluster: Cluster,
    function: Callable[[Item], Result],
    items: Sequence[Item],
    done: Callable[[int], None] = lambda index: None,
) -> list[Result | TraceExportError]:
    """The result of each item in their order, or its error, as `local.run`; read by the cluster's workers.

    Raises TraceExportError when no scheduler answers, or no worker can run this program.
    """
    with _client(cluster) as client:
        return _Run(client, function, items, done).results()


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
    with _client(cluster) as client:
        workers = _workers(client)
        places = []
        for name, folder in cluster.folders:
            if name != EVERY and not any(w.called(name) for w in workers):
                there = ", ".join(sorted({w.host for w in workers}))
                raise UsageError(f"--at {name}: no worker of the cluster has this name", f"hosts there: {there}")
            names = [name] if name != EVERY else [w.host for w in {w.ip: w for w in reversed(workers)}.values()][::-1]
            places += [Place(folder, n) for n in names]
        return list(zip(places, _Run(client, partial(_of_path, function), places).results(), strict=True))


def _of_path(function: Callable[[Path], Result], place: Place) -> Result:
    return function(place.path)


@contextmanager
def _client(cluster: Cluster) -> Iterator[Any]:
    try:
        distributed: Any = import_module("distributed")
    except ImportError as error:
        raise TraceExportError("--scheduler needs the extra dask", "pip install 'trace-export[dask]'") from error
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # this program reports what was lost
    try:
        client = distributed.Client(cluster.address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        remedy = "start one with `dask scheduler` and workers with `dask worker`"
        raise TraceExportError(f"{cluster.address}: no Dask scheduler answers there", remedy) from error
    with client:
        if not client.nthreads():
            raise TraceExportError(f"{cluster.address}: the Dask cluster has no worker", "start some with dask worker")
        yield client


class Worker(NamedTuple):
    """What a worker reports of itself. `name` is its address where it has no other."""

    address: str
    name: str
    host: str
    ip: str

    def called(self, machine: str) -> bool:
        return machine in (*self, self.host.partition(".")[0])


def _workers(client: Any) -> list[Worker]:
    """The workers in the order of their names. Raises TraceExportError when one cannot run this program."""
    try:
        told = client.run(_who, on_error="return").values()
    except Exception as error:  # whatever unpickling, versions or the network make of it over there
        return _refuse(error)
    for answer in told:
        if isinstance(answer, Exception) and not isinstance(answer, OSError):  # OSError: it is just going
            return _refuse(answer)
    return sorted(Worker(*answer) for answer in told if not isinstance(answer, Exception))


def _refuse(error: Exception) -> NoReturn:
    remedy = "install the same trace-export on every worker"
    raise TraceExportError(f"a Dask worker cannot run this program ({error})", remedy) from error


def _who(dask_worker: Any) -> tuple[str, str, str, str]:
    return dask_worker.address, str(dask_worker.name), socket.gethostname(), dask_worker.ip


def _attempt_all(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result | TraceExportError]:
    return [attempt(function, item) for item in items]


class _Run(Generic[Item, Result]):
    """One run over `items`: which tasks are out, and what came of the others."""

    def __init__(
        self,
        client: Any,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        done: Callable[[int], None] = lambda index: None,
    ) -> None:
        self.client, self.items, self.done = client, items, done
        self.task = partial(_attempt_all, function)
        self.workers = _workers(client)
        self.out: dict[Any, list[int]] = {}
        self.bound: dict[int, list[str]] = {}
        self.tries = [0] * len(items)
        self.lost_at: dict[int, float] = {}
        self.finished: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.found: dict[int, Result | TraceExportError] = {}

    def results(self) -> list[Result | TraceExportError]:
        try:
            for part in self._parts():
                self._submit(part)
            looked = time.monotonic()
            while self.out:
                self._gather(self._next())
                if time.monotonic() - looked > LOOK_S:
                    self._look_after_the_stranded()
                    looked = time.monotonic()
        finally:
            self.client.cancel(list(self.out))
        return [self.found[index] for index in range(len(self.items))]

    def _parts(self) -> Iterator[list[int]]:
        """The items of each task, by index; those of one are all at the same machine."""
        size = PART if len(self.items) > MANY * len(self.workers) else 1
        for _, same in groupby(range(len(self.items)), lambda index: self.items[index].machine_name):
            indices = list(same)
            yield from (indices[i : i + size] for i in range(0, len(indices), size))

    def _submit(self, part: list[int]) -> None:
        """Tries, bound workers and times of loss are kept by the first item of a task."""
        at = self.items[part[0]].machine_name
        self.tries[part[0]] += 1
        if at is not None:
            self.bound[part[0]] = [w.address for w in self.workers if w.called(at)]
        items = [self.items[index] for index in part]
        future = self.client.submit(self.task, items, pure=False, workers=self.bound.get(part[0]))
        self.out[future] = part
        future.add_done_callback(self.finished.put)

    def _next(self) -> list[Any]:
        """The tasks that have ended since the last look; waits a while for one, and a moment for more, because fetching
        many takes hardly longer than fetching one."""
        ended = []
        try:
            ended.append(self.finished.get(timeout=LOOK_S))
            if len(self.out) > 1:
                time.sleep(TOGETHER_S)
            while not self.finished.empty():
                ended.append(self.finished.get())
        except queue.Empty:
            pass
        return [future for future in ended if future in self.out]

    def _gather(self, ended: list[Any]) -> None:
        """Takes the results over, in one go where that works. One whose worker died after it had finished does not
        come, or only when another worker has done the task again: it is looked for again later."""
        whole = [future for future in ended if future.status == "finished"]
        for future, result in self._together(whole):
            self._settle(future, result)
        missing = [future for future in ended if future in self.out]
        while missing:
            try:
                self._look_at(missing[0])
                missing.pop(0)
            except TimeoutError:
                for future in missing:
                    self.finished.put(future)
                return

    def _together(self, whole: list[Any]) -> list[tuple[Any, list[Result]]]:
        """The tasks with their results; none when not all of them are there."""
        import asyncio  # loaded by Dask anyway, and by nobody else

        gather = self.client.gather(whole, errors="skip", asynchronous=True)
        fetching = asyncio.run_coroutine_threadsafe(gather, self.client.loop.asyncio_loop)
        try:
            results = fetching.result(FETCH_S)
        except TimeoutError:
            fetching.cancel()
            return []
        return list(zip(whole, results, strict=True)) if len(results) == len(whole) else []

    def _look_at(self, future: Any) -> None:
        """Takes the result of one task. Several sources that cannot be read in one task are read in one each."""
        part = self.out[future]
        try:
            results = future.result(FETCH_S)
        except TimeoutError:
            raise
        except Exception as error:  # whatever the cluster did with the task: this source is lost, not the run
            if len(part) > 1:
                del self.out[future]
                for index in part:
                    self._submit([index])
                return
            how = f"the Dask workers that read it died or lost it ({type(error).__name__})"
            remedy = "give them more memory, or read it on one machine"
            results = [SourceError(self.items[part[0]].path, how, remedy)]
        self._settle(future, results)

    def _settle(self, future: Any, results: Sequence[Result | TraceExportError]) -> None:
        for index, result in zip(self.out.pop(future), results, strict=True):
            at = self.items[index].machine_name
            if at is not None and isinstance(result, TraceExportError):
                result = TraceExportError(f"{at}: {result.what}", result.remedy)
            self.found[index] = result
            self.done(index)

    def _look_after_the_stranded(self) -> None:
        """Tasks without a worker that may do them: again to new ones of their machine, or given up after a while."""
        alive = set(self.client.nthreads())
        stranded = {f: part for f, part in self.out.items() if not alive & set(self.bound.get(part[0], alive))}
        if stranded:
            self.workers = _workers(self.client)
        for future, part in stranded.items():
            at = self.items[part[0]].machine_name
            since = self.lost_at.setdefault(part[0], time.monotonic())
            back = any(at is not None and w.called(at) for w in self.workers)
            if back and self.tries[part[0]] < TRIES:
                del self.out[future], self.lost_at[part[0]]
                self.client.cancel([future])
                self._submit(part)
            elif back or time.monotonic() - since > GONE_S:
                how, remedy = "no worker is left that could read it", "start workers again, with more memory"
                self._settle(future, [SourceError(self.items[index].path, how, remedy) for index in part])
