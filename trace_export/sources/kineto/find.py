"""Finds torch.profiler traces: any folder, any name; the TensorBoard handler has names of its own."""

from __future__ import annotations

import codecs
import re
from pathlib import Path

from trace_export.files import Unpacked
from trace_export.model import Note
from trace_export.sources.folders import Folder, Found, Unrecognised, host_of
from trace_export.sources.kineto.trace_file import MAX_HEADER
from trace_export.sources.not_here import NOT_FETCHED, starts_pointer
from trace_export.sources.shared import json_kinds
from trace_export.sources.shared.names import rank_in, rank_in_folders
from trace_export.sources.source import Source

PACKED = ("", ".gz", ".zip", ".zst")
OURS = tuple(".pt.trace.json" + packed for packed in PACKED)
"""The suffixes of tensorboard_trace_handler. Accepted without a look inside; errors are reported on read."""
PERFETTO = (".pftrace", ".pftrace.gz")
_ENDINGS = (*(".json" + packed for packed in PACKED), ".zip", *PERFETTO)

_HANDLER = re.compile(r"(?P<worker>.+)\.(?P<time>\d{10,20})\.pt\.trace\.json(?:\.gz|\.zip|\.zst)?")
_WORKER = re.compile(r"(?P<host>.+)_\d+")
_NUMBER = r"(?:iteration|iter|global_step|step)[_-]?(?P<number>\d{1,12})"
_WINDOW = re.compile(_NUMBER, re.IGNORECASE)
"""Folders of the windows of one run, as torchtitan writes them; their files have the same names."""
_WINDOW_IN_NAME = re.compile(rf"(?<![A-Za-z]){_NUMBER}(?!\d)", re.IGNORECASE)
"""What tells the files of the windows of one rank apart that are in one folder."""
_HEADER = re.compile(rb'"(?:baseTimeNanoseconds|distributedInfo|deviceProperties)"\s*:')
_EVENTS = b'"traceEvents"'
_EVENT = re.compile(
    rb'"(?:[Ee]xternal id|Ev Idx|Python id)"\s*:|"cat"\s*:\s*"(?:kernel|gpu_\w+|cuda_\w+|hip_\w+|xpu_\w+|mtia_\w+)"'
)
"""Arguments and categories that torch.profiler alone gives to an event."""
_START = 256 << 10
"""Bytes that are searched for them: a list of events may begin with the names of many threads. More where they are
all inside an object before that list, as the metadata of a job can be."""


def traces(root: Path, folders: list[Folder]) -> Found:
    """All traces; of several windows of one worker the latest."""
    sources: list[Source] = []
    notes: list[Note] = []
    unrecognised: list[Unrecognised] = []
    superseded = _superseded(folders)
    for folder in folders:
        looks = {name: _no_trace(folder.path / name) for name in folder.files if name.endswith(_ENDINGS)}
        unrecognised += [look for look in looks.values() if look]
        files = [name for name, look in looks.items() if not look]
        latest, older = _latest([name for name in files if folder.path / name not in superseded])
        older += [name for name in files if folder.path / name in superseded]
        alone = rank_in_folders(root, folder.path) if len(latest) == 1 else None
        sources += [_source(root, folder.path, name, alone) for name in latest]
        if older:
            text = "traces of earlier windows of the same worker, left out; to export one, give it a folder of its own"
            notes.append(Note("window-superseded", "note", text, str(folder.path / older[0]), len(older)))
    return Found(tuple(sources), tuple(notes), tuple(unrecognised))


def _superseded(folders: list[Folder]) -> set[Path]:
    """The files in folders of windows of whose worker or, where they name none, by whose name there is a file in the
    folder of a later window."""
    latest: dict[tuple[Path, str], int] = {}
    files: list[tuple[tuple[Path, str], int, Path]] = []
    for folder in folders[1:]:
        if match := _WINDOW.fullmatch(folder.path.name):
            number = int(match["number"])
            for name in folder.files:
                handler = _HANDLER.fullmatch(name)
                key = (folder.path.parent, handler["worker"] if handler else name)
                latest[key] = max(latest.get(key, 0), number)
                files.append((key, number, folder.path / name))
    return {path for key, number, path in files if number < latest[key]}


def _latest(files: list[str]) -> tuple[list[str], list[str]]:
    """The files of the latest window of each worker and those whose names tell no window; and the rest."""
    named = {name: window for name in files if (window := _window(name))}
    newest: dict[str, int] = {}
    for worker, number in named.values():
        newest[worker] = max(newest.get(worker, 0), number)
    older = [name for name, (worker, number) in named.items() if number < newest[worker]]
    return [name for name in files if name not in older], older


def _window(name: str) -> tuple[str, int] | None:
    """The worker that a file's name tells, and a number that grows with its windows."""
    if handler := _HANDLER.fullmatch(name):
        return handler["worker"], int(handler["time"])
    if step := _WINDOW_IN_NAME.search(name):
        return name[: step.start()] + name[step.end() :], int(step["number"])
    return None


def _source(root: Path, folder: Path, name: str, alone: int | None) -> Source:
    """A worker is called `host_pid` unless the user names it, so only that form names a host. `alone`: the rank that
    the folders name, where there is no other trace in them."""
    handler = _HANDLER.fullmatch(name)
    worker = _WORKER.fullmatch(handler["worker"]) if handler else None
    number = rank_in(name)
    place = folder.parent if folder != root and _WINDOW.fullmatch(folder.name) else folder
    host = worker["host"] if worker and number is None else host_of(root, place)
    return Source("kineto", folder / name, host, rank=alone if number is None else number, rank_origin="assumed")


def _no_trace(path: Path) -> Unrecognised | None:
    """What the file is where it is no trace; None for a trace."""
    if path.name.endswith(OURS):
        return None
    try:
        with Unpacked(path) as file:
            start = _start(file)
    except OSError as error:
        why = f"no file that can be read ({error.strerror})"
        return None if path.name.endswith(".zst") else Unrecognised("kineto", str(path), why)
    if why := json_kinds.refused(start):
        return Unrecognised("kineto", str(path), why)
    if path.name.endswith(PERFETTO):
        from trace_export.sources.kineto import perfetto_trace  # which loads what reads traces

        known = perfetto_trace.is_trace(start)
    else:
        known = is_trace(start)
    if known:
        return None
    if starts_pointer(start):
        return Unrecognised("kineto", str(path), NOT_FETCHED)
    if found := json_kinds.of_others(path, start):
        return Unrecognised(found[0], str(path), found[1])
    return Unrecognised("kineto", str(path), "no trace of torch.profiler", sure=False)


def _start(file: Unpacked) -> bytes:
    """As much of a file as must be known of it."""
    start = file.read(_START)
    while _opening(start) == b"{" and not _HEADER.search(start) and _EVENTS not in start and len(start) < MAX_HEADER:
        more = file.read(len(start))
        if not more:
            break
        start += more
    return start if len(start) <= _START else start + file.read(_START)


def is_trace(start: bytes) -> bool:
    """Whether a JSON text that begins with `start` is a trace of torch.profiler, by its fields and events: an object
    with the list traceEvents, or that list, in whatever order and spelling."""
    opening = _opening(start)
    if opening == b"{" and _HEADER.search(start):
        return True
    events = opening == b"[" or (opening == b"{" and _EVENTS in start)
    return events and b'"ph"' in start and _EVENT.search(start) is not None


def _opening(start: bytes) -> bytes:
    """The character that opens a document."""
    return start.removeprefix(codecs.BOM_UTF8).lstrip()[:1]
