"""What work takes: seconds by the clock, seconds of the processors, and memory."""

from __future__ import annotations

import compileall
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = (sys.executable, "-m", "trace_export")
ALLOCATOR = "_RJEM_MALLOC_CONF"
"""Polars sets this variable for its own process; a program that is started from a shell does not have it."""
WARM_BYTES = 4 << 30

_LAUNCHER = """
import json, os, subprocess, sys, time
began = time.perf_counter()
child = subprocess.Popen(sys.argv[2:])  # kept: without a name it would wait for a short command itself
_, status, usage = os.wait4(child.pid, 0)
taken = time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss, os.waitstatus_to_exitcode(status)
with open(int(sys.argv[1]), "w") as file:
    json.dump(taken, file)
"""
"""Runs a command for us and writes what it took: a process counts as its peak what the one that starts it has in
memory, which is much where that has made the inputs."""


@dataclass(frozen=True)
class Amount:
    """A measured value; of seconds by the clock also those of the processors."""

    value: float
    unit: str
    cpu: float | None = None


@dataclass(frozen=True)
class Cost:
    """Seconds by the clock and of the processors, the largest memory in MB, and what was printed."""

    wall: float
    cpu: float
    memory: float = 0.0
    output: str = field(default="", compare=False)

    @property
    def seconds(self) -> Amount:
        return Amount(self.wall, "s", self.cpu)

    @property
    def megabytes(self) -> Amount:
        return Amount(self.memory, "MB")

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.wall - other.wall, self.cpu - other.cpu, self.memory)

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.wall + other.wall, self.cpu + other.cpu, max(self.memory, other.memory))


def warm_memory() -> None:
    """Takes 4 GB of memory and gives it back. A virtual machine returns memory that it does not use to its host and
    gets it again page by page: 2.8 ns a byte, instead of 0.2 for memory that it has, are the host's time and not that
    of what is measured next."""
    memory = b"x" * WARM_BYTES
    del memory


def least(costs: Iterable[Cost]) -> Cost:
    """The smallest value of each kind: what else runs on the machine only adds to it."""
    rounds = list(costs)
    return Cost(*(min(values) for values in zip(*map(_values, rounds), strict=True)), rounds[0].output)


def median(costs: Iterable[Cost]) -> Cost:
    return Cost(*(statistics.median(values) for values in zip(*map(_values, costs), strict=True)))


def _values(cost: Cost) -> tuple[float, float, float]:
    return cost.wall, cost.cpu, cost.memory


def of_work(work: Callable[[], object]) -> Cost:
    """What work in this process takes, with all its threads."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


def of_command(
    arguments: Sequence[object], environment: Mapping[str, str] | None = None, *, together: bool = False
) -> Cost:
    """What a command takes, with the processes that it starts.

    Memory is the peak of its largest process, or with `together` the largest sum of all (PSS, ten times a second).
    Raises RuntimeError with the end of what it printed when it fails.
    """
    command = [str(argument) for argument in arguments]
    variables = {name: value for name, value in os.environ.items() if name != ALLOCATOR}
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as errors, tempfile.TemporaryFile("w+") as taken:
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", _LAUNCHER, str(taken.fileno()), *command],
            cwd=ROOT, env={**variables, "PYTHONPATH": str(ROOT), **(environment or {})}, pass_fds=[taken.fileno()],
            stdin=subprocess.DEVNULL, stdout=said, stderr=errors,
        )  # fmt: skip
        peak = _Peak(process.pid) if together else None
        process.wait()
        for file in (said, errors, taken):
            file.seek(0)
        output = said.read().decode(errors="replace")
        wall, cpu, kilobytes, code = json.load(taken)
        if code:
            raise RuntimeError(
                f"{' '.join(command)[:200]}: exit code {code}: "
                + (output + errors.read().decode(errors="replace"))[-1000:].strip()
            )
    memory = peak.ended() if peak else kilobytes * 1024
    return Cost(wall, cpu, memory / 1e6, output)


class _Peak(threading.Thread):
    """Watches the memory of a process and its children: the largest sum of their private and shared parts."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._process, self._bytes, self._end = psutil.Process(pid), 0, threading.Event()
        self.start()

    def run(self) -> None:
        while not self._end.is_set():
            total = 0
            with suppress(psutil.Error):
                for process in (self._process, *self._process.children(recursive=True)):
                    with suppress(psutil.Error):
                        total += process.memory_full_info().pss
            self._bytes = max(self._bytes, total)
            self._end.wait(0.1)

    def ended(self) -> int:
        self._end.set()
        self.join()
        return self._bytes


def compile_package() -> None:
    """Writes the bytecode of the package, as installing it does."""
    compileall.compile_dir(ROOT / "trace_export", quiet=1)
