"""The files of Primus, `pp_rank_N.json` for each stage beside `config.json`, and of MegaScan (arXiv 2507.19845), a
pipeline trace for each iteration."""

from __future__ import annotations

import os
import re
from pathlib import Path

from trace_export.files import Unpacked

STAGE = re.compile(r"pp_rank_(\d{1,6})\.json")


def stages(folder: Path) -> list[Path]:
    """The files of the stages in `folder`."""
    return sorted(path for path in folder.iterdir() if STAGE.fullmatch(path.name))


def state(folder: Path) -> int:
    """A number that is another one when one of these files has changed: of their names, sizes and times of change."""
    with os.scandir(folder) as entries:
        files = [entry for entry in entries if STAGE.fullmatch(entry.name)]
    states = []
    for entry in files:
        try:
            status = entry.stat()
        except OSError:  # a link that leads nowhere
            states.append((entry.name, -1, -1))
        else:
            states.append((entry.name, status.st_size, status.st_mtime_ns))
    return hash(tuple(sorted(states)))


ITERATION = re.compile(r"(.*iter)(\d{1,9})\.json")
"""The common part of the names of a run's files, and the iteration."""
START = 64 << 10
"""Bytes in which a trace of MegaScan has the end of a block."""


def iterations(path: Path) -> list[Path]:
    """The files of a source of MegaScan, by their iteration."""
    match = ITERATION.fullmatch(path.name)
    if match is None:
        return [path]
    others = ((other, ITERATION.fullmatch(other.name)) for other in path.parent.iterdir())
    files = [(int(o[2]), other) for other, o in others if o and o[1] == match[1] and is_trace(other)]
    return [other for _, other in sorted(files)] or [path]


def is_trace(path: Path) -> bool:
    """Whether a JSON file begins as a pipeline trace of MegaScan."""
    try:
        with Unpacked(path) as file:
            start = file.read(START)
    except OSError:
        return False  # who reads it says why
    return start.lstrip()[:1] == b"[" and b'"model_chunk"' in start and b'"pp_rank"' in start
