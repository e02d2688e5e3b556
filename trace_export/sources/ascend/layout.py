"""The folders of a capture: which one a profile belongs to, and where the file is that describes it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from trace_export.files import PACKED

OUTPUT = "ASCEND_PROFILER_OUTPUT"
TRACES = tuple("trace_view.json" + packed for packed in PACKED)
TABLE = "kernel_details.csv"
COMMUNICATION = ("COMMUNICATION", "HCCL")
"""Accelerator Core of the rows of `TABLE` that are communication operators."""
METADATA = "profiler_metadata.json"
"""The facts that the training script added."""

CAPTURE = re.compile(
    r"(?:(?:rank-(?P<rank>\d{1,9})|(?P<host>.+)_(?P<pid>\d{1,10}))_)?(?P<time>\d{8,17})_ascend_(?P<framework>pt|ms)"
)
"""The name of a capture; with a rank that of MindSpore 2.3 and 2.4."""
MSPROF = re.compile(r"msprof_\d{14}\.db")
INFO = re.compile(r"profiler_info(?:_(\d{1,9}))?\.json")


def home_of(folder: Path, files: Iterable[str] = ()) -> Path:
    """The capture that the profile in `folder` belongs to: the folder itself, unless it is one of those inside.
    `files`: the names of those in it that are read; a database of msprof lies among the raw data."""
    if folder.name == OUTPUT or any(MSPROF.fullmatch(name) for name in files):
        return next((p for p in folder.parents if not p.name.startswith("PROF_")), folder.parent)
    return folder


def info_file(home: Path, names: Callable[[Path], Iterable[str]]) -> Path | None:
    """The `profiler_info` of the capture `home`: in it, or as MindSpore 2.3 and 2.4 have it, beside it. `names`: of the
    files in a folder."""
    if inside := next((name for name in names(home) if INFO.fullmatch(name)), None):
        return home / inside
    match = CAPTURE.fullmatch(home.name)
    info = f"profiler_info_{int(match['rank'])}.json" if match and match["rank"] else None
    return home.parent / info if info is not None and info in names(home.parent) else None


def names_in(folder: Path) -> list[str]:
    """The names of all that is in a folder, in order."""
    return sorted(path.name for path in folder.iterdir())
