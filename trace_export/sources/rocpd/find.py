"""Finds rocpd databases: `PID_results.db` in a folder for each host, or any other `.db`; the file says its rank."""

from __future__ import annotations

from pathlib import Path

from trace_export.files import open_file
from trace_export.sources.folders import Folder, Found, Unrecognised, host_of
from trace_export.sources.rocpd.tables import is_rocpd
from trace_export.sources.shared import sqlite
from trace_export.sources.source import Source

SUFFIXES = (".db", ".rpd")
_JSON = b'"rocprofiler-sdk-tool"'


def databases(root: Path, folders: list[Folder]) -> Found:
    """Databases with the tables of rocpd; the older databases of rocmProfileData are none, and named."""
    sources, others = [], []
    for folder in folders:
        for path in (folder.path / name for name in folder.files if name.endswith(SUFFIXES)):
            tables = sqlite.tables_of(path)
            if is_rocpd(tables):
                sources.append(Source("rocpd", path, host_of(root, folder.path)))
            elif {"rocpd_api", "rocpd_op"} <= tables:
                what = "a database of rocmProfileData (runTracer.sh), which is not read; record with rocprofv3"
                others.append(Unrecognised("rocpd", str(path), what))
        for path in (folder.path / name for name in folder.files if name.endswith("_results.json")):
            if _is_json(path):
                what = "the JSON of rocprofv3, which is not read; record with rocprofv3 --output-format rocpd"
                others.append(Unrecognised("rocpd", str(path), what))
    return Found(tuple(sources), unrecognised=tuple(others))


def _is_json(path: Path) -> bool:
    """Whether a file begins as rocprofv3's JSON does."""
    try:
        with open_file(path) as file:
            return _JSON in file.read(200)
    except OSError:
        return False
