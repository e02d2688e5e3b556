"""The beginnings of many exports at once: the same profiles as `reader.read` gives, in a third of the time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice

import polars as pl

from trace_export.errors import SourceError
from trace_export.model import Profile
from trace_export.sources.nsys import nccl, nvtx
from trace_export.sources.nsys.cupti import devices_of
from trace_export.sources.nsys.export_report import SUFFIXES
from trace_export.sources.nsys.ranks import read_ranks
from trace_export.sources.nsys.reader import EVENTS, MOST_PROCESSES, has_work
from trace_export.sources.nsys.session import Session, is_export, read_session
from trace_export.sources.nsys.threads import autograd_threads
from trace_export.sources.ranges import together
from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.ranges.profile import of_beginning
from trace_export.sources.ranges.ranges import Ranges
from trace_export.sources.shared.sqlite import PIECE_ROWS, Database
from trace_export.sources.shared.together import read_opened
from trace_export.sources.source import ReadOptions, Source


@dataclass(frozen=True)
class _Open:
    """An export of which only the beginning is shown, and the ranges there."""

    source: Source
    db: Database
    session: Session
    recorded: pl.DataFrame
    names: dict[int, str]


def read(sources: Sequence[Source], options: ReadOptions) -> list[Profile | None]:
    """The profile of each export; None of those that `reader.read` must look at: they cannot be read, are small, lack
    GPU work or named passes, describe payloads, or a range there is open, untimed or closed in the wrong order."""
    dialects = Dialects.of(options.markers)
    return read_opened(
        sources,
        lambda source, stack: _opened(source, options, stack),
        lambda some: _profiles(some, dialects, options),
    )


def _profiles(opened: Sequence[_Open], dialects: Dialects, options: ReadOptions) -> list[Profile | None] | None:
    """The profiles of these exports; None where there is something to say of the ranges of any of them."""
    whole = _ranges(opened, dialects)
    if not together.is_plain(whole):
        return None
    own = together.split(whole, len(opened))
    parts = [_part(one, ranges, options) for one, ranges in zip(opened, own, strict=True)]
    made: list[Profile | None] = []
    for one, ranges, profile in zip(opened, own, together.profiles(whole, own, parts), strict=True):
        unnamed = autograd_threads(one.db).keys() - ranges.marked
        if profile is None or unnamed or len(ranges.marked) > MOST_PROCESSES:
            made.append(None)
        else:
            made.append(of_beginning(profile, one.source, one.db.last(nvtx.TABLE, "start"), one.session.offset_ns))
    return made


def _opened(source: Source, options: ReadOptions, stack: ExitStack) -> _Open | None:
    if options.infer == "only" or source.path.suffix in SUFFIXES or not source.path.is_file():
        return None
    try:
        db = stack.enter_context(Database(source.path, options.beginning * PIECE_ROWS))
        short = not db.shortened.isdisjoint(table.lower() for table in EVENTS)
        usual = is_export(db.tables()) and db.has(nvtx.TABLE) and (options.host_ranges or has_work(db))
        if not short or not usual or nccl.layouts(db):
            return None
        recorded = list(islice(nvtx.recorded(db), 2))
        if len(recorded) != 1 or recorded[0].height > options.beginning * PIECE_ROWS:  # its rows are in no order
            return None
        names: dict[int, str] = {}
        nvtx.look_up(db, recorded[0]["textId"], names)
        return _Open(source, db, read_session(db, source.path), recorded[0], names)
    except (SourceError, OSError, pl.exceptions.PolarsError):  # which the reader reports
        return None


def _ranges(opened: Sequence[_Open], dialects: Dialects) -> Ranges:
    """The ranges of all exports, their processes as `together` numbers them."""
    named = nvtx.Named(dialects, nccl.Calls({}))
    names = {together.shift(place) + n: name for place, one in enumerate(opened) for n, name in one.names.items()}
    recorded = pl.concat(together.moved(one.recorded, place) for place, one in enumerate(opened))
    named.add(nvtx.with_texts(recorded, names))
    return named.pipeline()


def _part(one: _Open, ranges: Ranges, options: ReadOptions) -> together.Part:
    """Rank, host and clock of an export, as in `reader.read`."""
    processes = sorted(ranges.marked)
    ranks, notes = read_ranks(
        one.db, ranges, processes, one.source, devices_of(one.db), nccl.Calls({}).members(), one.session.begun_ns
    )
    return together.Part(
        one.source,
        ranks=ranks if options.ranks is None else ranks.filter(options.ranks.holds("rank")),
        host=one.session.host or one.source.host,
        label=one.session.label or one.source.host,
        offset_ns=one.session.offset_ns,
        notes=(*one.session.notes, *notes),
    )
