"""What worker processes are asked to do in the tests; a module of its own, because they import it by name."""

import os
import signal
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tests.support.wait import HANGS_S
from trace_export.errors import SourceError


@dataclass(frozen=True)
class Task:
    """An item: what to do stands in the name of its path."""

    path: Path


def tasks(*names: str) -> list[Task]:
    return [Task(Path(name)) for name in names]


def perform(task: Task) -> tuple[str, int]:
    """The name of the task and the process that did it."""
    name = task.path.name
    if name.startswith("refuse"):
        raise SourceError(task.path, "is refused", "give another")
    if name.startswith("mistake"):
        raise ZeroDivisionError("a mistake")
    if name.startswith("panic"):
        raise pl.exceptions.PanicException("lost its nerve")
    if name.startswith("killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    if name.startswith("exit"):
        os._exit(7)
    if name.startswith("full"):
        raise OSError(28, "No space left on device")
    if name.startswith("hungry"):
        raise MemoryError
    if name.startswith("unpicklable"):
        return threading.Lock()  # type: ignore[return-value]
    if name.startswith("hang"):
        signal.pause()
    if name.startswith("until"):
        while not task.path.exists():
            time.sleep(0.01)
    if name.startswith("slow"):
        time.sleep(float(name.removeprefix("slow")))
    return name, os.getpid()


def meet(task: Task) -> int:
    """The process that has it, once there are as many tasks at work as the name of its folder says."""
    task.path.touch()
    deadline = time.monotonic() + HANGS_S
    while len(list(task.path.parent.iterdir())) < int(task.path.parent.name):
        assert time.monotonic() < deadline, "the others have not begun"
        time.sleep(0.01)
    return os.getpid()


def hang(task: Task) -> None:
    """Says that it has begun, and never returns."""
    task.path.touch()
    signal.pause()


def threads(task: Task) -> int:
    return pl.thread_pool_size()


def temporary(task: Task) -> str:
    """Leaves a temporary file and dies, as a reader that is killed does."""
    descriptor, name = tempfile.mkstemp(prefix="left_behind_")
    os.close(descriptor)
    task.path.write_text(name)
    os.kill(os.getpid(), signal.SIGKILL)
    return name


def processes_named(folder: Path) -> str:
    return folder.name
