"""Run a function on one item, with its error as a value: a source that fails costs itself and not the run."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import polars as pl

from trace_export.errors import SourceError, TraceExportError


class HasPath(Protocol):
    """An item that has a path, by which errors name it."""

    @property
    def path(self) -> Path: ...


Item = TypeVar("Item", bound=HasPath)
Result = TypeVar("Result")


def attempt(function: Callable[[Item], Result], item: Item) -> Result | TraceExportError:
    """The result, or the error as a sentence; an internal error carries its traceback as a note, for --debug."""
    try:
        return function(item)
    except TraceExportError as error:
        return error
    except MemoryError:
        return SourceError(item.path, "does not fit into memory", "read fewer at a time with `jobs` 1")
    except OSError as error:
        remedy = "check its disk, and that of temporary files (TMPDIR)"
        return SourceError(item.path, f"reading it failed ({error.strerror or error})", remedy)
    except (Exception, pl.exceptions.PanicException) as error:
        ours = SourceError(item.path, f"internal error in its reader, {type(error).__name__}: {error}", "see --debug")
        ours.add_note("".join(traceback.format_exception(error)))
        return ours
