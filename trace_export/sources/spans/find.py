"""Finds tables of spans that other tools wrote, by the names and first bytes of their files."""

from __future__ import annotations

import re
from pathlib import Path

from trace_export.sources.folders import Folder, Found, host_of
from trace_export.sources.source import Source

OPERATIONS = re.compile(r"trace-(?P<job>.+)\.parquet")


def tables(root: Path, folders: list[Folder]) -> Found:
    """The operation tables below `root`: `trace-JOB.parquet` with the description of the job, `meta-JOB.yaml`."""
    sources = []
    for machine, folder in enumerate(folders):
        names = set(folder.files)
        for name in folder.files:
            match = OPERATIONS.fullmatch(name)
            if match and f"meta-{match['job']}.yaml" in names:
                sources.append(Source("operation_table", folder.path / name, host_of(root, folder.path), machine))
    return Found(tuple(sources))
