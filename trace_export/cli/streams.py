"""Standard streams that are closed, full, or in an encoding that lacks a character.

A character that the encoding lacks becomes `?`. A standard output that cannot be written is an error; messages to a
standard error that cannot be written are dropped.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from trace_export.errors import OutputError

LEAST_COLUMNS = 40
"""A narrower terminal breaks lines itself."""


class _Output(io.FileIO):
    """Standard output. The first error is raised, and what comes afterwards is dropped."""

    failed = False

    def write(self, data: Any) -> int:
        if self.failed:
            return len(data)
        try:
            return super().write(data)
        except BrokenPipeError:  # whoever read it has seen enough
            self.failed = True
            return len(data)
        except OSError as error:
            self.failed = True
            raise OutputError(
                Path("standard output"),
                f"cannot be written: {error.strerror}",
                "files already written are complete",
            ) from error


class _Messages(io.FileIO):
    """Standard error, or nothing where it cannot be written."""

    failed = False

    def write(self, data: Any) -> int:
        with suppress(OSError):
            return super().write(data)
        self.failed = True
        return len(data)


def prepare() -> None:
    """Replaces the process's own standard streams; streams that a caller has put in their place stay."""
    _occupy_closed()
    if sys.stdout is sys.__stdout__:
        sys.stdout = _text(_Output(1, "w", closefd=False), sys.__stdout__, errors="replace")
    if sys.stderr is sys.__stderr__:
        # On a descriptor of its own, so that `foreign_text` hides only what others write.
        sys.stderr = _text(_Messages(os.dup(2), "w", closefd=False), sys.__stderr__, errors="backslashreplace")


def _occupy_closed() -> None:
    """Opens closed standard descriptors on something that cannot be written: otherwise the next file that is opened
    would become standard output or standard error."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)  # takes the lowest number that is free


def _text(raw: io.FileIO, before: TextIO | None, errors: str) -> TextIO:
    encoding = before.encoding if before is not None else "utf-8"
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=encoding, errors=errors, line_buffering=True)


def say(text: str) -> None:
    """Prints a last sentence on standard error, or on standard output where standard error cannot be written. On a
    terminal its lines end at blanks."""
    if sys.stderr is not None and sys.stderr.isatty():
        from textwrap import wrap

        width = max(shutil.get_terminal_size().columns, LEAST_COLUMNS)
        # Paths stay whole, so that they can be copied.
        lines = wrap(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        text = "\n".join(lines)
    print(text, file=sys.stderr, flush=True)
    if getattr(getattr(getattr(sys.stderr, "buffer", None), "raw", None), "failed", False):
        with suppress(OutputError):
            print(text, flush=True)


@contextmanager
def foreign_text(hidden: bool) -> Iterator[None]:
    """Hides what libraries write to descriptor 2 directly: Rust reports each panic there, which `main` reports too."""
    if not hidden:
        yield
        return
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)
