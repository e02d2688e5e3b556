"""Many logs at once: the same profiles as `reader.read` gives for each, in half the time where the logs are small."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import polars as pl

from trace_export.model import Profile
from trace_export.sources.paddle.log_scanner import Scanner, drain, last_ends, latest_us, scanned
from trace_export.sources.paddle.reader import jobs_of, of_log, profile_of
from trace_export.sources.shared.together import by_halves, places, split
from trace_export.sources.source import ReadOptions, Source


@dataclass(frozen=True)
class _Log:
    """A log with records: what was found there, and the ends of its last ones if that is not the `whole` of it."""

    source: Source
    scanner: Scanner
    whole: bool
    ends: list[bytes]


def read(sources: Sequence[Source], options: ReadOptions) -> list[Profile | None]:
    """The profile of each log; None of those that `reader.read` must look at: they cannot be read, have no record, or
    there is something to say of their records."""
    logs = {source: log for source in sources if (log := _scanned(source, options)) is not None}
    records = drain({place: log.scanner for place, log in enumerate(logs.values())})
    of_place = records.partition_by("log", as_dict=True)
    found = [(log, of_place[place,]) for place, log in enumerate(logs.values())]
    made = dict(zip(logs, by_halves(_profiles, found), strict=True))
    return [made.get(source) for source in sources]


def _scanned(source: Source, options: ReadOptions) -> _Log | None:
    with suppress(OSError):  # which the reader reports
        scanner, whole = scanned(source.path, options.beginning)
        if scanner.waiting and not scanner.malformed:
            return _Log(source, scanner, whole, [] if whole else last_ends(source.path))
    return None


def _profiles(found: Sequence[tuple[_Log, pl.DataFrame]]) -> list[Profile] | None:
    """The profiles of logs with these records; None where there is a note on any of them, or one without a block, which
    has one."""
    logs = [log for log, _ in found]
    placed = [replace(log.source, rank=place) for place, log in enumerate(logs)]
    tables = [own for _, own in found]
    records = pl.concat(tables).with_columns(places(tables).alias("log"))
    whole = profile_of(jobs_of(records, placed), placed)
    if whole.notes or whole.spans["rank"].n_unique() < len(logs):
        return None
    ends = latest_us([log.ends for log in logs])
    return [
        of_log(profile, log.source, log.scanner.steps(), whole=log.whole, end_us=end)
        for log, profile, end in zip(logs, split(whole, [log.source.rank or 0 for log in logs]), ends, strict=True)
    ]
