"""A limit on memory under which the table library would abort or wait for ever, refused in a sentence."""

from __future__ import annotations

import os
import resource

from trace_export.errors import TraceExportError
from trace_export.workers.sizing import cores

MEMORY = (("virtual memory", "-v", resource.RLIMIT_AS, 1536), ("data segment", "-d", resource.RLIMIT_DATA, 512))
"""What is limited, the letter of `ulimit`, and the MiB needed beside the threads. All samples can be drawn with every
format and detail (tests/cli/test_limits.py); below 1,200 and 400 MiB Polars and NumPy abort, crash or hang."""
THREAD_MIB = 8
"""What each thread of Polars needs of both."""


def memory_is_limited() -> bool:
    """Whether the memory of this process is limited. Raises TraceExportError for less than a run needs."""
    chosen = os.environ.get("POLARS_MAX_THREADS", "")
    threads = int(chosen) if chosen.isdecimal() else cores()
    limits = [(*row, resource.getrlimit(row[2])[0]) for row in MEMORY]
    for what, letter, _, base, limit in limits:
        needed = base + THREAD_MIB * threads
        if limit != resource.RLIM_INFINITY and limit < needed << 20:
            raise TraceExportError(
                f"the {what} is limited to {limit >> 20} MiB, and with {threads} threads {needed} MiB are needed",
                f"raise the limit (ulimit {letter}), or set POLARS_MAX_THREADS to fewer threads",
            )
    return any(limit != resource.RLIM_INFINITY for *_, limit in limits)
