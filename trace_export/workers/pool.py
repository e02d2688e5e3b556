"""Map a function over items on worker processes.

These are processes of our own and not those of a library, because a worker here
- does not run the caller's main module again: a script without a main guard, a notebook and a prompt can load profiles;
- has a session of its own, so that Ctrl-C reaches only the parent, which then ends all workers at once;
- ends when its standard input does, so that none outlives a parent that was killed;
- is given one item at a time, so that a worker that dies (out of memory, say) costs one item, which another one tries
  again and which is named if that dies too.

Of these, `concurrent.futures` (Python 3.11) has none and pebble (5.2) the last. Two workers are ready in 0.9 s here, in
1.2 s with pebble and in 2.5 s with `concurrent.futures`, on two busy cores, and take 57, 69 and 63 MB; those of the
libraries outlive a parent that is killed (measured in November 2026).
"""

from __future__ import annotations

import gc
import multiprocessing.connection
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Generic, cast

from trace_export.errors import SourceError, TraceExportError
from trace_export.workers import process
from trace_export.workers.attempt import Item, Result


class Pool(Generic[Item, Result]):
    """One run over `items`: the item of each worker. Workers put temporary files into `scratch`; `take` is called with
    the index and the result, or the error, of each item; `may_begin` says whether an item may be given out yet."""

    def __init__(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        take: Callable[[int, Result | TraceExportError], None],
        scratch: Path,
        may_begin: Callable[[int], bool] = lambda index: True,
    ) -> None:
        self.function, self.items, self.take, self.scratch, self.may_begin = function, items, take, scratch, may_begin
        self.waiting = list(range(len(items)))[::-1]
        self.busy: dict[Connection, tuple[_Worker, int]] = {}
        self.idle: list[_Worker] = []
        self.again: set[int] = set()
        self.any_ready = False

    def run(self, count: int) -> None:
        """Processes all items. Raises TraceExportError when no worker can start."""
        try:
            for _ in range(count):
                self._assign(self._new_worker())
            while self.busy:
                for connection in multiprocessing.connection.wait(list(self.busy)):
                    self._receive(cast(Connection, connection))
        finally:
            for worker in [*(worker for worker, _ in self.busy.values()), *self.idle]:
                worker.end()

    def _new_worker(self) -> _Worker:
        try:
            return _Worker(self.function, self.scratch)
        except OSError as error:
            raise TraceExportError(f"no worker process can be started ({error.strerror})", "try `jobs` 1") from error

    def _assign(self, worker: _Worker) -> None:
        """Gives `worker` the next item; lets it wait where that may not begin yet, ends it when there is none."""
        self.busy.pop(worker.connection, None)
        if not self.waiting:
            worker.end()
            return
        if not self.may_begin(self.waiting[-1]):
            self.idle.append(worker)
            return
        index = self.waiting.pop()
        with suppress(OSError):  # it has died: `_receive` notices
            worker.connection.send(self.items[index])
        self.busy[worker.connection] = (worker, index)

    def _receive(self, connection: Connection) -> None:
        """Processes a message of a worker: that it is ready, or a result. A worker that dies is replaced, and its item
        is tried once more; if no worker has been ready yet, no replacement would be."""
        worker, index = self.busy[connection]
        try:
            answer = connection.recv()
        except (EOFError, OSError):
            del self.busy[connection]
            code = worker.end()
            if not self.any_ready:
                raise TraceExportError(f"a worker process {_how(code)} as it started", "try `jobs` 1") from None
            worker = self._new_worker()
            if index in self.again:
                how = f"the process that read it {_how(code)} twice; perhaps it ran out of memory"
                self.take(index, SourceError(self.items[index].path, how, "try `jobs` 1"))
            else:
                self.again.add(index)
                self.waiting.append(index)
        else:
            if not worker.ready:
                if answer is not None:
                    raise TraceExportError(f"a worker process cannot start ({answer})", "try `jobs` 1")
                worker.ready = self.any_ready = True
                return
            self.take(index, answer)
        self._assign(worker)
        waited, self.idle = self.idle, []
        for each in waited:
            self._assign(each)


class _Worker:
    """One worker process, and the connection on which it is given items and returns results; `ready` once it runs."""

    def __init__(self, function: Callable[[Any], Any], scratch: Path) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        self.ready = False
        # Set before Polars is imported there: one thread a process, because the processes already use all cores.
        environment = {**os.environ, "POLARS_MAX_THREADS": "1", "TMPDIR": str(scratch)}
        with theirs:
            self.process = subprocess.Popen(
                # -P keeps the folder of the script out of its path: there, `dask` would be a module of ours.
                [sys.executable, "-P", process.__file__, str(theirs.fileno())],
                stdin=subprocess.PIPE,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        with suppress(OSError):  # one that has ended already is noticed when it is to answer, and has an exit code then
            self.connection.send((sys.path, gc.get_threshold()))
            self.connection.send(function)

    def end(self) -> int:
        """Ends the process, whatever it is doing. Readers change nothing, so there is nothing to wait for."""
        self.process.kill()
        self.process.communicate()
        self.connection.close()
        return self.process.returncode


def _how(code: int) -> str:
    return f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended with exit code {code}"
