"""When the process of a command gives memory back that it does not need any more."""

from __future__ import annotations

import os
import sys

MMAP_THRESHOLD = -3
"""M_MMAP_THRESHOLD of glibc's malloc.h."""
LARGE_BYTES = 1 << 20


def give_back() -> None:
    """Makes the allocators of Polars (jemalloc) and numpy (glibc) return freed tables and arrays to the system.

    Without it a report of millions of operations holds a sixth more: jemalloc keeps pages for a second, and glibc keeps
    arrays as large as the largest that was ever freed. It takes a quarter more processor time. To be called before
    Polars is imported, which reads the variable then; what the user has set stays.
    """
    os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0")
    if sys.platform == "linux":
        import ctypes

        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
        if mallopt is not None:
            mallopt(MMAP_THRESHOLD, LARGE_BYTES)


def keep() -> None:
    """For a watch, which runs beside a job and has small tables: one thread of Polars, whose allocator keeps freed
    pages for ten seconds instead of one. The next step needs them again, and to get them anew takes some 5 % of a
    watch's processor time. To be called as `give_back` is."""
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:10000,muzzy_decay_ms:10000")
