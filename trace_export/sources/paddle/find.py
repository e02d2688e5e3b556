"""The folder layout of Paddle's launcher, which tells the rank and machine of a `workerlog.N`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import orjson

from trace_export.files import open_file
from trace_export.model import Note
from trace_export.sources.folders import Folder, SearchResult, Unrecognised, host_of
from trace_export.sources.source import Source

WORKERLOG = re.compile(r"workerlog\.(\d{1,7})")
BESIDE_A_LOG = re.compile(r"workerlog\.\d{1,7}[.-](?!(?:(?:tar\.)?(?:gz|bz2|xz|zst|zip)|tar|tgz)$).+")
DYGRAPH = re.compile(r"profile_record_tmp_file_for_rank_(\d{1,7})")
RANK_KEYS = ("PADDLE_GLOBAL_RANK", "PADDLE_TRAINER_ID")
MACHINE = re.compile(r"machine[_-]?(\d{1,6})")
ENV_BYTES = 1 << 20


@dataclass(frozen=True)
class _Worker:
    """The launcher's data on one worker. Of its environment only these keys are ever read."""

    rank: int | None = None
    local: int | None = None
    device: int | None = None
    endpoint: str | None = None


def worker_logs(root: Path, folders: list[Folder]) -> SearchResult:
    """`workerlog.N`, N the worker's index on its machine; `envlog.N` or `backup_env.R.json` name the global rank."""
    machines = [(f, logs) for f in folders if (logs := _files_by_number(f, WORKERLOG))]
    workers = 1 + max((n for _, logs in machines for n in logs), default=0)
    alone = _alone([f.path for f, _ in machines])
    sources = []
    for machine, (folder, logs) in zip(_machine_numbers([f for f, _ in machines]), machines, strict=True):
        backups: dict[tuple[int | None, str | None], _Worker] = {}
        for name in folder.files:
            if name.startswith("backup_env."):
                worker = _worker(_backup(folder.path / name))
                backups.setdefault((worker.local, worker.endpoint), worker)
                backups.setdefault((worker.local, None), worker)
        for n, name in logs.items():
            identity = _worker(_envlog(folder.path / f"envlog.{n}"))
            if identity.rank is None:
                identity = backups.get((n, identity.endpoint), identity)
            sources.append(
                Source(
                    kind="paddle",
                    path=folder.path / name,
                    host=folder.path.absolute().name if alone else host_of(root, folder.path),
                    machine=machine,
                    rank=machine * workers + n if identity.rank is None else identity.rank,
                    rank_origin="recorded" if identity.rank is not None or len(machines) == 1 else "assumed",
                    device=identity.device,
                    local_rank=n,
                    ranks_per_machine=workers,
                )
            )
    notes, unrecognised = _rotated(folders, any_log=bool(sources))
    return SearchResult(tuple(sources), notes + alone, unrecognised)


def _alone(machines: list[Path]) -> tuple[Note, ...]:
    """A warning where the only folder that was read is that of one machine of several: another number than the first
    says so, or folders beside it."""
    folder = machines[0].absolute() if len(machines) == 1 else Path()
    number = MACHINE.fullmatch(folder.name)
    if number is None:
        return ()
    siblings = [f for f in folder.parent.glob("machine*") if f != folder and MACHINE.fullmatch(f.name)]
    if int(number[1]) == 0 and not any(log.is_file() for f in siblings for log in f.glob("workerlog.*")):
        return ()
    text = "these are the logs of one machine of several; give the folder above, which holds all machines"
    return (Note("machine-alone", "warning", text, str(machines[0])),)


def _rotated(folders: list[Folder], *, any_log: bool) -> tuple[tuple[Note, ...], tuple[Unrecognised, ...]]:
    """A warning on files whose names continue that of a log; if there is no other log, it says what they are."""
    parts = [folder.path / name for folder in folders for name in folder.files if BESIDE_A_LOG.fullmatch(name)]
    if not parts:
        return (), ()
    remedy = "join the parts of a rotated log, the oldest first: cat workerlog.N.1 workerlog.N > DIR/workerlog.N"
    if not any_log:
        what = f"a copy or an earlier part of a log; rename the copy to workerlog.N, or {remedy}"
        return (), tuple(Unrecognised("paddle", str(path), what) for path in parts)
    text = f"copies or earlier parts of logs, left out; {remedy}"
    return (Note("log-rotated", "warning", text, str(parts[0]), len(parts)),), ()


def dygraph_records(root: Path, folders: list[Folder]) -> SearchResult:
    """`profile_record_tmp_file_for_rank_R`, R the global rank."""
    machines = [(f, files) for f in folders if (files := _files_by_number(f, DYGRAPH))]
    return SearchResult(
        tuple(
            Source("paddle_dygraph", folder.path / name, host_of(root, folder.path), machine, rank)
            for machine, (folder, files) in enumerate(machines)
            for rank, name in files.items()
        )
    )


def _files_by_number(folder: Folder, pattern: re.Pattern[str]) -> dict[int, str]:
    """Number → file name, for the names that match."""
    return {int(match[1]): name for name in folder.files if (match := pattern.fullmatch(name))}


def _machine_numbers(machines: list[Folder]) -> list[int]:
    """The N of each `machineN` when all folders are called so, else their places in natural order."""
    matches = [MACHINE.fullmatch(folder.path.name) for folder in machines]
    numbers = [int(match[1]) for match in matches if match]
    return numbers if len(numbers) == len(machines) > 1 else list(range(len(machines)))


def _envlog(path: Path) -> dict[str, str]:
    """`KEY=VALUE` lines; the file is appended to, so the last value counts."""
    try:
        with open_file(path) as file:
            text = file.read(ENV_BYTES).decode("utf-8", "replace")
    except OSError:
        return {}  # the launcher need not have written it
    return dict(
        line.split("=", 1)
        for line in text.splitlines()
        if line.startswith(("PADDLE_", "FLAGS_selected_gpus=")) and "=" in line
    )


def _backup(path: Path) -> dict[str, str]:
    """A flat JSON object with the same keys."""
    try:
        with open_file(path) as file:
            content = orjson.loads(file.read(ENV_BYTES))
    except (OSError, orjson.JSONDecodeError):
        return {}  # only a fallback for envlog
    return {str(k): str(v) for k, v in content.items()} if isinstance(content, dict) else {}


def _worker(environment: dict[str, str]) -> _Worker:
    def number(*keys: str) -> int | None:
        return next((int(environment[k]) for k in keys if re.fullmatch(r"\d{1,7}", environment.get(k, ""))), None)

    return _Worker(
        rank=number(*RANK_KEYS),
        local=number("PADDLE_LOCAL_RANK", "PADDLE_RANK_IN_NODE"),
        device=number("FLAGS_selected_gpus"),
        endpoint=environment.get("PADDLE_CURRENT_ENDPOINT"),
    )
