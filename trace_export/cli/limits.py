"""Limits of the process that are too low for the libraries: they abort, crash or wait for ever instead of failing."""

from __future__ import annotations

import os
import resource
import threading

from trace_export.errors import TraceExportError
from trace_export.workers.sizing import cores

MEMORY = (("virtual memory", "-v", resource.RLIMIT_AS, 1536), ("data segment", "-d", resource.RLIMIT_DATA, 512))
"""What is limited, the letter of `ulimit`, and the MiB needed beside the threads. All samples can be drawn with every
format and detail (tests/cli/test_limits.py); below 1,200 and 400 MiB Polars and NumPy abort, crash or hang."""
THREAD_MIB = 8
"""What each thread of Polars needs of both."""
SPARE_THREADS = 8
"""Those that are started beside Polars' own: readers, writers, allocators."""
MOST_THREADS = 1024


def check() -> None:
    """Raises TraceExportError for a limit under which the table library cannot work."""
    chosen = os.environ.get("POLARS_MAX_THREADS", "")
    threads = cores()
    if chosen.isdecimal():
        threads = int(chosen) if len(chosen) < 6 else MOST_THREADS + 1
        if not 1 <= threads <= MOST_THREADS:
            what = f"POLARS_MAX_THREADS is {chosen[:20]}, and it may be from 1 to {MOST_THREADS}"
            raise TraceExportError(what, "give it such a number, or unset it")
    for what, letter, kind, base in MEMORY:
        needed, (limit, _) = base + THREAD_MIB * threads, resource.getrlimit(kind)
        if limit != resource.RLIM_INFINITY and limit < needed << 20:
            raise TraceExportError(
                f"the {what} is limited to {limit >> 20} MiB, and with {threads} threads {needed} MiB are needed",
                f"raise the limit (ulimit {letter}), or set POLARS_MAX_THREADS to fewer threads",
            )
    if not _can_start(threads + SPARE_THREADS):
        raise TraceExportError(
            f"the {threads + SPARE_THREADS} threads that are needed cannot be started",
            "raise the limit of processes (ulimit -u), or set POLARS_MAX_THREADS to fewer threads",
        )


def memory_is_limited() -> bool:
    return any(resource.getrlimit(kind)[0] != resource.RLIM_INFINITY for _, _, kind, _ in MEMORY)


def _can_start(count: int) -> bool:
    """Whether this many threads can run at once."""
    ended = threading.Event()
    started = []
    try:
        for _ in range(count):
            thread = threading.Thread(target=ended.wait)
            thread.start()
            started.append(thread)
    except RuntimeError:
        return False
    finally:
        ended.set()
        for thread in started:
            thread.join()
    return True
