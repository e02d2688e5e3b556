"""Map a function over sources: in this process, on threads of it where there is little to read, or on worker processes;
results come in the order of the sources.

The processes are processes of our own and not a `ProcessPoolExecutor`, because that cannot say which source killed its
worker, runs the caller's main module again in each, and lets the terminal's Ctrl-C reach them. A worker
- has a session of its own, so that Ctrl-C reaches only the parent, which then ends all workers at once;
- ends when its standard input does, so that none outlives a parent that was killed;
- is given one source at a time, so that no more than `jobs` sources are in memory, and so that a worker that dies (out
  of memory, say) costs one source and not the run.
"""

from __future__ import annotations

import gc
import multiprocessing.connection
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast

import polars as pl

from trace_export.errors import SourceError, TraceExportError

START_S = 0.35
"""What a process takes to start: as long as all that it needs takes to import."""
IN_TURN = 0.65
"""The time that two threads take for what they read side by side, as a part of the time that one takes."""
WORKER_BYTES = 128 << 20
"""The memory of a process that reads a small source; a large one adds about its own size (see docs/scale.md)."""


class HasPath(Protocol):
    """What a function is mapped over: anything that lies somewhere."""

    @property
    def path(self) -> Path: ...


Item = TypeVar("Item", bound=HasPath)
Result = TypeVar("Result")


@dataclass(frozen=True)
class Workers:
    """How many work at a time: processes, or threads of this one. One alone is this process."""

    count: int
    threads: bool = False


def sensible(seconds: Sequence[float], largest: int, *, beside: bool) -> Workers:
    """The workers that are done first with what takes one core `seconds` each, `largest` bytes at most.

    Processes are as many as there are cores, or as fit into the memory that is free. `beside`: threads would not wait
    for each other all the time.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    fitting = max(1, min(cores, len(seconds), free_memory() // (WORKER_BYTES + largest)))
    if fitting == 1:
        return Workers(1)
    total = sum(seconds)
    ways = {Workers(1): total, Workers(fitting): START_S + max(total / fitting, *seconds)}
    if beside:
        ways[Workers(2, threads=True)] = IN_TURN * total
    return min(ways, key=lambda way: ways[way])


def free_memory() -> int:
    """The bytes that this process and its children may use: what the system has free, at most what a container may."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for place, pattern, unit in (
        ("/proc/meminfo", r"MemAvailable: +(\d+) kB", 1024),
        ("/sys/fs/cgroup/memory.max", r"(\d+)", 1),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", r"(\d+)", 1),
    ):
        with suppress(OSError):  # each exists on some systems only
            if found := re.search(pattern, Path(place).read_text()):
                sizes.append(int(found[1]) * unit)
    return min(sizes)


def run(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    workers: Workers,
    done: Callable[[int], None] = lambda index: None,
) -> list[Result | TraceExportError]:
    """The result of each item in their order, or the error that it raised; `done` is told the index of each when ready.

    Where processes work, `function`, items and results must be picklable.
    """
    count = min(workers.count, len(items))
    if count > 1 and not workers.threads:
        with tempfile.TemporaryDirectory(prefix="trace_export_") as scratch:
            return _Pool(function, items, done, scratch).run(count)
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


def attempt(function: Callable[[Item], Result], item: Item) -> Result | TraceExportError:
    """The result, or the error as the user is told it; a mistake of ours costs its source too, and not the run."""
    try:
        return function(item)
    except TraceExportError as error:
        return error
    except MemoryError:
        return SourceError(item.path, "does not fit into memory", "read fewer at a time with --jobs 1")
    except OSError as error:
        remedy = "check its disk, and that of temporary files (TMPDIR)"
        return SourceError(item.path, f"reading it failed ({error.strerror or error})", remedy)
    except (Exception, pl.exceptions.PanicException) as error:
        ours = SourceError(item.path, f"internal error in its reader, {type(error).__name__}: {error}", "see --debug")
        ours.add_note("".join(traceback.format_exception(error)))
        return ours


_START = """
import sys
sys.path[:] = {path!r}
try:
    from {module} import serve
except BaseException as error:
    sys.exit(f"trace-export: a worker process cannot start ({{type(error).__name__}}: {{error}})")
serve({descriptor})
"""


class _Worker:
    """One worker process, and the connection on which it is given items and returns results; `ready` once it runs."""

    def __init__(self, function: Callable[[Any], Any], scratch: str) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        self.ready = False
        start = _START.format(path=sys.path, module=__name__, descriptor=theirs.fileno())
        # Set before Polars is imported there: one thread a process, because the processes already use all cores.
        environment = {**os.environ, "POLARS_MAX_THREADS": "1", "TMPDIR": scratch}
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", start],
                stdin=subprocess.PIPE,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.connection.send((function, gc.get_threshold()))

    def end(self) -> int:
        """Ends the process, whatever it is doing. Readers change nothing, so there is nothing to wait for."""
        self.process.kill()
        self.process.communicate()
        self.connection.close()
        return self.process.returncode


class _Pool(Generic[Item, Result]):
    """One run over `items`: which worker has which, and what came of them."""

    def __init__(
        self, function: Callable[[Item], Result], items: Sequence[Item], done: Callable[[int], None], scratch: str
    ) -> None:
        self.function, self.items, self.done, self.scratch = function, items, done, scratch
        self.waiting = iter(range(len(items)))
        self.busy: dict[Connection, tuple[_Worker, int]] = {}
        self.results: dict[int, Result | TraceExportError] = {}
        self.works = False

    def run(self, jobs: int) -> list[Result | TraceExportError]:
        try:
            for _ in range(jobs):
                self._employ(self._new_worker())
            while self.busy:
                for connection in multiprocessing.connection.wait(list(self.busy)):
                    self._take(cast(Connection, connection))
        finally:
            for worker, _ in self.busy.values():
                worker.end()
        return [self.results[index] for index in range(len(self.items))]

    def _new_worker(self) -> _Worker:
        try:
            return _Worker(self.function, self.scratch)
        except OSError as error:
            raise TraceExportError(f"no worker process can be started ({error.strerror})", "try --jobs 1") from error

    def _employ(self, worker: _Worker) -> None:
        """Gives `worker` the next item; ends it when there is none."""
        self.busy.pop(worker.connection, None)
        index = next(self.waiting, None)
        if index is None:
            worker.end()
            return
        try:
            worker.connection.send(self.items[index])
        except OSError:  # it died between two items
            worker.end()
            worker = self._new_worker()
            worker.connection.send(self.items[index])
        self.busy[worker.connection] = (worker, index)

    def _take(self, connection: Connection) -> None:
        """The result that a worker sends. One that dies over its item leaves an error, and another takes its place; but
        when none has been ready yet, no other would be."""
        worker, index = self.busy[connection]
        try:
            answer = connection.recv()
        except (EOFError, OSError):
            del self.busy[connection]
            code = worker.end()
            if not self.works:
                raise TraceExportError(f"a worker process {_how(code)} as it started", "try --jobs 1") from None
            self.results[index] = _died(self.items[index], code)
            worker = self._new_worker()
        else:
            if not worker.ready:
                worker.ready = self.works = True
                return
            self.results[index] = answer
        self.done(index)
        self._employ(worker)


def _died(item: HasPath, code: int) -> SourceError:
    return SourceError(item.path, f"the process that read it {_how(code)}, perhaps for lack of memory", "try --jobs 1")


def _how(code: int) -> str:
    return f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended with exit code {code}"


def serve(descriptor: int) -> None:
    """The life of a worker: a function comes over the connection, and how seldom its parent looks for cycles; it says
    that it is ready; then items come, and each result goes back."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with Connection(descriptor) as connection, suppress(EOFError):  # the end of the line is the end of the work
        function, thresholds = connection.recv()
        gc.set_threshold(*thresholds)
        connection.send(None)
        while True:
            connection.send(attempt(function, connection.recv()))


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)  # returns when the parent is gone, or closes it
    os._exit(0)
