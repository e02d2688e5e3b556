"""Finds Nsight Systems exports and reports: any folder, any name; the ranks are read from the file."""

from __future__ import annotations

import re
from pathlib import Path

from trace_export.sources.folders import Folder, SearchResult, Unrecognised, host_of
from trace_export.sources.nsys.export_report import SUFFIXES
from trace_export.sources.nsys.session import is_export
from trace_export.sources.nsys.table_folder import is_table_folder
from trace_export.sources.shared import sqlite
from trace_export.sources.source import Source

OURS = (".sqlite", ".sqlite3")
"""The suffixes of `nsys export`. An unreadable file is taken for one: the reader says what is wrong with it."""


_EXPORT = "nsys export --type sqlite"
_OTHERS = (
    (re.compile(r".+\.qdstrm"), f"the stream of a capture: make a report of it with QdstrmImporter, then {_EXPORT}"),
    (re.compile(r".+\.h5|.+_(?:cuda|nvtx)_\w+\.csv"), f"no export that is read: {_EXPORT} makes one of the report"),
)
"""Other output, by its name (https://docs.nvidia.com/nsight-systems/UserGuide), to complete "PATH is …"."""


def exports(root: Path, folders: list[Folder]) -> SearchResult:
    """Databases with the tables of an export, folders of such tables, and reports that were not exported yet; other
    output of Nsight Systems is not read, but named."""
    sources, others = [], []
    for folder in folders:
        if is_table_folder(folder.files):
            sources.append(Source("nsys", folder.path, host_of(root, folder.path)))
            continue
        names = set(folder.files)
        files = [folder.path / name for name in folder.files if _is_ours(folder.path / name, names)]
        sources += [Source("nsys", path, host_of(root, folder.path)) for path in files]
        others += [
            Unrecognised("nsys", str(folder.path / name), what)
            for name in folder.files for pattern, what in _OTHERS if pattern.fullmatch(name)
        ]  # fmt: skip
    return SearchResult(tuple(sources), unrecognised=tuple(others))


def _is_ours(path: Path, names: set[str]) -> bool:
    """Whether a file is an export, or a report that has none; `names`: of the files in its folder."""
    if path.suffix in SUFFIXES:
        return not any(path.stem + ending in names for ending in OURS)
    tables = sqlite.tables_of(path)
    return is_export(tables) or (path.suffix in OURS and not tables)
