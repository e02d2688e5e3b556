"""Keeps the threads of a small run on one processor.

Polars computes on threads of its own and wakes one for each operation. On another processor, which sleeps in between,
that takes longer than most operations on small tables. What it saves depends on the machine: between nothing and a
fourteenth of an export of a sample where it was measured.
Threads that each compute for long and say so (`leave`) have all processors.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

SMALL_BYTES = 64 << 20
"""Files of so much are read faster on one processor than on two (trace_export/docs/performance.md)."""
PACKED = {".gz": 10, ".zst": 10, ".zip": 10, ".parquet": 100}
"""How many times their bytes files may hold; a row of a table in Parquet may take two bytes."""
SMALL_BLOCKS = 100_000
"""So many blocks are computed with faster on one processor."""
LAST_PROCESSOR = 39 - 3
"""Its place behind the name of the command in /proc/PID/stat (proc_pid_stat(5), which counts from 1)."""

_may_stay = False
_all_processors: set[int] = set()
"""Those that this process had before it stayed on one; empty where it does not."""


def allow() -> None:
    """Says that this process ends with the run, for which nobody asked for workers, so that its threads may be kept
    where they are."""
    global _may_stay
    _may_stay = True


def stay() -> None:
    """Keeps all threads of this process, and those that they start, on the processor where it runs now, if that is
    allowed and the system can do it."""
    global _all_processors
    if not _may_stay or not hasattr(os, "sched_setaffinity"):
        return
    with suppress(OSError):  # no /proc
        _all_processors = _all_processors or os.sched_getaffinity(0)
        here = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[LAST_PROCESSOR])
        for thread in Path("/proc/self/task").iterdir():
            with suppress(ProcessLookupError):  # it has ended since
                os.sched_setaffinity(int(thread.name), {here})


def stay_with(files: Iterable[Path]) -> None:
    """`stay`, where the files are small together, as far as they are there."""
    if not _may_stay:
        return
    left = SMALL_BYTES
    for file in files:
        with suppress(OSError):
            left -= file.stat().st_size * PACKED.get(file.suffix, 1)
        if left < 0:
            return
    stay()


def leave() -> None:
    """Lets the thread that calls this run on all processors again, if this process stays on one."""
    if _all_processors:
        with suppress(OSError):  # they are not ours any more
            os.sched_setaffinity(0, _all_processors)
