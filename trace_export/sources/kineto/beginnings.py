"""The beginnings of many traces at once: the same profiles as `reader.read` gives, in half the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import polars as pl

from trace_export.errors import SourceError
from trace_export.model import Note, Profile
from trace_export.sources.kineto import nccl, reader
from trace_export.sources.kineto.device_tasks import TIMED
from trace_export.sources.kineto.event_stream import Trace
from trace_export.sources.kineto.gpu_work import CALLERS, IS_CALL
from trace_export.sources.kineto.json_events import Event, columns_of
from trace_export.sources.kineto.trace import is_perfetto
from trace_export.sources.ranges import together
from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.ranges.profile import of_beginning
from trace_export.sources.ranges.ranges import Ranges, gather
from trace_export.sources.shared.together import places, read_opened
from trace_export.sources.source import ReadOptions, Source


@dataclass(frozen=True)
class _Seen:
    """A trace of which only the beginning was read, and the events there."""

    source: Source
    trace: Trace
    events: list[Event]


def read(sources: Sequence[Source], options: ReadOptions) -> list[Profile | None]:
    """The profile of each trace; None of those that `reader.read` must look at: they cannot be read, are small or in
    Perfetto's format, lack GPU work or named passes, have launches of several processes, or there is something to
    say of their ranges or their clock."""
    if options.infer == "only":
        return [None] * len(sources)
    dialects = Dialects.of(options.markers)
    return read_opened(
        sources,
        lambda source, _: _seen(source, options, dialects),
        lambda some: _profiles(some, dialects, options),
    )


def _seen(source: Source, options: ReadOptions, dialects: Dialects) -> _Seen | None:
    if is_perfetto(source.path.name):
        return None
    try:
        with Trace(source.path, reader.wanted(dialects), options.beginning) as trace:
            rank = reader.job(trace, "rank")
            if rank is not None and options.ranks is not None and rank not in options.ranks:
                return None
            events = list(chain.from_iterable(trace.pieces()))
    except SourceError:  # which the reader raises again
        return None
    return _Seen(source, trace, events) if trace.shortened and not reader.losses(trace) else None


def _profiles(seen: Sequence[_Seen], dialects: Dialects, options: ReadOptions) -> list[Profile | None] | None:
    """The profiles of these traces; None where there is something to say of the ranges of any of them."""
    events = _events(seen)
    named = reader.cpu_ranges(events, dialects).filter(dialects.may_know("text"))
    ranges = gather([named], (), dialects)
    if not together.is_plain(ranges):
        return None
    own = together.split(ranges, len(seen))
    kernels = events.filter(cat="kernel")
    devices = dict(kernels.group_by("process", maintain_order=True).agg(reader.DEVICE.first()).iter_rows())
    working = {*devices, *events.filter(IS_CALL)["process"].unique()}
    callers = dict(events.group_by("process").agg(CALLERS).iter_rows())
    parts = [
        _part(one, own[place], devices.get(process), callers.get(process, []))
        for place, one in enumerate(seen)
        for process in (together.shift(place),)
    ]
    odd = {process for process, pids in callers.items() if len(pids) > 1}
    found = nccl.calls(kernels.filter(TIMED))
    odd |= _with_far(found, ranges.frame)
    calls = together.Calls(nccl.transfers(found), nccl.collectives(found))
    ends = dict(events.group_by("process").agg(pl.col("end").max()).iter_rows())
    made: list[Profile | None] = []
    for place, (one, profile) in enumerate(zip(seen, together.profiles(ranges, own, parts, calls), strict=True)):
        process = together.shift(place)
        has_work = options.host_ranges or not one.trace.has_end or process in working
        plain = has_work and process not in odd
        made.append(_finished(profile, one, ends.get(process)) if profile is not None and plain else None)
    return made


def _with_far(calls: pl.DataFrame, ranges: pl.DataFrame) -> set[int]:
    """The processes of which the reader leaves out NCCL's kernels for their times, see `reader.near`."""
    extents = ranges.group_by("process").agg(pl.col("start").min(), pl.col("end").max())
    placed = calls.select("process", at="start").join(extents, on="process")
    return set(placed.filter(~reader.near(pl.col("at"), pl.col("start"), pl.col("end")))["process"])


def _events(seen: Sequence[_Seen]) -> pl.DataFrame:
    """The events of all traces and their process, as `together` numbers it."""
    rows = [one.events for one in seen]
    process = places(rows).cast(pl.Int64) * together.shift(1)
    return columns_of(list(chain.from_iterable(rows))).with_columns(process.alias("process"))


def _part(one: _Seen, ranges: Ranges, device: int | None, callers: Sequence[str]) -> together.Part:
    """Rank, host and clock of a trace, as in `reader.read`."""
    host = reader.host_of(one.trace, one.source)
    ranks = reader.ranks_of(one.trace, one.source, ranges, device, reader.pid_of(callers))
    return together.Part(one.source, ranks, host, host, one.trace.offset_ns, ())


def _finished(profile: Profile, one: _Seen, end: int | None) -> Profile | None:
    """The profile with what is known of the whole trace; None where there is something to say of its clock."""
    trace = one.trace
    notes: list[Note] = []
    try:
        notes = reader.clock_notes(trace, int(profile.spans["start_ns"].to_numpy().min()))
    except SourceError:  # which the reader raises again
        return None
    declared = replace(profile.declared, world=reader.job(trace, "world_size") or None)
    made = replace(profile, declared=declared, notes=(*notes, *profile.notes))
    return of_beginning(made, one.source, end if trace.has_end else None, trace.offset_ns)
