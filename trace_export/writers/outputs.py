"""Which files a run may replace: no input, and no file that trace-export did not write, except with `force`."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Self

from trace_export.errors import OutputError, TraceExportError, UsageError
from trace_export.writers.atomic import replacing
from trace_export.writers.mark import is_marked
from trace_export.writers.predecessors import is_chart

ELSEWHERE = "name another place with `path`"
"""Parameters in backquotes: the command line puts its options there (cli/__init__)."""


class Outputs:
    """The outputs of one run.

    `inputs` are all files that the run reads, `written` those that it has written. A file that exists is replaced only
    if it carries the mark of this program (`mark`), is the chart of a script that this program takes the place of
    (`predecessors`), or with `force`. An input is never replaced, whatever name or link
    leads to it: files are compared by device and inode. `replaced` are those of `written` that were there
    before.
    """

    def __init__(self, inputs: Iterable[Path] = (), *, force: bool = False) -> None:
        self._read = inputs
        self._force = force
        self.written: list[Path] = []
        self.replaced: list[Path] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        """Adds the files that were written to an error that ends the block."""
        if isinstance(error, TraceExportError):
            error.written = tuple(self.written)

    @cached_property
    def _inputs(self) -> dict[tuple[int, int], Path]:
        """What is read, by identity; a run that writes nothing need not know it of its thousands of files."""
        return {_identity(status): path for path in self._read if (status := _status(path))}

    def check(self, paths: Iterable[Path]) -> None:
        """Raises UsageError if one of `paths` may not be replaced, OutputError if it cannot be written at all.

        To be called before the inputs are read; `file` checks again.
        """
        for path in paths:
            self._check(path)
            self._check_folder(path)

    @contextmanager
    def file(self, path: Path) -> Iterator[Path]:
        """A temporary path for the output at `path`, see `atomic.replacing`. Raises UsageError, OutputError."""
        self._check(path)
        existed = os.path.lexists(path)
        with replacing(path, self._check) as temporary:
            yield temporary
        self.written.append(path)
        self.replaced += [path] if existed else []

    def _check(self, path: Path) -> None:
        """Raises UsageError or OutputError if there is something at `path` that may not be replaced."""
        try:
            path.lstat()
        except FileNotFoundError:
            return
        except OSError as error:
            raise OutputError(path, f"cannot be written: {error.strerror}", ELSEWHERE) from error
        status = _status(path)  # None for a link that leads nowhere
        if status and (source := self._inputs.get(_identity(status))):
            same = "is an input" if source == path else f"is the same file as the input {source}"
            raise UsageError(f"{path} {same}, and inputs are never replaced", ELSEWHERE)
        if status and not stat.S_ISREG(status.st_mode):
            what = "it is a folder" if stat.S_ISDIR(status.st_mode) else "it is not a regular file"
            raise OutputError(path, f"cannot be written: {what}", ELSEWHERE)
        if not (self._force or is_marked(path) or is_chart(path)):
            what = "exists, and trace-export did not write it"
            raise UsageError(f"{path} {what}", f"replace it with `force`, or {ELSEWHERE}")

    def _check_folder(self, path: Path) -> None:
        """Raises OutputError if the folder of `path`, or the one in which it would be created, is not writable."""
        folder = next(parent for parent in path.absolute().parents if _status(parent))
        if not os.access(folder, os.W_OK | os.X_OK):
            raise OutputError(path, "cannot be written: Permission denied", ELSEWHERE)


def _status(path: Path) -> os.stat_result | None:
    """The status of the file that `path` leads to, or None if there is none."""
    try:
        return path.stat()
    except OSError:
        return None


def _identity(status: os.stat_result) -> tuple[int, int]:
    """Device and inode, which all paths to one file have in common."""
    return status.st_dev, status.st_ino
