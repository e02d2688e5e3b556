"""Waiting for what another process does."""

import subprocess
import time
from collections.abc import Callable, Collection

import psutil

HANGS_S = 300
"""What has not happened after so long never does, however busy the machine is."""


def wait_until(true: Callable[[], object], *, every: float = 0.02, by: subprocess.Popen[str] | None = None) -> None:
    """Returns as soon as `true()` is; fails when it never is, or when the process `by` which it becomes so has ended,
    with what that said."""
    deadline = time.monotonic() + HANGS_S
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        if by is not None and by.poll() is not None and not true():
            raise AssertionError(f"the process ended with {by.returncode}: {by.stderr.read() if by.stderr else ''}")
        time.sleep(every)


def wait_for_end(processes: Collection[psutil.Process]) -> None:
    """Returns as soon as none of them runs, though the process that inherited one may not have asked how it ended: the
    first process of some machines does that every other second."""
    wait_until(lambda: not any(map(_runs, processes)))


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
