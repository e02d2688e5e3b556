"""Several sources of a format read at once; each has its result or its error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl

from trace_export.errors import SourceError, in_column
from trace_export.model import INT, Profile
from trace_export.sources.not_here import FETCH, POINTER, is_pointer
from trace_export.sources.source import ReadOptions, Source

Made = TypeVar("Made")
Result = Profile | SourceError
"""The profile of a source, or why it cannot be read."""


def each(
    read: Callable[[Source, ReadOptions], Profile], sources: Sequence[Source], options: ReadOptions
) -> list[Result]:
    """The result of `read` for each of the sources, one after another."""
    return [caught(source.path, partial(read, source, options)) for source in sources]


def caught(path: Path, make: Callable[[], Made]) -> Made | SourceError:
    """The result of `make`, or the error that it raises."""
    try:
        with as_source_error(path):
            return make()
    except SourceError as error:
        return error


@contextmanager
def as_source_error(path: Path) -> Iterator[None]:
    """Errors of the libraries as SourceError, and for a file that Git LFS has not fetched the error that says so."""
    try:
        yield
    except SourceError as error:
        if is_pointer(error.path):
            raise SourceError(error.path, f"is {POINTER}", FETCH) from error
        raise
    except (pl.exceptions.InvalidOperationError, pl.exceptions.ComputeError, pl.exceptions.PanicException) as error:
        raise SourceError(path, f"holds invalid data{in_column(error)}", "export or copy it again") from error
    except OSError as error:
        absent = isinstance(error, (FileNotFoundError, PermissionError))
        remedy = "there and readable" if absent else "complete and that no program is writing there"
        raise SourceError(path, f"cannot be read ({error.strerror or error})", f"check that it is {remedy}") from error


TABLES = ("ranks", "spans", "p2p", "collectives", "counters")
"""The tables in which a source has rows by rank."""


def split(
    whole: Profile, numbers: Sequence[int], owners: Sequence[int], hosts: Sequence[int] | None = None
) -> list[Profile]:
    """The profile of each of several sources. In `whole` their ranks are numbered from 0. The `numbers` are those that
    they have in their sources; `owners` are these sources, in order, and `hosts` those of the hosts, where each rank
    has no separate one. Everything else of `whole` is in each profile."""
    owners_of_hosts = owners if hosts is None else hosts
    count = max(owners_of_hosts) + 1
    number, owner = (pl.lit(pl.Series(values, dtype=INT)).gather("rank") for values in (numbers, owners))
    parts: dict[str, list[Any]] = {
        "hosts": by_source(whole.hosts, pl.lit(pl.Series(owners_of_hosts, dtype=INT)), count)
    }
    for name in TABLES:
        frame: pl.DataFrame = getattr(whole, name)
        if frame.height:  # each profile keeps an empty table of `whole`
            parts[name] = by_source(frame, owner, count, rank=number)
    return [replace(whole, **{name: frames[source] for name, frames in parts.items()}) for source in range(count)]


def by_source(frame: pl.DataFrame, owner: pl.Expr, count: int, **changed: pl.Expr) -> list[pl.DataFrame]:
    """The rows of each of `count` sources: `owner` says which one has a row. Columns are replaced as `changed` says."""
    if count == 1:
        return [frame.with_columns(**changed) if changed else frame]
    placed = frame.with_columns(owner.alias("owner"), **changed)
    frames = placed.partition_by("owner", as_dict=True, include_key=False)
    return [frames.get((number,), frame.clear()) for number in range(count)]


def sources_of(tables: Sequence[Sized], numbers: Sequence[int] | None = None) -> pl.Series:
    """For each row of the `tables` of several sources, put one after the other, which source it is from: one of the
    `numbers`, else counted from 0 (Int32)."""
    rows = np.fromiter(map(len, tables), np.int64)
    which = np.arange(len(tables), dtype=np.int32) if numbers is None else np.array(numbers, np.int32)
    return pl.Series(which.repeat(rows), dtype=INT)
