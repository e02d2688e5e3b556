"""Device tasks that a reader meets while it reads the blocks, kept in files, so that the source need not be read again.

`ReadOptions.keep_tasks` is the folder for them. A source has none there where its reader does not keep them, or could
not; then `read_tasks` reads the source.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import polars as pl

from trace_export.model import KernelFile
from trace_export.sources.source import TaskRequest


def file_of(folder: Path, source: Path) -> Path:
    """Where the tasks of a source that is one process are kept: an Arrow file with the columns of model.KERNELS, sorted
    by start_ns."""
    return folder / f"{hashlib.blake2b(bytes(source), digest_size=16).hexdigest()}.arrow"


def keep(folder: Path, source: Path, files: tuple[KernelFile, ...]) -> None:
    """Keeps the file of all device tasks of a source, if it has any."""
    for file in files:
        file.path.rename(file_of(folder, source))


def are_kept(request: TaskRequest) -> bool:
    """Whether the source need not be read for the request."""
    return request.kept is not None and file_of(request.kept, request.path).exists()


def taken(request: TaskRequest) -> tuple[KernelFile, ...] | None:
    """The kept tasks that the request asks for; None if none were kept."""
    if request.kept is None or not are_kept(request):
        return None
    path = file_of(request.kept, request.path)
    if request.detail == "comm" or request.window_ns is not None:
        selected = request.folder / f"selected.{path.name}"
        pl.scan_ipc(path).filter(request.asks_for()).sink_ipc(selected)
        path = selected
    return (KernelFile(request.rank, path),)
