"""Input formats: `find` lists what lies in a folder, `read` reads one source into the tables of `model.Profile`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import polars as pl

from trace_export.errors import SourceError
from trace_export.model import Profile
from trace_export.sources.source import Kind, ReadOptions, Source
from trace_export.sources.times import plausible

READERS: dict[Kind, str] = {
    "paddle": "paddle",
    "paddle_dygraph": "paddle_dygraph",
    "nsys": "nsys",
    "ascend": "ascend",
    "mindspore": "ascend",
    "kineto": "kineto",
}
"""Kind of source → the module of this package that reads it."""


def read(source: Source, options: ReadOptions) -> Profile:
    """The tables of one source. Raises SourceError when nothing in it can be read, when it vanishes meanwhile, or
    when it holds what no sound file holds, such as a number that does not fit the type of its column."""
    reader: Callable[[Source, ReadOptions], Profile]
    reader = import_module(f"{__name__}.{READERS[source.kind]}").read  # imported here: a run needs few of the formats
    try:
        return plausible(reader(source, options), source.path)
    except (pl.exceptions.InvalidOperationError, pl.exceptions.ComputeError) as error:
        first = str(error).partition("\n")[0]
        raise SourceError(source.path, f"holds what cannot be right ({first})", "export or copy it again") from error
    except OSError as error:  # a file beside the one that was opened first
        what = f"cannot be read ({error.strerror or error})"
        raise SourceError(source.path, what, "check that it is whole and that nobody is writing there") from error
