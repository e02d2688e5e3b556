"""The schedulers and workers of Dask as copies of one process that has loaded it. Loading takes longer than a test."""

import importlib
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from pathlib import Path

_COPIES = multiprocessing.get_context("forkserver")
_COPIES.set_forkserver_preload(["distributed.cli.dask_scheduler", "distributed.cli.dask_worker"])
"""Polars is not among them: it starts threads when it is loaded, which a copy lacks."""


class DaskProcess:
    """A program of `distributed.cli` in a session and a folder of its own. It ends when whoever started it is gone,
    however that happened. `packages`: where it looks first for what it imports; `settings`: Dask's own."""

    def __init__(
        self, program: str, arguments: list[str], folder: Path, packages: list[Path], settings: dict[str, str]
    ) -> None:
        given = (program, arguments, folder, packages, settings)
        self._process = _COPIES.Process(target=_run, args=given, daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Its exit code, below 0 for a signal; None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self) -> int:
        """Its exit code at the end."""
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode


def _run(program: str, arguments: list[str], folder: Path, packages: list[Path], settings: dict[str, str]) -> None:
    os.setsid()
    os.chdir(folder)
    for stream in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), stream)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    warnings.simplefilter("ignore")
    sys.path[:0] = map(str, packages)
    os.environ |= {f"DASK_DISTRIBUTED__{key}": value for key, value in settings.items()}
    importlib.import_module("dask.config").refresh()
    importlib.import_module(f"distributed.cli.{program}").main(arguments)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
