"""Read one source: `read` its blocks, messages and counters, `read_tasks` its device tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from trace_export.errors import SourceError
from trace_export.model import KernelFile, Profile
from trace_export.sources.cost import size
from trace_export.sources.formats import of_kind
from trace_export.sources.shared.timestamps import without_invalid_times
from trace_export.sources.source import ReadOptions, Source, TaskRequest


def read(source: Source, options: ReadOptions) -> Profile:
    """The tables of one source. Raises SourceError when nothing in it can be read, when it disappears meanwhile, or
    when its content is invalid, such as a number that does not fit the type of its column."""
    reader: Callable[[Source, ReadOptions], Profile] = of_kind(source.kind).module().read
    with _as_source_error(source.path):
        return without_invalid_times(reader(source, options), source.path)


def read_tasks(request: TaskRequest) -> tuple[KernelFile, ...]:
    """The device tasks of one source, a file for each of its ranks that has any. Raises SourceError as `read` does, and
    when the source has become smaller: a text that ends early reads like a shorter one."""
    reader: Callable[[TaskRequest], tuple[KernelFile, ...]] = of_kind(request.source.kind).module().read_tasks
    with _as_source_error(request.path):
        files = reader(request)
    if size(request.path) < request.size:
        what = "has become smaller since its blocks were read; its device tasks are left out"
        raise SourceError(request.path, what, "run again when no program is writing there")
    return files


@contextmanager
def _as_source_error(path: Path) -> Iterator[None]:
    """Errors of the libraries as SourceError."""
    try:
        yield
    except (pl.exceptions.InvalidOperationError, pl.exceptions.ComputeError) as error:
        first = str(error).partition("\n")[0]
        raise SourceError(path, f"holds invalid data ({first})", "export or copy it again") from error
    except OSError as error:  # a file beside the one that was opened first
        what = f"cannot be read ({error.strerror or error})"
        raise SourceError(path, what, "check that it is complete and that no program is writing there") from error
