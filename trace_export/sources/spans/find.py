"""Finds tables of spans that other tools wrote, by the names and first bytes of their files."""

from __future__ import annotations

import re
from pathlib import Path

from trace_export.files import Unpacked
from trace_export.sources.folders import Folder, SearchResult, host_of
from trace_export.sources.source import Source
from trace_export.sources.spans import operation_table

SUFFIX = ".spans.parquet"
OPERATIONS = re.compile(r"trace-(?P<job>.+)\.parquet")
STAGE = re.compile(r"pp_rank_(\d{1,6})\.json")
ITERATION = re.compile(r"(.*iter)(\d{1,9})\.json")
"""The common part of the names of a run's files, and the iteration."""
START = 64 << 10
"""Bytes in which a trace of MegaScan has the end of a block."""


def tables(root: Path, folders: list[Folder]) -> SearchResult:
    """The operation tables below `root`: `trace-JOB.parquet` with the description of the job, `meta-JOB.yaml`, or with
    the columns of such a table."""
    sources = []
    for machine, folder in enumerate(folders):
        names = set(folder.files)
        for name in folder.files:
            match = OPERATIONS.fullmatch(name)
            described = match is not None and f"meta-{match['job']}.yaml" in names
            if match and (described or operation_table.has_columns(folder.path / name)):
                sources.append(Source("operation_table", folder.path / name, host_of(root, folder.path), machine))
    return SearchResult(tuple(sources))


def primus(root: Path, folders: list[Folder]) -> SearchResult:
    """The timings of Primus: `pp_rank_N.json` for each stage beside `config.json`."""
    sources = []
    for machine, folder in enumerate(folders):
        matches = [(name, match) for name in folder.files if (match := STAGE.fullmatch(name))]
        if matches and "config.json" in folder.files:
            host = host_of(root, folder.path)
            sources += [
                Source("primus", folder.path / name, host, machine, rank=int(match[1])) for name, match in matches
            ]
    return SearchResult(tuple(sources))


def megascan(root: Path, folders: list[Folder]) -> SearchResult:
    """The pipeline traces of MegaScan: JSON lists whose events bear `pp_rank` and `model_chunk`. It writes a file for
    each iteration; those whose names differ in its number only are one source, the first of them."""
    sources: dict[tuple[int, str], Source] = {}
    for machine, folder in enumerate(folders):
        for name in folder.files:
            if name.endswith(".json") and is_trace(folder.path / name):
                match = ITERATION.fullmatch(name)
                source = Source("megascan", folder.path / name, host_of(root, folder.path), machine)
                sources.setdefault((machine, match[1] if match else name), source)
    return SearchResult(tuple(sources.values()))


def host_tables(root: Path, folders: list[Folder]) -> SearchResult:
    """Span tables of some ranks each: `NAME.spans.parquet`, on the host NAME where the table does not say it."""
    paths = [folder.path / name for folder in folders for name in folder.files if name.endswith(SUFFIX)]
    return SearchResult(tuple(
        Source("span_table", path, host_of(root, path.with_name(path.name.removesuffix(SUFFIX))), machine)
        for machine, path in enumerate(paths)
    ))  # fmt: skip


def stages(folder: Path) -> list[Path]:
    """The files of the stages in `folder`."""
    return sorted(path for path in folder.iterdir() if STAGE.fullmatch(path.name))


def iterations(path: Path) -> list[Path]:
    """The files of a source of MegaScan, by their iteration."""
    match = ITERATION.fullmatch(path.name)
    if match is None:
        return [path]
    others = ((other, ITERATION.fullmatch(other.name)) for other in path.parent.iterdir())
    files = [(int(o[2]), other) for other, o in others if o and o[1] == match[1] and is_trace(other)]
    return [other for _, other in sorted(files)] or [path]


def is_trace(path: Path) -> bool:
    """Whether a JSON file begins as a pipeline trace of MegaScan."""
    try:
        with Unpacked(path) as file:
            start = file.read(START)
    except OSError:
        return False  # who reads it says why
    return start.lstrip()[:1] == b"[" and b'"model_chunk"' in start and b'"pp_rank"' in start
