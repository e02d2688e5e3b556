"""Finds torch.profiler traces: any folder, any name; the TensorBoard handler has names of its own."""

from __future__ import annotations

import codecs
import re
from pathlib import Path

from trace_export.files import PACKED, Unpacked, is_empty
from trace_export.sources.folders import Folder, SearchResult, Unrecognised, host_of
from trace_export.sources.not_here import NOT_FETCHED, json_of_others, no_trace_because, starts_pointer
from trace_export.sources.shared.names import WINDOW_FOLDER, rank_in, rank_in_folders
from trace_export.sources.source import Source

OURS = tuple(".pt.trace.json" + packed for packed in PACKED)
"""The suffixes of tensorboard_trace_handler. Accepted without a look inside; errors are reported on read."""
PERFETTO = (".pftrace", ".pftrace.gz")
_ENDINGS = (*(".json" + packed for packed in PACKED), ".zip", *PERFETTO)

_HANDLER = re.compile(r"(?P<worker>.+)\.(?P<time>\d{10,20})\.pt\.trace\.json(?:\.(?:gz|zip|zst|bz2|xz))?")
_WORKER = re.compile(r"(?P<host>.+)_(?P<pid>\d{1,10})")
_HEADER = re.compile(rb'"(?:baseTimeNanoseconds|distributedInfo|deviceProperties)"\s*:')
_EVENTS = b'"traceEvents"'
_EVENT = re.compile(
    rb'"(?:[Ee]xternal id|Ev Idx|Python id)"\s*:|"cat"\s*:\s*"(?:kernel|gpu_\w+|cuda_\w+|hip_\w+|xpu_\w+|mtia_\w+)"'
)
"""Arguments and categories that torch.profiler alone gives to an event."""
_START = 256 << 10
"""Bytes that are searched for them: a list of events may begin with the names of many threads. More where they are
all inside an object before that list, as the metadata of a job can be: up to `_MOST`."""
_MOST = 8 << 20


def traces(root: Path, folders: list[Folder]) -> SearchResult:
    """All traces."""
    sources: list[Source] = []
    unrecognised: list[Unrecognised] = []
    for folder in folders:
        looks = {name: _no_trace(folder.path / name) for name in folder.files if name.endswith(_ENDINGS)}
        patterns = {_pattern(name) for name, look in looks.items() if not look}
        empty = {name for name in looks if _pattern(name) in patterns and is_empty(folder.path / name)}
        unrecognised += [look for name, look in looks.items() if look and name not in empty]
        files = [name for name, look in looks.items() if not look or name in empty]
        of_one = len(patterns) == 1  # perhaps its windows
        alone = rank_in_folders(root, folder.path) if of_one else None
        sources += [_source(root, folder.path, name, alone) for name in files]
    return SearchResult(tuple(sources), unrecognised=tuple(unrecognised))


def _pattern(name: str) -> str:
    """The name without its numbers, which the traces of a job share."""
    return re.sub(r"\d+", "", name)


def _source(root: Path, folder: Path, name: str, alone: int | None) -> Source:
    """A worker is called `host_pid` unless the user names it, so only that form names a host. `alone`: the rank that
    the folders name, where there is no other trace in them."""
    handler = _HANDLER.fullmatch(name)
    worker = _WORKER.fullmatch(handler["worker"]) if handler else None
    number = rank_in(name)
    home = folder.parent if folder != root and WINDOW_FOLDER.fullmatch(folder.name) else folder
    if worker is None or number is not None:
        number = alone if number is None else number
        return Source("kineto", folder / name, host_of(root, home), rank=number, rank_origin="assumed")
    return Source("kineto", folder / name, worker["host"], rank=alone, rank_origin="assumed", pid=int(worker["pid"]))


def _no_trace(path: Path) -> Unrecognised | None:
    """The kind of the file if it is not a trace; None for a trace."""
    if path.name.endswith(OURS):
        return None
    try:
        with Unpacked(path) as file:
            start = _start(file)
    except OSError as error:
        why = f"unreadable ({error.strerror})"
        return None if path.name.endswith(".zst") else Unrecognised("kineto", str(path), why)
    if why := no_trace_because(start):
        return Unrecognised("kineto", str(path), why)
    if path.name.endswith(PERFETTO):
        from trace_export.sources.kineto import perfetto_trace  # which loads what reads traces

        is_a_trace = perfetto_trace.is_trace(start)
    else:
        is_a_trace = is_trace(start)
    if is_a_trace:
        return None
    if starts_pointer(start):
        return Unrecognised("kineto", str(path), NOT_FETCHED)
    if other := json_of_others(path, start):
        return Unrecognised(other[0], str(path), other[1])
    return Unrecognised("kineto", str(path), "not a trace of torch.profiler", sure=False)


def _start(file: Unpacked) -> bytes:
    """As much of a file as must be known of it."""
    start = file.read(_START)
    while _opening(start) == b"{" and not _HEADER.search(start) and _EVENTS not in start and len(start) < _MOST:
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
