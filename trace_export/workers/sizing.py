"""How many workers read at a time, and whether they are threads or processes: a model of time and memory."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROCESS_START_S: Final = 0.6
"""What a process takes to start: all that it needs takes 0.4 s to import, and the processes start on cores that this
one and others use."""
TWO_THREAD_SPEEDUP: Final = 1 / 0.65
"""Of two threads over one, where reading releases the GIL (tests/benchmarks/bench_ascend.py)."""
PROCESS_BYTES: Final = 128 << 20
"""The memory of a process that reads a small source; a large one adds about its own size (see docs/scale.md)."""


@dataclass(frozen=True)
class Workers:
    """How many work at a time: processes, or threads of this one. One alone is this process."""

    count: int
    threads: bool = False


def choose_workers(costs_s: Sequence[float], largest_bytes: int, *, releases_gil: bool) -> Workers:
    """The workers that finish first with sources that take one core `costs_s` each and have `largest_bytes` at most.

    There are no more processes than sources, cores, or processes that fit into the free memory. Threads are considered
    where all sources release the GIL while they are read.
    """
    count = max(1, min(cores(), len(costs_s), free_memory() // (PROCESS_BYTES + largest_bytes)))
    if count == 1:
        return Workers(1)
    total = sum(costs_s)
    durations = {Workers(1): total, Workers(count): PROCESS_START_S + max(total / count, *costs_s)}
    if releases_gil:
        durations[Workers(2, threads=True)] = total / TWO_THREAD_SPEEDUP
    return min(durations, key=lambda workers: durations[workers])


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory() -> int:
    """The bytes that this process and its children may use: what the system has free, or the limit of a container."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file, pattern, unit in (
        ("/proc/meminfo", r"MemAvailable: +(\d+) kB", 1024),
        ("/sys/fs/cgroup/memory.max", r"(\d+)", 1),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", r"(\d+)", 1),
    ):
        with suppress(OSError):  # each exists on some systems only
            if match := re.search(pattern, Path(file).read_text()):
                sizes.append(int(match[1]) * unit)
    return min(sizes)
