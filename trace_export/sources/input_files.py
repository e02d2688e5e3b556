"""The files of a source: all that may be read of it, and so must never be written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trace_export.sources.formats import of_kind
from trace_export.sources.source import Source

_OF_DATABASES = ("-wal", "-shm", "-journal")
"""SQLite keeps parts of a database in files of these endings (https://www.sqlite.org/tempfiles.html)."""


def files_of(source: Source) -> Iterator[Path]:
    """The source itself, or where it is a folder its files; what SQLite keeps beside it; and its format's side files.

    Some of them may not exist. Of a source on another machine they are the paths of that machine.
    """
    folder = source.path
    if folder.is_dir():
        yield from folder.iterdir()
    else:
        folder = source.path.parent
        yield source.path
        yield from (source.path.with_name(source.path.name + ending) for ending in _OF_DATABASES)
    for pattern in of_kind(source.kind).side_files:
        above = pattern.startswith("../")
        yield from (folder.parent if above else folder).glob(pattern.removeprefix("../"))
