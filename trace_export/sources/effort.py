"""How long a source takes to read, about: so that no more processes are started than pay off."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from trace_export.sources.source import Kind

OPENING_S: Final = 0.015
"""What any source takes, however small."""

MB_PER_S: Final[dict[Kind, tuple[float, float]]] = {
    "paddle": (1900, 1900),
    "paddle_dygraph": (50, 50),
    "nsys": (150, 100),
    "ascend": (1200, 160),
    "mindspore": (1200, 160),
    "kineto": (23, 40),
}
"""Blocks, device tasks: measured on one core at 3 GHz."""
TEXT_MB_PER_S: Final = 60
"""Of an Ascend or MindSpore folder without a database."""


def seconds(kind: Kind, path: Path, *, tasks: bool = False) -> float:
    """The time that one core takes for the blocks of a source, or for its device `tasks`."""
    rate = TEXT_MB_PER_S if path.is_dir() else MB_PER_S[kind][tasks]
    return OPENING_S + size(path) / (rate * 1e6)


def beside(kind: Kind, path: Path) -> bool:
    """Whether threads of one process read such sources side by side: most of the time is SQLite's, which asks for
    nothing that another thread could hold."""
    return kind in ("ascend", "mindspore") and not path.is_dir()


def size(path: Path) -> int:
    """The bytes of a file, or of the files in a folder; 0 for what is not there, which its reader will tell."""
    try:
        return sum(size(file) for file in path.iterdir() if file.is_file()) if path.is_dir() else path.stat().st_size
    except OSError:
        return 0
