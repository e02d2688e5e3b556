"""Finds torch.profiler traces: any folder, any name; the TensorBoard handler has names of its own."""

from __future__ import annotations

import re
from pathlib import Path

from trace_export.files import Unpacked
from trace_export.model import Note
from trace_export.sources.folders import Folder, Found, host_of
from trace_export.sources.shared.names import rank_in
from trace_export.sources.source import Source

OURS = (".pt.trace.json", ".pt.trace.json.gz")
"""The suffixes of tensorboard_trace_handler. Accepted without a look inside; errors are reported on read."""

_HANDLER = re.compile(r"(?P<worker>.+)\.(?P<time>\d{10,20})\.pt\.trace\.json(?:\.gz)?")
_WORKER = re.compile(r"(?P<host>.+)_\d+")
_SIGNS = (b'"deviceProperties"', b'"distributedInfo"', b'"baseTimeNanoseconds"', b'"trace_id"')
_START = 4096


def traces(root: Path, folders: list[Folder]) -> Found:
    """All traces; of several windows of one worker the latest."""
    sources: list[Source] = []
    notes: list[Note] = []
    for folder in folders:
        files = [name for name in folder.files if _is_trace(folder.path / name)]
        latest, older = _latest(files)
        sources += [_source(root, folder.path, name) for name in latest]
        if older:
            text = "traces of earlier windows of the same worker, left out; to export one, give it a folder of its own"
            notes.append(Note("window-superseded", "note", text, str(folder.path / older[0]), len(older)))
    return Found(tuple(sources), tuple(notes))


def _latest(files: list[str]) -> tuple[list[str], list[str]]:
    """The files of the latest window of each worker and those without a time in their names; and the rest."""
    named = {name: _HANDLER.fullmatch(name) for name in files}
    newest: dict[str, int] = {}
    for match in filter(None, named.values()):
        newest[match["worker"]] = max(newest.get(match["worker"], 0), int(match["time"]))
    older = [name for name, match in named.items() if match and int(match["time"]) < newest[match["worker"]]]
    return [name for name in files if name not in older], older


def _source(root: Path, folder: Path, name: str) -> Source:
    """A worker is called `host_pid` unless the user names it, so only that form names a host."""
    handler = _HANDLER.fullmatch(name)
    worker = _WORKER.fullmatch(handler["worker"]) if handler else None
    number = rank_in(name)
    host = worker["host"] if worker and number is None else host_of(root, folder)
    return Source("kineto", folder / name, host, rank=number, rank_origin="assumed")


def _is_trace(path: Path) -> bool:
    if path.name.endswith(OURS):
        return True
    if not path.name.endswith((".json", ".json.gz")):
        return False
    try:
        with Unpacked(path) as file:
            start = file.read(_START)
    except OSError:
        return False
    return b'"schemaVersion"' in start and any(sign in start for sign in _SIGNS)
