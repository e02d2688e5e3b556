"""The files of sources, which are read and so must never be written, their size, and the time to read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from trace_export.sources.formats import Speed, of_kind
from trace_export.sources.source import Source

_OF_DATABASES = ("-wal", "-shm", "-journal")
"""SQLite keeps parts of a database in files of these endings (https://www.sqlite.org/tempfiles.html)."""


def files_of(sources: Iterable[Source]) -> Iterator[Path]:
    """For each source the file, or the files of the folder; what SQLite keeps beside it; and the side files of its
    format, once for each folder.

    Some of them may not exist. For a source on another machine they are paths of that machine.
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
            above = ([folder, *folder.parents])[min(up, len(folder.parents))]
            if (above, pattern) not in searched:
                searched.add((above, pattern))
                yield from above.glob(pattern[3 * up :])


OPENING_S: Final = 0.015
"""The time that any source takes, even the smallest."""


def seconds(source: Source, *, device_tasks: bool = False, one_of_many: bool = False) -> float:
    """The time that one core takes for the blocks of a source, or for its device tasks; `one_of_many`: it is one of
    several that are read at once."""
    speed = _speed(source)
    rate = speed.device_tasks if device_tasks else speed.blocks
    assert rate is not None, f"{source.kind} has no device tasks"
    return (speed.opening_s if one_of_many else OPENING_S) + bytes_in(source.path) / (rate * 1e6)


def releases_gil(source: Source) -> bool:
    """Whether two threads of one process read such sources faster than one."""
    return _speed(source).releases_gil


def bytes_in(path: Path) -> int:
    """The bytes of a file, or of the files in a folder; 0 if it is missing, which its reader reports."""
    try:
        return (
            sum(bytes_in(file) for file in path.iterdir() if file.is_file()) if path.is_dir() else path.stat().st_size
        )
    except OSError:
        return 0


def _speed(source: Source) -> Speed:
    row = of_kind(source.kind)
    return row.folder_speed if row.folder_speed and source.path.is_dir() else row.speed
