"""Input formats: `find` lists what lies in a folder, `read` reads one source into the tables of `model.Profile`, and
`read_tasks` what lies below its blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import polars as pl

from trace_export.errors import SourceError
from trace_export.model import KernelFile, Profile
from trace_export.sources.effort import size
from trace_export.sources.shared.timestamps import plausible
from trace_export.sources.source import Kind, ReadOptions, Source, Tasks

READERS: dict[Kind, str] = {
    "paddle": "paddle.reader",
    "paddle_dygraph": "paddle.dygraph",
    "nsys": "nsys.reader",
    "ascend": "ascend.reader",
    "mindspore": "ascend.reader",
    "kineto": "kineto.reader",
}
"""Kind of source → the module of this package that reads it."""


WITH_TASKS: tuple[Kind, ...] = ("nsys", "ascend", "mindspore", "kineto")
"""The kinds that hold device tasks."""


def read(source: Source, options: ReadOptions) -> Profile:
    """The tables of one source. Raises SourceError when nothing in it can be read, when it vanishes meanwhile, or
    when it holds what no sound file holds, such as a number that does not fit the type of its column."""
    reader: Callable[[Source, ReadOptions], Profile] = _reader(source.kind).read
    with _told(source.path):
        return plausible(reader(source, options), source.path)


def read_tasks(wanted: Tasks) -> tuple[KernelFile, ...]:
    """The device tasks of one source, a file for each of its ranks that has any. Raises SourceError as `read` does, and
    when the source has become smaller: a text that ends early reads like a shorter one."""
    reader: Callable[[Tasks], tuple[KernelFile, ...]] = _reader(wanted.source.kind).read_tasks
    with _told(wanted.path):
        files = reader(wanted)
    if size(wanted.path) < wanted.size:
        what = "has become smaller since its blocks were read; its device tasks are left out"
        raise SourceError(wanted.path, what, "run again when nobody is writing there")
    return files


def _reader(kind: Kind) -> Any:
    return import_module(f"{__name__}.{READERS[kind]}")  # imported here: a run needs few of the formats


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Errors of the libraries as SourceError."""
    try:
        yield
    except (pl.exceptions.InvalidOperationError, pl.exceptions.ComputeError) as error:
        first = str(error).partition("\n")[0]
        raise SourceError(path, f"holds what cannot be right ({first})", "export or copy it again") from error
    except OSError as error:  # a file beside the one that was opened first
        what = f"cannot be read ({error.strerror or error})"
        raise SourceError(path, what, "check that it is whole and that nobody is writing there") from error
