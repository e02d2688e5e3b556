"""The directory walk that the format detectors share, and their results."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trace_export.errors import TraceExportError, UsageError
from trace_export.model import Note
from trace_export.ordering import natural
from trace_export.sources.source import Source

DEPTH = 8
"""The depth of the walk below the given folder; the deepest known layout (Ascend) needs six."""

ALONE = "machine0"
"""The clock domain of profiles directly in the given folder."""

RESOURCES = "._"
"""macOS keeps a file whose name begins with this beside each file in archives and on foreign disks, with the same
suffix."""


@dataclass(frozen=True)
class Folder:
    """A folder and the names of the plain files in it, in natural order; those of macOS (`RESOURCES`) are left out."""

    path: Path
    files: tuple[str, ...]


@dataclass(frozen=True)
class Unrecognised:
    """A file that by its name may be a source of `kind` (empty: of any) and is not. `what` completes "PATH is …";
    `sure`: it says what the file is, and not only what it is not."""

    kind: str
    path: str
    what: str
    sure: bool = True


@dataclass(frozen=True)
class SearchResult:
    """The sources in a folder; `notes` says what was left out and why. `unrecognised` files are named where there is no
    source."""

    sources: tuple[Source, ...]
    notes: tuple[Note, ...] = ()
    unrecognised: tuple[Unrecognised, ...] = ()


def host_of(root: Path, folder: Path) -> str:
    """The name of the clock domain of the profiles in `folder`: its place below `root`."""
    return ALONE if folder == root else folder.relative_to(root).as_posix()


def walk(root: Path, *, follow_links: bool = False) -> tuple[list[Folder], list[Path], list[Path]]:
    """`root` and the folders below it, each once, in natural order; the links to folders outside it; and the folders
    that cannot be read.

    Links are followed with `follow_links` only: one may lead to any place, a whole file system among them. `root`
    itself may be a link, and files may be links. Raises UsageError when `root` is not a folder, TraceExportError when
    it cannot be read.
    """
    try:
        status = root.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(f"{root}: no such file or folder", "give the folder that holds the profiles") from error
    except OSError as error:
        raise TraceExportError(f"{root}: {error.strerror}", "check the path and its permissions") from error
    if not stat.S_ISDIR(status.st_mode):
        raise UsageError(f"{root} is not a folder", "give the folder that holds the profiles")
    folders: list[Folder] = []
    links: list[Path] = []
    closed: list[Path] = []
    seen: set[tuple[int, int]] = set()
    inside = root.resolve()

    def visit(path: Path, depth: int) -> None:
        try:
            status = path.stat()
            entries = sorted(os.scandir(path), key=lambda e: natural(e.name))
        except OSError as error:
            if depth == 0:
                raise TraceExportError(f"{path}: {error.strerror}", "check the folder's permissions") from error
            closed.append(path)
            return
        if (status.st_dev, status.st_ino) in seen:
            return
        seen.add((status.st_dev, status.st_ino))
        files = (e for e in entries if not e.name.startswith(RESOURCES) and _leads_to(e, os.DirEntry.is_file))
        folders.append(Folder(path, tuple(e.name for e in files)))
        if depth < DEPTH:
            for entry in entries:
                if not _leads_to(entry, os.DirEntry.is_dir):
                    continue
                if follow_links or not entry.is_symlink():
                    visit(path / entry.name, depth + 1)
                elif not (path / entry.name).resolve().is_relative_to(inside):
                    links.append(path / entry.name)

    visit(root, 0)
    return folders, links, closed


def _leads_to(entry: os.DirEntry[str], what: Callable[[os.DirEntry[str]], bool]) -> bool:
    try:
        return what(entry)
    except OSError:  # a link that leads to itself
        return False
