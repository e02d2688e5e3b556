"""Cost estimate of reading a source, from its size and the speed of its format."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from trace_export.sources.formats import Speed, of_kind
from trace_export.sources.source import Source

OPENING_S: Final = 0.015
"""What any source takes, however small."""


def seconds(source: Source, *, device_tasks: bool = False) -> float:
    """The time that one core takes for the blocks of a source, or for its device tasks."""
    speed = _speed(source)
    rate = speed.device_tasks if device_tasks else speed.blocks
    assert rate is not None, f"{source.kind} has no device tasks"
    return OPENING_S + size(source.path) / (rate * 1e6)


def releases_gil(source: Source) -> bool:
    """Whether two threads of one process read such sources faster than one."""
    return _speed(source).releases_gil


def size(path: Path) -> int:
    """The bytes of a file, or of the files in a folder; 0 for what is not there: its reader reports that."""
    try:
        return sum(size(file) for file in path.iterdir() if file.is_file()) if path.is_dir() else path.stat().st_size
    except OSError:
        return 0


def _speed(source: Source) -> Speed:
    row = of_kind(source.kind)
    return row.folder_speed if row.folder_speed and source.path.is_dir() else row.speed
