"""The files of sources: all that may be read of them, and so must never be written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from trace_export.sources.formats import of_kind
from trace_export.sources.source import Source

_OF_DATABASES = ("-wal", "-shm", "-journal")
"""SQLite keeps parts of a database in files of these endings (https://www.sqlite.org/tempfiles.html)."""


def files_of(sources: Iterable[Source]) -> Iterator[Path]:
    """Of each source the file itself, or where it is a folder its files; what SQLite keeps beside it; and the side
    files of its format, once for each folder.

    Some of them may not exist. Of a source on another machine they are the paths of that machine.
    """
    searched: set[tuple[Path, str]] = set()
    for source in sources:
        folder = source.path
        if folder.is_dir():
            yield from folder.iterdir()
        else:
            folder = source.path.parent
            yield source.path
            yield from (source.path.with_name(source.path.name + ending) for ending in _OF_DATABASES)
        for pattern in of_kind(source.kind).side_files:
            up = pattern.count("../")
            place = ([folder, *folder.parents])[min(up, len(folder.parents))]
            if (place, pattern) not in searched:
                searched.add((place, pattern))
                yield from place.glob(pattern[3 * up :])
