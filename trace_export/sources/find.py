"""Folder → the list of sources; with the `find_*` files beside it the only place that knows profilers' folder layouts.

One walk over the folder, then one recogniser per family of formats; each looks at the same list of folders and returns
the sources it is sure of. Ranks and machines come from names here; a reader may find better evidence inside.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trace_export.sources import find_ascend, find_kineto, find_nsys, find_paddle
from trace_export.sources.layout import Folder, Found, walk

_RECOGNISERS: tuple[Callable[[Path, list[Folder]], Found], ...] = (
    find_paddle.worker_logs,
    find_paddle.dygraph_records,
    find_nsys.exports,
    find_ascend.captures,
    find_kineto.traces,
)


def find(root: Path) -> Found:
    """All sources under `root`, in natural order of their paths. Opens files only to read their first bytes.

    Raises UsageError when `root` is not a folder.
    """
    folders = walk(root)
    found = [recognise(root, folders) for recognise in _RECOGNISERS]
    return Found(tuple(s for f in found for s in f.sources), tuple(n for f in found for n in f.notes))
