"""Finds the capture folders of torch_npu, MindSpore and msprof, one source per rank.

A capture is a folder `{host}_{pid}_{17 digits}_ascend_pt` (or `_ascend_ms`) with `profiler_info_{rank}.json` and
`ASCEND_PROFILER_OUTPUT/`, but people rename and flatten these, so only file names inside are relied on. MindSpore 2.3
and 2.4 call it `rank-{rank}_{time}_ascend_ms` and put what describes it, and the raw data, beside it. Names and layout:
https://gitcode.com/Ascend/msprof-analyze and the profiler's own guide.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from trace_export.model import Note
from trace_export.sources.ascend.metadata import (
    CAPTURE,
    INFO,
    METADATA,
    MSPROF,
    OUTPUT,
    TABLE,
    TRACES,
    boot_epoch,
    home_of,
    info_file,
    json_file,
    names_in,
    whole,
)
from trace_export.sources.folders import Folder, SearchResult, Unrecognised
from trace_export.sources.shared import sqlite
from trace_export.sources.shared.local_ranks import local_ranks
from trace_export.sources.shared.names import rank_in, rank_in_folders
from trace_export.sources.source import Source

TEXTS = (*TRACES, TABLE, "communication.json", "analysis.db")
"""The files from which a text export can be read; the traces and kernel_details.csv have the blocks, the others
communication only."""

COPIES_FOLDER = "step_task_info"
"""Where `writers/step_task_info.py` puts its copies of the databases; never read again as a profile."""

_DATABASE = re.compile(r"ascend_(pytorch|mindspore)_profiler(?:_(\d{1,9}))?\.db")
_MONITOR = re.compile(r"msmonitor_\d+_\d{17}_(-1|\d{1,9})\.db")
_SUFFIXES = (".db", ".sqlite", ".sqlite3")
_TABLES = {"task", "string_ids", "rank_device_map"}
"""Those that a database has whatever was recorded, in lower case."""
_MONITOR_LINES = re.compile(r"msmonitor_\d+_\d{17}_(-1|\d{1,9})\.jsonl")
"""Files of msMonitor's `--export-type Jsonl` (npumonitor_instruct.md in https://gitcode.com/Ascend/msmonitor)."""
_BEFORE_2_3 = re.compile(
    r"(?:(?:ascend_)?timeline_display|step_trace_raw|output_timeline_data|output_op_compute_time)_(\d{1,9})"
    r"(?:_detail_time)?\.(?:json|csv|txt)"
)
"""Files of a rank in the folder of all ranks. MindSpore 2.3 writes some of them beside its captures, too."""
_LOOSE = re.compile(
    r"kernel_details\.csv|(?:step_trace_time|op_statistic|api_statistic|op_summary_\d+|task_time_\d+)\.csv"
    r"|communication(?:_matrix)?\.json|analysis\.db|communication_analyzer\.db|msprof_\d+\.db"
)
"""Files whose names say the format, but not the rank."""
_NOT_RANKS = ("cluster_analysis_output", COPIES_FOLDER)

SAME_BOOT_NS = 1_000_000
"""Two ranks whose clocks started closer together than this run on one host; in real captures they agree to 9 µs."""


@dataclass(frozen=True)
class _Capture:
    """One profile of one rank: `path` is what a reader opens, `folder` the capture folder it belongs to."""

    kind: Literal["ascend", "mindspore"]
    path: Path
    folder: Path
    rank: int | None
    rank_origin: str
    boot_ns: int | None

    @property
    def hostname(self) -> str | None:
        match = CAPTURE.fullmatch(self.folder.name)
        return match["host"] if match else None

    @property
    def pid(self) -> int | None:
        match = CAPTURE.fullmatch(self.folder.name)
        return int(match["pid"]) if match and match["pid"] else None


def captures(root: Path, folders: list[Folder]) -> SearchResult:
    """The captures under `root`."""
    folders = [f for f in folders if not any(part in _NOT_RANKS for part in f.path.relative_to(root).parts)]
    files = {folder.path: folder.files for folder in folders}
    captures = [c for folder in folders for c in _captures(root, folder, files)]
    complete = {c.folder for c in captures if MSPROF.fullmatch(c.path.name) is None}
    captures = [c for c in captures if c.folder not in complete or MSPROF.fullmatch(c.path.name) is None]
    single, notes = _one_of_folder(captures)
    if len({c.kind for c in single}) > 1:
        text = "PyTorch and MindSpore profiles in one folder, read as one run"
        notes.append(Note("formats-mixed", "warning", text, str(root)))
    sources = _placed(root, single)
    lost = _not_exported(folders, captures)
    if sources and lost:
        text = f"profiles that cannot be read: {lost[0].path} is {lost[0].what}"
        notes.append(Note("capture-not-exported", "warning", text, lost[0].path, len(lost)))
    return SearchResult(sources, tuple(notes), lost)


def _not_exported(folders: Sequence[Folder], captures: Sequence[_Capture]) -> tuple[Unrecognised, ...]:
    """Other output of the profilers beside the `captures` that are read: raw data, output without device tasks, that of
    MindSpore before 2.3, and JSON lines of msMonitor; with the command that makes a profile of it."""
    lost = []
    below = {folder.path.parent for folder in folders if folder.path.name == "host"}
    read = {capture.folder for capture in captures}
    described = {
        folder.path: {int(m[1]) for n in folder.files if (m := INFO.fullmatch(n)) and m[1]} for folder in folders
    }
    captured: dict[Path, set[int | None]] = {}
    """Folder → the ranks of the captures in it."""
    for capture in captures:
        captured.setdefault(capture.folder.parent, set()).add(capture.rank)

    def already_read(folder: Path) -> bool:
        """Whether captures beside raw data in `folder` were made of them, as those of MindSpore 2.3 and 2.4."""
        ranks = described.get(folder, set())
        return bool(ranks) and ranks <= captured.get(folder, set())

    for folder in folders:
        path = folder.path
        lost += _lines_of_monitor(folder)
        home = next((p for p in (path, *path.parents) if CAPTURE.fullmatch(p.name)), path.parent)
        if {path, path.parent, home} & read or any(parent in read for parent in path.parents):
            continue
        raw = next((p for p in (path, *path.parents) if p.name.startswith("PROF_")), None)
        if raw is not None and already_read(raw.parent):
            continue
        if path.name == OUTPUT and folder.files:
            what = f"output without device tasks (no {TRACES[0]}, {TABLE} or database)"
            lost.append(_lost(home, path, f"{what}; record with the activities CPU and NPU"))
        elif path == raw and path in below:
            lost.append(_lost(home, path, f"raw data; make a profile of it with {_command(home, path)}"))
        elif any(_lacks(captured, path, match[1]) for name in folder.files if (match := _BEFORE_2_3.fullmatch(name))):
            what = "output of MindSpore before 2.3, which is not read; make a profile of the raw data"
            lost.append(_lost(home, path, f"{what} with msprof --export=on --type=db --output=PROF_…"))
        elif loose := [name for name in folder.files if _LOOSE.fullmatch(name)]:
            what = "a file of an Ascend rank outside its folder: give its folder, *_ascend_pt or *_ascend_ms"
            lost += [_lost(home, path / name, what) for name in loose]
    return tuple(lost)


def _lacks(captured: Mapping[Path, set[int | None]], folder: Path, rank: str) -> bool:
    """Whether no capture in the folder is of this rank, or of an unknown one."""
    return not {int(rank), None} & captured.get(folder, set())


def _lines_of_monitor(folder: Folder) -> list[Unrecognised]:
    """The JSON lines of msMonitor, but those of ranks whose database is in the same folder."""
    read = {match[1] for name in folder.files if (match := _MONITOR.fullmatch(name))}
    lines = [match for name in folder.files if (match := _MONITOR_LINES.fullmatch(name)) and match[1] not in read]
    what = "JSON lines of msMonitor, which are not read; record with --export-type DB"
    return [Unrecognised("ascend", str(folder.path / match[0]), what) for match in lines]


def _lost(home: Path, path: Path, what: str) -> Unrecognised:
    return Unrecognised(_framework(home, {}), str(path), what)


def _command(home: Path, path: Path) -> str:
    """The command that turns the raw data at `path`, below the capture `home`, into a profile."""
    match = CAPTURE.fullmatch(home.name)
    if not match:
        return f"msprof --export=on --type=db --output={path.name}"
    module = "torch_npu.profiler.profiler" if match["framework"] == "pt" else "mindspore.profiler.profiler"
    return f"python -c \"from {module} import analyse; analyse('{home.parent}')\""


def _captures(root: Path, folder: Folder, files: dict[Path, tuple[str, ...]]) -> list[_Capture]:
    """The profiles in `folder`: every profiler database, or else the folder itself if it holds a text export."""
    home = home_of(folder.path, folder.files)
    path = info_file(home, lambda where: files[where] if where in files else names_in(where))  # it may be above `root`
    info = json_file(path) if path else {}
    boot = boot_epoch(info)
    recorded, origin = _rank_of(root, home, path, info)
    captures: list[_Capture] = []
    for name in folder.files:
        if match := _DATABASE.fullmatch(name):
            kind: Literal["ascend", "mindspore"] = "mindspore" if match[1] == "mindspore" else "ascend"
            rank = (int(match[2]), "recorded") if match[2] else (recorded, origin)
            captures.append(_Capture(kind, folder.path / name, home, *rank, boot))
        elif match := _MONITOR.fullmatch(name):
            captures.append(_Capture("ascend", folder.path / name, home, whole(match[1], least=0), "recorded", boot))
        elif MSPROF.fullmatch(name) or _is_renamed(folder.path / name):
            rank = (rank_in(name) if recorded is None else recorded, origin)
            captures.append(_Capture(_framework(home, info), folder.path / name, home, *rank, boot))
    if not captures and any(name in TEXTS for name in folder.files) and (home != folder.path or path):
        captures.append(_Capture(_framework(home, info), folder.path, home, recorded, origin, boot))
    return captures


def _is_renamed(path: Path) -> bool:
    """Whether a database of any name has the tables of a rank."""
    return path.suffix in _SUFFIXES and sqlite.tables_of(path) >= _TABLES


def _framework(home: Path, info: dict[str, object]) -> Literal["ascend", "mindspore"]:
    return "mindspore" if home.name.endswith("_ascend_ms") or "ms_version" in info else "ascend"


def _rank_of(root: Path, home: Path, path: Path | None, info: dict[str, object]) -> tuple[int | None, str]:
    """The rank of the capture `home`, and how sure it is: by its `profiler_info` (its `path` and content), by its own
    name, by what the training script said of itself, or else by the folders that the user put it into."""
    ranks = [_rank_in(path.name, info) if path else None]
    if match := CAPTURE.fullmatch(home.name):
        ranks.append(whole(match["rank"], least=0))
    if ranks == [None] * len(ranks):
        sizes = json_file(home / METADATA).get("distributed_args")
        ranks.append(whole(sizes.get("rank"), least=0) if isinstance(sizes, dict) else None)
    rank = next((number for number in ranks if number is not None), None)
    return (rank, "recorded") if rank is not None else (rank_in_folders(root, home), "assumed")


def _rank_in(name: str, info: dict[str, object]) -> int | None:
    """The rank in `profiler_info_{rank}.json`: its name first, then its content."""
    match = INFO.fullmatch(name)
    if match and match[1]:
        return int(match[1])
    inner = info.get("ms_profiler_info")
    return whole(info.get("rank_id", inner.get("rank_id") if isinstance(inner, dict) else None), least=0)


def _one_of_folder(captures: Sequence[_Capture]) -> tuple[list[_Capture], list[Note]]:
    """The captures without further profiles of the same rank in one folder, which hold the same."""
    kept: dict[object, _Capture] = {}
    notes: list[Note] = []
    for capture in captures:
        key: object = capture.path if capture.rank is None else (capture.folder, capture.rank)
        if (other := kept.setdefault(key, capture)) is not capture:
            text = f"a second profile of rank {capture.rank} in its folder, left out: {other.path.name} is read"
            notes.append(Note("rank-captured-twice", "warning", text, str(capture.path)))
    return list(kept.values()), notes


def _placed(root: Path, captures: Sequence[_Capture]) -> tuple[Source, ...]:
    """`captures` as sources with their hosts: by boot time, else the name in the folder's name, else the top folder."""
    hosts: dict[str, int] = {}
    workers: dict[tuple[str, int, int], str] = {}  # the host of each process, whose clock may be set between windows
    boots: dict[int, list[tuple[int, int, str]]] = {}  # multiple of SAME_BOOT_NS → (which capture, boot, host)
    named: dict[str, int] = {}
    sources: list[Source] = []
    for capture in captures:
        inside = capture.folder.relative_to(root).parts if capture.folder.is_relative_to(root) else ()
        name = capture.hostname or (inside[0] if len(inside) > 1 and rank_in(inside[0]) is None else "host")
        worker = (name, capture.pid, capture.rank) if capture.pid is not None and capture.rank is not None else None
        if worker in workers:
            name = workers[worker]
        elif (boot := capture.boot_ns) is not None:
            about = boot // SAME_BOOT_NS
            around = [boot_host for multiple in (about - 1, about, about + 1) for boot_host in boots.get(multiple, ())]
            near = [(number, host) for number, other, host in around if abs(other - boot) <= SAME_BOOT_NS]
            name = min(near)[1] if near else _unlike(name, named)
            boots.setdefault(about, []).append((len(sources), boot, name))
        if worker is not None:
            workers[worker] = name
        machine = hosts.setdefault(name, len(hosts))
        rank, origin = capture.rank, capture.rank_origin
        sources.append(Source(capture.kind, capture.path, name, machine, rank, origin, pid=capture.pid))
    local_ranks_of = local_ranks([source.host for source in sources], [source.rank for source in sources])
    return tuple(
        replace(source, local_rank=local_rank, local_rank_origin="inferred")
        for source, local_rank in zip(sources, local_ranks_of, strict=True)
    )


def _unlike(name: str, named: dict[str, int]) -> str:
    """`name`, or `name#2`, `name#3` …: two hosts of one name are still two clocks. `named`: those that there are, and
    the number that each was given last."""
    unlike = name
    while unlike in named:
        named[name] += 1
        unlike = f"{name}#{named[name]}"
    named[unlike] = 1
    return unlike
