"""When to look again: soon after the disk has changed, and at most once a second.

The system says what changes where it can (package watchfiles); a disk that other machines write to is looked at once a
second, since the system only knows of the changes of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from trace_export.errors import path_text
from trace_export.files import real_path

Ticks = Iterator[None]

LEAST_S = 1.0
"""The shortest time between two looks."""
MOST_S = 10.0
"""After so long there is a look though nothing was reported to have changed: reports may get lost."""
NETWORK = ("nfs", "cifs", "smb", "lustre", "beegfs", "gpfs", "ceph", "glusterfs", "fuse", "9p", "afs", "wekafs")
"""How the names of file systems begin that other machines may write to."""

MOUNTS = Path("/proc/self/mounts")


def ticks(folder: Path, stop: threading.Event) -> Ticks:
    """Yields at once, and then whenever it is time to look, until `stop` is set."""
    yield None
    events = None if is_on_network(folder) else _events(folder, stop)
    due_s = 0.0  # at once: the system does not report what changed during the first look
    while not stop.is_set():
        began = time.monotonic()
        changed = True
        if events is None:
            stop.wait(LEAST_S)
        else:
            try:
                changed = bool(next(events, None))
            except (OSError, RuntimeError):  # the folder is gone, or the system watches no more files
                events = None
            stop.wait(max(0.0, LEAST_S - (time.monotonic() - began)))
        if not stop.is_set() and (changed or time.monotonic() >= due_s):
            yield None
            due_s = time.monotonic() + MOST_S


def _events(folder: Path, stop: threading.Event) -> Iterator[object] | None:
    """The changes of files below a folder each time that there are some, nothing after LEAST_S without; None where the
    package is not installed, or the name of the folder is no UTF-8, which it does not take."""
    if path_text(folder) != str(folder):
        return None
    with suppress(ModuleNotFoundError):
        watch = import_module("watchfiles").watch
        timeout = int(LEAST_S * 1000)
        found: Iterator[object] = watch(
            folder, stop_event=stop, step=50, debounce=200, rust_timeout=timeout, yield_on_timeout=True
        )
        return found
    return None


def is_on_network(folder: Path, table: Path = MOUNTS) -> bool:
    """Whether a folder lies on a disk that other machines may write to, as the system's `table` of mounts says; False
    where there is none."""
    try:
        mounts = [line.split(" ") for line in table.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return False
    place = real_path(folder)
    around = [(len(point), kind) for _, point, kind, *_ in mounts if place.is_relative_to(_unescaped(point))]
    return max(around, default=(0, ""))[1].startswith(NETWORK)


def _unescaped(point: str) -> str:
    """A mount point as it is; the table has spaces and backslashes in octal."""
    return point.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
