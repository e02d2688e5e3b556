"""Limits under which the table library would abort or wait for ever, refused in a sentence before it is loaded."""

from __future__ import annotations

import os
import resource

from trace_export.errors import TraceExportError, printable
from trace_export.workers.sizing import cores

MEMORY = (("virtual memory", "-v", resource.RLIMIT_AS, 1536), ("data segment", "-d", resource.RLIMIT_DATA, 512))
"""What is limited, the letter of `ulimit`, and the MiB needed beside the threads. All samples can be drawn with every
format and detail (tests/cli/test_limits.py); below 1,200 and 400 MiB Polars and NumPy abort, crash or hang."""
THREAD_MIB = 8
"""What each thread of Polars needs of both."""
MOST_THREADS = 1024
"""Polars starts all of its threads at once: a machine that has no room for them stands still."""


def memory_is_limited() -> bool:
    """Whether the memory of this process is limited. Raises TraceExportError for less than a run needs, or for a number
    of threads that Polars could not start."""
    threads = _threads()
    limits = [(*row, resource.getrlimit(row[2])[0]) for row in MEMORY]
    for what, letter, _, base, limit in limits:
        needed = base + THREAD_MIB * threads
        if limit != resource.RLIM_INFINITY and limit < needed << 20:
            raise TraceExportError(
                f"the {what} is limited to {limit >> 20} MiB, and with {threads} threads {needed} MiB are needed",
                f"raise the limit (ulimit {letter}), or set POLARS_MAX_THREADS to fewer threads",
            )
    return any(limit != resource.RLIM_INFINITY for *_, limit in limits)


def _threads() -> int:
    """The threads that Polars will start."""
    chosen = os.environ.get("POLARS_MAX_THREADS", "").strip()
    if not chosen:
        return cores()
    if not chosen.isdecimal() or not 1 <= int(chosen) <= MOST_THREADS:
        raise TraceExportError(
            f"POLARS_MAX_THREADS is {printable(chosen)}, which is not a number of threads from 1 to {MOST_THREADS}",
            "set another number, or leave it out for a thread on each core",
        )
    return int(chosen)
