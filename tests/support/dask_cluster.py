"""A Dask cluster of processes on this machine, without nannies: who dies stays dead."""

import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

from tests.conftest import ROOT
from tests.support.dask_process import DaskProcess
from tests.support.wait import HANGS_S, wait_until
from trace_export.errors import TraceExportError
from trace_export.workers import dask, dask_client
from trace_export.workers.dask_client import connected

BLAMES_ALL = {"SCHEDULER__ALLOWED_FAILURES": "0", "SCHEDULER__WORKER_SATURATION": "inf"}
"""Settings with which all tasks are given to workers at once, and fail with the first that dies."""


class DaskCluster:
    """Its address, its scheduler, and its workers by name."""

    def __init__(self, folder: Path, stack: ExitStack, protocol: str, settings: dict[str, str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"{protocol}://127.0.0.1:{port}"
        self.folder, self.stack, self.settings = folder, stack, settings
        self.workers: dict[str, DaskProcess] = {}
        self.stopped: list[DaskProcess] = []
        self.hosts: dict[str, str] = {}
        self._scheduling = ("dask_scheduler", "--host", f"{protocol}://127.0.0.1", "--port", port)
        self.scheduler = self._start(*self._scheduling)

    def start(self, name: str, package: Path = ROOT) -> None:
        """A worker called `name`, with trace_export of the folder `package`, on a host of its own."""
        self.hosts.setdefault(name, f"127.0.0.{2 + len(self.hosts)}")
        folder = self.folder / f"worker_{name}"
        placed = ("--name", name, "--host", self.hosts[name], "--local-directory", folder)
        options = (*placed, "--nthreads", 1, "--no-nanny")
        self.workers[name] = self._start("dask_worker", self.address, *options, package=package)

    def kill(self) -> None:
        """Kills the scheduler and its workers, which would end with it."""
        for process in (self.scheduler, *self.workers.values()):
            process.kill()
            process.wait()
        self.workers.clear()

    def stop(self, process: DaskProcess) -> None:
        """The process stays, and answers no more."""
        process.send_signal(signal.SIGSTOP)
        self.stopped.append(process)

    def make_whole(self, *names: str) -> None:
        """Ends the workers with other names and those that were stopped; starts the named ones that are gone."""
        for process in self.stopped:
            process.kill()
            process.wait()
        self.stopped.clear()
        for name in set(self.workers).difference(names):
            self.workers.pop(name).kill()

        def whole() -> bool:
            for name in names:  # one is refused and ends while the scheduler still knows the one before by its name
                if name not in self.workers or self.workers[name].poll() is not None:
                    self.start(name)
            return sorted(self.names()) == sorted(names)

        wait_until(whole)

    def names(self) -> list[str]:
        """The names of the workers that are there."""
        try:
            with connected(self.address) as client:
                answers = client.run(lambda dask_worker: dask_worker.name, on_error="return").values()
                return [name for name in answers if isinstance(name, str)]
        except TraceExportError:
            return []

    def _start(self, program: str, *arguments: object, package: Path = ROOT) -> DaskProcess:
        given = [*map(str, arguments), "--no-dashboard"]
        process = DaskProcess(program, given, self.folder, [package, ROOT], self.settings)
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        return process


@contextmanager
def dask_cluster(folder: Path, *workers: str, protocol: str = "tcp", **settings: str) -> Iterator[DaskCluster]:
    """A scheduler with those workers. `settings` are Dask's: `SCHEDULER__NO_WORKERS_TIMEOUT` stands for
    `distributed.scheduler.no-workers-timeout`. As long as it is there, no time-out of the client ends on
    a busy machine, and what a client looks for now and then it looks for more often."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.multiple(dask_client, ANSWER_S=HANGS_S, CONNECT_S=HANGS_S))
        stack.enter_context(mock.patch.object(dask, "GONE_S", HANGS_S))
        stack.enter_context(mock.patch.object(dask, "CHECK_S", 0.1))
        cluster = DaskCluster(folder, stack, protocol, {"WORKER__MEMORY__TERMINATE": "false", **settings})
        if workers:
            cluster.make_whole(*workers)
        yield cluster
