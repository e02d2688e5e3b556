"""Finds rocpd databases: `PID_results.db` in a folder for each host, or any other `.db`."""

from __future__ import annotations

from pathlib import Path

from trace_export.sources.folders import Folder, SearchResult, Unrecognised, host_of
from trace_export.sources.rocpd.tables import is_rocpd
from trace_export.sources.shared import sqlite
from trace_export.sources.source import Source

SUFFIXES = (".db", ".rpd")


def databases(root: Path, folders: list[Folder]) -> SearchResult:
    """Databases with the tables of rocpd; those of rocmProfileData are not read, but named."""
    sources, others = [], []
    for folder in folders:
        for path in (folder.path / name for name in folder.files if name.endswith(SUFFIXES)):
            tables = sqlite.tables_of(path)
            if is_rocpd(tables):
                sources.append(Source("rocpd", path, host_of(root, folder.path)))
            elif {"rocpd_api", "rocpd_op"} <= tables:
                what = "a database of rocmProfileData (runTracer.sh), which is not read; record with rocprofv3"
                others.append(Unrecognised("rocpd", str(path), what))
    return SearchResult(tuple(sources), unrecognised=tuple(others))
