"""Where Nsight Systems exports and reports lie: anywhere, under any name."""

from __future__ import annotations

import re
from pathlib import Path

from trace_export.sources import sqlite
from trace_export.sources.layout import Folder, Found, host_of
from trace_export.sources.nsys_report import SUFFIX
from trace_export.sources.nsys_session import is_export
from trace_export.sources.source import Source

OURS = (".sqlite", ".sqlite3")
"""What `nsys export` calls its files: whatever is wrong with one of them, the reader says it."""


def exports(root: Path, folders: list[Folder]) -> Found:
    """Databases with the tables of an export, and reports that were not exported yet."""
    sources = []
    for folder in folders:
        files = [name for name in folder.files if _is_ours(folder, Path(name))]
        ranks = _ranks([Path(name).stem for name in files])
        sources += [
            Source("nsys", folder.path / name, host_of(root, folder.path), rank=rank, rank_origin="assumed")
            for name, rank in zip(files, ranks, strict=True)
        ]
    return Found(tuple(sources))


def _is_ours(folder: Folder, name: Path) -> bool:
    if name.suffix == SUFFIX:
        return not any(name.stem + ending in folder.files for ending in OURS)
    return name.suffix in OURS or is_export(sqlite.tables_of(folder.path / name))


def _ranks(stems: list[str]) -> list[int | None]:
    """The ranks that the file names of a folder tell: a number after "rank", or else at the end of all names, when they
    begin at 0 (report1, report2 are nsys's own names)."""
    told = [re.search(r"rank[_-]?(\d{1,7})(?!\d)", stem, re.IGNORECASE) for stem in stems]
    if all(told):
        return [int(match[1]) if match else None for match in told]
    last = [re.search(r"(\d{1,7})$", stem) for stem in stems]
    numbers = [int(match[1]) if match else None for match in last]
    return numbers if 0 in numbers and len({*numbers} - {None}) == len(stems) else [None] * len(stems)
