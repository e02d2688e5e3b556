"""Profiles that are not there as they can be read: packed, in an archive, or left on a server by Git LFS."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from trace_export.files import open_file
from trace_export.sources import formats
from trace_export.sources.folders import Folder, Unrecognised

UNPACKING = {".gz": "gunzip", ".bz2": "bunzip2", ".xz": "unxz", ".zst": "zstd -d", ".zip": "unzip"}
"""The ending of a packed file, and the command that unpacks it."""
_ARCHIVE = re.compile(r".+\.(?:tar|tgz|tar\.(?:gz|bz2|xz|zst))")

_POINTER = b"version https://git-lfs.github.com/spec/"
_POINTER_BYTES = 1024
"""More than a pointer has (https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md)."""
POINTER = "a Git LFS pointer and not the file itself"
FETCH = "fetch it with git lfs pull"
NOT_FETCHED = f"{POINTER}: {FETCH}"


def not_unpacked(folders: list[Folder]) -> Iterator[Unrecognised]:
    """The files that a reader would take if they were not packed, but those that lie unpacked beside them."""
    names = [(row.kind, re.compile(row.packed)) for row in formats.FORMATS if row.packed]
    for folder in folders:
        for name in folder.files:
            plain, dot, ending = name.rpartition(".")
            if dot + ending not in UNPACKING or plain in folder.files:
                continue
            kind = next((kind for kind, pattern in names if pattern.fullmatch(plain)), None)
            if kind is not None:
                yield Unrecognised(kind, str(folder.path / name), packed(name))


def packed(name: str) -> str:
    """What a packed file is, to complete "PATH is …"."""
    return f"packed: unpack it with {UNPACKING[Path(name).suffix]}"


def not_here(folders: list[Folder]) -> Iterator[Unrecognised]:
    """The archives and the pointers of Git LFS, of whatever kind: what a folder without any profile may have."""
    for folder in folders:
        for name in folder.files:
            path = folder.path / name
            if _ARCHIVE.fullmatch(name):
                yield Unrecognised("", str(path), "an archive: unpack it with tar -xf")
            elif is_pointer(path):
                yield Unrecognised("", str(path), NOT_FETCHED)


def is_pointer(path: Path) -> bool:
    """Whether a file stands for one that Git LFS has not fetched."""
    with suppress(OSError):
        if path.stat().st_size <= _POINTER_BYTES:
            with open_file(path) as file:
                return starts_pointer(file.read(len(_POINTER)))
    return False


def starts_pointer(start: bytes) -> bool:
    """Whether a file that begins so is a pointer of Git LFS."""
    return start.startswith(_POINTER)
