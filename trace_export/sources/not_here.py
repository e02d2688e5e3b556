"""Profiles that are not there as they can be read: packed, in an archive, left on a server by Git LFS, or JSON that no
reader takes as it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from trace_export.files import GENERATOR, open_file, open_text
from trace_export.sources import formats
from trace_export.sources.folders import Folder, Unrecognised

UNPACKING = {".gz": "gunzip", ".bz2": "bunzip2", ".xz": "unxz", ".zst": "zstd -d", ".zip": "unzip"}
"""The ending of a packed file, and the command that unpacks it."""
_ENDING = re.compile(r"(?P<plain>.+?)(?P<archive>\.tar|\.tgz)?(?P<packed>\.(?:gz|bz2|xz|zst|zip))?")

_TRACE = re.compile(r"trace_view\.json|.+\.pt\.trace\.json")
"""The names of traces that are read while they are packed, but not in an archive."""
ARCHIVE = "an archive: unpack it with tar -xf"

_POINTER = b"version https://git-lfs.github.com/spec/"
_POINTER_BYTES = 1024
"""A pointer is smaller (https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md)."""
POINTER = "a Git LFS pointer and not the file itself"
FETCH = "fetch it with git lfs pull"
NOT_FETCHED = f"{POINTER}: {FETCH}"


def not_unpacked(folders: list[Folder]) -> Iterator[Unrecognised]:
    """The packed files that a reader would take if they were unpacked, without those that also lie unpacked beside
    them."""
    names = [(row.kind, re.compile(row.packed)) for row in formats.FORMATS if row.packed]
    for folder in folders:
        for name in folder.files:
            plain = _plain(name)
            if plain == name or plain in folder.files:
                continue
            kind = next((kind for kind, pattern in names if pattern.fullmatch(plain)), None)
            if kind is None and is_archive(name) and _TRACE.fullmatch(plain):
                kind = ""
            if kind is not None:
                yield Unrecognised(kind, str(folder.path / name), packed(name))


def _plain(name: str) -> str:
    """The name without the suffix of a packed file or archive."""
    match = _ENDING.fullmatch(name)
    return match["plain"] if match else name


def packed(name: str) -> str:
    """The kind of a packed file, to complete "PATH is …"."""
    return ARCHIVE if is_archive(name) else f"packed: unpack it with {UNPACKING[Path(name).suffix]}"


def is_archive(name: str) -> bool:
    """Whether the name is that of a tar archive, packed or not."""
    match = _ENDING.fullmatch(name)
    return match is not None and match["archive"] is not None


def not_here(folders: list[Folder]) -> Iterator[Unrecognised]:
    """The archives, the pointers of Git LFS, of any kind, the logs of Paddle that were renamed, and tables, in a folder
    without any profile."""
    for folder in folders:
        for name in folder.files:
            path = folder.path / name
            if is_archive(name):
                yield Unrecognised("", str(path), ARCHIVE)
            elif is_pointer(path):
                yield Unrecognised("", str(path), NOT_FETCHED)
            elif _is_renamed_log(path):
                yield Unrecognised("paddle", str(path), RENAMED)
            elif _OUR_TABLE.fullmatch(name):
                yield Unrecognised("span_table", str(path), f"a table that {GENERATOR} wrote: give the file itself")
            elif Path(name).suffix in _SPREADSHEETS:
                yield Unrecognised("span_table", str(path), no_table(name))


_OUR_TABLE = re.compile(r"pipeline_profile\b.*\.(?:csv|parquet)")
_SPREADSHEETS = (".xlsx", ".xls", ".ods")


def no_table(name: str) -> str:
    """Why a file of this name holds no table that is read, to complete "PATH is …"; "" where it may hold one."""
    if Path(name).suffix in _SPREADSHEETS:
        return "a spreadsheet: save it as CSV, with its times as text, because it would round them"
    if Path(name).suffix in (".jsonl", ".ndjson"):
        return "a file of JSON lines, which is not read"
    plain = Path(_plain(name)).suffix
    return packed(name) if plain != Path(name).suffix and plain in (".csv", ".tsv", ".parquet") else ""


_LOG = re.compile(r"(?!workerlog\.\d).*(?:log|\.txt|\.out|\.err).*", re.IGNORECASE)
_RECORD = b"Profiler Info: Job ("
"""In the line of Paddle's executor that a worker log is read for."""
_RECORD_BYTES = 1 << 20
RENAMED = "a worker log of Paddle under another name: call it workerlog.N, N counted from 0 on its machine"


def _is_renamed_log(path: Path) -> bool:
    """Whether the beginning of a file that is called a log, or a text, holds a record of Paddle's executor."""
    with suppress(OSError):
        if _LOG.fullmatch(path.name) and path.is_file():
            with open_text(path) as file:
                return _RECORD in file.read(_RECORD_BYTES)
    return False


def is_pointer(path: Path) -> bool:
    """Whether a file stands for one that Git LFS has not fetched."""
    with suppress(OSError):
        if path.stat().st_size <= _POINTER_BYTES:
            with open_file(path) as file:
                return starts_pointer(file.read(len(_POINTER)))
    return False


def starts_pointer(start: bytes) -> bool:
    """Whether a file with this beginning is a pointer of Git LFS."""
    return start.startswith(_POINTER)


_CHART = re.compile(rb'(?:"generator"\s*:\s*"|\tgenerator\x1a.)' + re.escape(GENERATOR.encode()))
"""In JSON, and in the attributes of a Perfetto trace, where a tab is the length of the key."""
_EXECUTION_TRACE = re.compile(rb'^\s*\{\s*"schema"\s*:\s*"[\d.]+-chakra')
"""The beginning of a file of torch.profiler.ExecutionTraceObserver."""
_PADDLE_TRACE = re.compile(rb'"SpanNumber"\s*:\s*"\d+"')
"""At the beginning of a trace of paddle.profiler (paddle/fluid/platform/profiler/chrometracing_logger.cc), which has
other categories and names of arguments."""
_ASCEND_MERGED = re.compile(rb'"Ascend Hardware_\d')
"""The processes of a file into which msprof-analyze merged those of several ranks."""
_ASCEND = re.compile(rb'"Ascend Hardware|"ts"\s*:\s*"\d+(?:\.\d+)?"')
"""The device's process, or a time as text, which no other profiler writes."""
_ROCPROF = re.compile(rb'\s*\{\s*"rocprofiler-sdk-tool"')
OF_ROCPROF = "{} of rocprofv3, which is not read: record with rocprofv3 --output-format rocpd"
"""Other outputs of rocprofv3, to complete "PATH is …"."""
_PLAIN_ONLY = (
    ("megascan", re.compile(rb'^\s*\[(?=.*"model_chunk")(?=.*"pp_rank")', re.DOTALL), ""),
    ("primus", re.compile(rb'^\s*\{\s*"\d+"\s*:\s*\{.*"(?:fwd|bwd)_(?:start|end)"', re.DOTALL),
     "a file of Primus without config.json beside it, or not called pp_rank_N.json: take both from the same run"),
)  # fmt: skip
"""JSON that is read only unpacked: the kind of its format, its beginning, and the error if it is not packed."""


def no_trace_because(start: bytes) -> str:
    """Why a file that looks like a trace of torch.profiler is not one, to complete "PATH is …"; "" where it may be."""
    if _CHART.search(start):
        return f"a chart that {GENERATOR} wrote"
    if _EXECUTION_TRACE.search(start, 0, 200):
        return "an execution trace of PyTorch, which has no times; draw the trace of the profiler beside it"
    if _PADDLE_TRACE.search(start, 0, 400):
        return "a trace of paddle.profiler, which is not read: give the worker logs, or record with Nsight Systems"
    return ""


def json_of_others(path: Path, start: bytes) -> tuple[str, str] | None:
    """The format of a JSON file that is no trace of torch.profiler, and a text that completes "PATH is …"; None if it
    is unknown."""
    if _ASCEND_MERGED.search(start):
        what = "a merge of the traces of several Ascend ranks: give their folders, *_ascend_pt or *_ascend_ms"
        return "ascend", what
    if _ROCPROF.match(start):
        return "rocpd", OF_ROCPROF.format("JSON")
    for kind, pattern, remedy in _PLAIN_ONLY:
        if pattern.search(start) and (path.suffix in UNPACKING or remedy):
            return kind, packed(path.name) if path.suffix in UNPACKING else remedy
    if _ASCEND.search(start):
        there = "rank_N_ascend_pt/ASCEND_PROFILER_OUTPUT/trace_view.json, N its rank"
        what = "a trace of an Ascend rank outside its folder: give its folder, *_ascend_pt or *_ascend_ms"
        return "ascend", f"{what}, or put it into {there}"
    return None
