"""The beginnings of many databases at once: the same profiles as `reader.read` gives, in less time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import polars as pl

from trace_export.errors import SourceError
from trace_export.model import Profile
from trace_export.sources.ranges import together
from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.ranges.profile import of_beginning
from trace_export.sources.ranges.ranges import Ranges
from trace_export.sources.rocpd import reader, roctx
from trace_export.sources.rocpd.process import Process, read_process
from trace_export.sources.rocpd.tables import Tables, sets_of
from trace_export.sources.shared.sqlite import PIECE_ROWS, Database
from trace_export.sources.shared.together import read_opened
from trace_export.sources.source import ReadOptions, Source


@dataclass(frozen=True)
class _Open:
    """A database of one process of which only the beginning is shown, and the ranges there."""

    source: Source
    tables: Tables
    fact: Process
    recorded: pl.DataFrame


def read(sources: Sequence[Source], options: ReadOptions) -> list[Profile | None]:
    """The profile of each database; None of those that `reader.read` must look at: they cannot be read, are small, JSON
    or of several processes, lack kernels or named passes, or a range there is untimed or has to be repaired."""
    dialects = Dialects.of(options.markers)
    return read_opened(
        sources,
        lambda source, stack: _opened(source, options, stack),
        lambda some: _profiles(some, dialects, options),
    )


def _opened(source: Source, options: ReadOptions, stack: ExitStack) -> _Open | None:
    if options.infer == "only" or not source.path.is_file():
        return None
    try:
        db = stack.enter_context(Database(source.path, options.beginning * PIECE_ROWS))
        processes = list(sets_of(db))
        if len(processes) != 1 or not reader.is_short(processes):
            return None
        (tables,) = processes
        if not (options.host_ranges or reader.has_kernels(tables)):
            return None
        recorded = list(roctx.recorded(tables))
        if len(recorded) != 1 or recorded[0].height > options.beginning * PIECE_ROWS:  # its rows are in no order
            return None
        return _Open(source, tables, read_process(tables), recorded[0])
    except (SourceError, OSError, pl.exceptions.PolarsError):  # which the reader reports
        return None


def _profiles(opened: Sequence[_Open], dialects: Dialects, options: ReadOptions) -> list[Profile | None] | None:
    """The profiles of these databases; None where there is something to say of the ranges of any of them."""
    named = roctx.Named(dialects)
    named.add(pl.concat(together.moved(one.recorded, place) for place, one in enumerate(opened)))
    whole = named.pipeline()
    if not together.is_plain(whole):
        return None
    own = together.split(whole, len(opened))
    parts = [_part(one, ranges, options) for one, ranges in zip(opened, own, strict=True)]
    profiles = together.profiles(whole, own, parts)
    return [profile and _finished(profile, one) for profile, one in zip(profiles, opened, strict=True)]


def _part(one: _Open, ranges: Ranges, options: ReadOptions) -> together.Part:
    """Rank and host of a database, as in `reader.read`."""
    ranks, notes = reader.ranks_of(one.source, ranges, sorted(ranges.marked), {one.tables.process: one.fact}, {})
    return together.Part(
        one.source,
        ranks=ranks if options.ranks is None else ranks.filter(options.ranks.holds("rank")),
        host=one.fact.host or one.source.host,
        label=one.fact.label or one.source.host,
        offset_ns=0,
        notes=notes,
        epoch=reader.EPOCH,
    )


def _finished(profile: Profile, one: _Open) -> Profile:
    whole = replace(profile, declared=replace(profile.declared, world=one.fact.world))
    return of_beginning(whole, one.source, reader.end_of(one.tables))
