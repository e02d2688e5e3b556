"""A Dask cluster of processes on this machine, without nannies: who dies stays dead."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.conftest import ROOT
from tests.support.wait import wait_until
from trace_export.errors import TraceExportError
from trace_export.workers.dask_client import connected, usable_workers

WITH_ITS_PARENT = """
import os, runpy, sys, threading
def watch():
    sys.stdin.buffer.read()
    os._exit(1)
threading.Thread(target=watch, daemon=True).start()
module = sys.argv.pop(1)
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
"""Runs a module, and ends when whoever has the other end of its standard input is gone, however that happened."""


class DaskCluster:
    """Its address, its scheduler, and its workers by name."""

    def __init__(self, folder: Path, stack: ExitStack, protocol: str, settings: dict[str, str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"{protocol}://127.0.0.1:{port}"
        self.folder, self.stack, self.settings = folder, stack, settings
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.stopped: list[subprocess.Popen[bytes]] = []
        self._scheduling = ("dask_scheduler", "--host", f"{protocol}://127.0.0.1", "--port", port)
        self.scheduler = self._start(*self._scheduling)

    def start(self, name: str, package: Path = ROOT) -> None:
        """A worker called `name`, with trace_export of the folder `package`."""
        options = ("--name", name, "--nthreads", 1, "--no-nanny", "--local-directory", self.folder / f"worker_{name}")
        self.workers[name] = self._start("dask_worker", self.address, *options, package=package)

    def restart(self, *names: str) -> None:
        """Kills the scheduler, whose workers end with it, and starts it again with the named workers."""
        self.scheduler.kill()
        self.scheduler.wait()
        for worker in self.workers.values():
            worker.kill()
            worker.wait()
        self.workers.clear()
        self.scheduler = self._start(*self._scheduling)
        for name in names:
            self.start(name)

    def stop(self, process: subprocess.Popen[bytes]) -> None:
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
                return [worker.name for worker in usable_workers(client, self.address)]
        except TraceExportError:
            return []

    def _start(self, module: object, *arguments: object, package: Path = ROOT) -> subprocess.Popen[bytes]:
        program = ["-c", WITH_ITS_PARENT, f"distributed.cli.{module}"]
        command = [sys.executable, "-W", "ignore", *program, *map(str, arguments)]
        settings = {f"DASK_DISTRIBUTED__{key}": value for key, value in self.settings.items()}
        path = os.pathsep.join(dict.fromkeys([str(package), str(ROOT)]))
        process = self.stack.enter_context(
            subprocess.Popen(
                [*command, "--no-dashboard"],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": path, **settings},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )
        self.stack.callback(process.kill)
        return process


@contextmanager
def dask_cluster(folder: Path, *workers: str, protocol: str = "tcp", **settings: str) -> Iterator[DaskCluster]:
    """A scheduler with those workers. `settings` are Dask's: `SCHEDULER__NO_WORKERS_TIMEOUT` stands for
    `distributed.scheduler.no-workers-timeout`."""
    with ExitStack() as stack:
        cluster = DaskCluster(folder, stack, protocol, {"WORKER__MEMORY__TERMINATE": "false", **settings})
        if workers:
            cluster.make_whole(*workers)
        yield cluster
