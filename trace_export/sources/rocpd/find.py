"""Finds rocpd databases: `PID_results.db` in a folder for each host, or any other `.db`."""

from __future__ import annotations

import re
from pathlib import Path

from trace_export.sources.folders import Folder, SearchResult, Unrecognised, host_of
from trace_export.sources.not_here import OF_ROCPROF
from trace_export.sources.rocpd.tables import is_rocpd
from trace_export.sources.shared import sqlite
from trace_export.sources.source import Source

SUFFIXES = (".db", ".sqlite", ".sqlite3", ".rpd")
OURS = re.compile(r".+_results\.db")
"""What rocprofv3 calls a database. An unreadable one is taken for one: the reader says what is wrong with it."""
OTHER_OUTPUT = re.compile(
    r"(?:.+_)?(?:kernel|marker_api|hip_api|hsa_api|rccl_api|memory_copy)_trace\.(?P<csv>csv)|(?:.+_)?results\.pftrace"
)
"""Files that rocprofv3 writes with --output-format csv or pftrace."""


def databases(root: Path, folders: list[Folder]) -> SearchResult:
    """Databases with the tables of rocpd; those of rocmProfileData, and what else rocprofv3 writes, are not read, but
    named."""
    sources, others = [], []
    for folder in folders:
        for name in folder.files:
            if match := OTHER_OUTPUT.fullmatch(name):
                what = OF_ROCPROF.format("CSV" if match["csv"] else "a Perfetto trace")
                others.append(Unrecognised("rocpd", str(folder.path / name), what))
        for path in (folder.path / name for name in folder.files if name.endswith(SUFFIXES)):
            tables = sqlite.tables_of(path)
            if is_rocpd(tables) or (not tables and OURS.fullmatch(path.name)):
                sources.append(Source("rocpd", path, host_of(root, folder.path)))
            elif {"rocpd_api", "rocpd_op"} <= tables:
                what = "a database of rocmProfileData (runTracer.sh), which is not read; record with rocprofv3"
                others.append(Unrecognised("rocpd", str(path), what))
    return SearchResult(tuple(sources), unrecognised=tuple(others))
