"""`watch`: the looks at a job that runs, and the lines that are kept of its steps."""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from trace_export.errors import OutputError
from trace_export.live.look import Look, Watch
from trace_export.options import Drawing
from trace_export.run import Request
from trace_export.writers.outputs import Outputs

LOOK_S = 1.0
"""How often the folder is looked at. The system tells of changes only on disks of this machine, and job logs mostly lie
on others."""
MOST_LINES = 10_000
"""This many lines wait for room on the disk, the last ones."""


def watch(
    wanted: Request,
    stop: threading.Event,
    drawing: Drawing,
    *,
    last: int,
    slowdown: bool,
    jsonl: Path | None,
    force: bool,
) -> Iterator[Look]:
    """The looks at a job, until `stop` is set: at its `last` steps, drawn as `drawing` says, with the metric S where
    `slowdown` asks for it. Before each a line for each new step is written to `jsonl`.

    A file that cannot be written is among the failures of the look. Raises UsageError for impossible options and for a
    file that may not be replaced.
    """
    kept = KeptLines(jsonl, force=force)
    for look in Watch(wanted, last, slowdown=slowdown).looks(ticks(stop)):
        yield replace(look, failures=(*look.failures, *kept.put(look)), _drawing=drawing)


def ticks(stop: threading.Event) -> Iterator[None]:
    """Yields at once, and then every `LOOK_S` seconds until `stop` is set."""
    yield None
    while not stop.wait(LOOK_S):
        yield None


class KeptLines:
    """The lines that are kept of a watched job in a file, if there is one. What cannot be written, as on a full disk,
    is tried again with the next look. Raises UsageError for a file that may not be replaced."""

    def __init__(self, path: Path | None, *, force: bool = False) -> None:
        self._path, self._force = path, force
        self._waiting: deque[bytes] = deque(maxlen=MOST_LINES)
        Outputs(force=force).check([path] if path else [])

    def put(self, look: Look) -> list[OutputError]:
        """Appends what is due, all or nothing; the errors. Raises UsageError for an input or a file of somebody
        else."""
        if self._path is None or look._shown is None:
            return []
        self._waiting += [step.json() + b"\n" for step in look.steps]
        if not (content := b"".join(self._waiting)):
            return []
        try:
            Outputs(look._shown.inputs, force=self._force).check([self._path])
            with self._path.open("ab", buffering=0) as file:
                size = file.seek(0, os.SEEK_END)
                if file.write(content) < len(content):
                    file.truncate(size)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            return [OutputError(self._path, f"cannot be written: {error.strerror}", "name another place")]
        except OutputError as error:
            return [error]
        self._waiting.clear()
        return []
