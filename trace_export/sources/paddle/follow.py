"""Worker logs that grow: what is appended is read once, and the blocks of the last steps are kept.

Only whole lines are read, so half a record waits for its rest. A log that was copied anew with what it had before goes
on where it was; one whose content is another (truncated, rotated, replaced) is read from its beginning, and takes the
place of the records that are not older than its own.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

import polars as pl

from trace_export.errors import SourceError
from trace_export.files import open_file
from trace_export.model import Profile
from trace_export.sources.paddle.log_scanner import LONGEST, MARKER, READ_BYTES, RECORDS, Scanner, drain
from trace_export.sources.paddle.reader import MOST_RANKS, jobs_of, profile_of
from trace_export.sources.shared.growing import SEEN_BYTES, Starts, goes_on, last_dropped
from trace_export.sources.source import Source

MOST_RECORDS = 250_000
"""From so many new records on, old steps are dropped before more is read."""
MOST_STEPS = 50
"""So many steps are kept at most, however long nobody asks for them."""
COLUMNS = {**RECORDS, "log": pl.Int32()}


@dataclass
class _Log:
    """How far a log was read: `offset`, the first byte not read; `seen`, the last bytes before it; `pending`, the
    beginning of a line of which the end is missing. `number` is its place among the logs; `replaced`, whether it holds
    something else since it was read last; `followed`, whether all that it held at first was numbered."""

    source: Source
    number: int
    scanner: Scanner = field(default_factory=Scanner)
    offset: int = 0
    seen: bytes = b""
    pending: bytes = b""
    replaced: bool = False
    followed: bool = False

    def read(self) -> bool:
        """Scans what was appended, at most about MOST_RECORDS records at once; whether there were any."""
        before = self.scanner.waiting
        with open_file(self.source.path) as file:
            size = os.fstat(file.fileno()).st_size
            if size < self.offset or not goes_on(file, self.offset, self.seen):
                self.offset, self.seen, self.pending, self.replaced = 0, b"", b"", True
            file.seek(self.offset)
            while self.scanner.waiting - before < MOST_RECORDS and (piece := file.read(READ_BYTES)):
                base = self.offset - len(self.pending)
                self.offset += len(piece)
                self.seen = (self.seen + piece)[-SEEN_BYTES:]
                text = bytearray(self.pending + piece)
                end = text.rfind(b"\n") + 1
                if not end and len(text) > READ_BYTES:  # no line of a log, but memory must not grow with it
                    end = max(text.rfind(MARKER), len(text) - LONGEST)
                self.scanner.take(text, 0, end, base)
                self.pending = bytes(text[end:])
        return self.scanner.waiting > before


class Follower:
    """The blocks of the last `keep` steps in worker logs, on each rank, and of those that were not asked for yet.

    A record is given its step together with those of the step before, so that a look takes as long however many steps
    are kept. Where a rank is started again, its steps before are dropped; when that happens to a rank for the second
    time, a new run has begun, and the other ranks count once they are started again too.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._logs: dict[Source, _Log] = {}
        self._open = pl.DataFrame(schema=COLUMNS)
        """The records from the last step of each rank on."""
        self._last = jobs_of(self._open, [])
        self._before = self._last
        """The jobs in `_open`, and those of the steps before."""
        self._stale = False
        """Whether there are records in `_open` that have no step yet."""
        self._starts = Starts()
        """Of the members."""
        self._taken: int | None = None
        """The last step that was finished on all ranks when somebody asked for the tables."""
        self._members: set[int] = set()

    def advance(self, source: Source) -> bool:
        """Reads what was appended to a log; whether there were records. Raises SourceError where it cannot be read."""
        log = self._logs.setdefault(source, _Log(source, len(self._logs)))
        any_new = False
        try:
            while log.read():
                any_new = True
                if log.replaced:
                    self._replace(log)
                if log.scanner.waiting >= MOST_RECORDS:
                    self._number()
        except OSError as error:
            what = f"cannot be read ({error.strerror or error})"
            raise SourceError(source.path, what, "check that it is there and readable") from error
        return any_new

    def profile(self, after: tuple[int, int] | None = None) -> Profile:
        """The tables of all logs, without what belongs to no step."""
        self._number()
        for log in self._logs.values():
            log.followed = True
        if not self._members:
            return Profile()
        first = after[1] if after is not None and after[0] == self._starts.run else -1
        started = pl.col("member").is_in(list(self._starts.started))
        newest = self._last.filter(started).group_by("member").agg(pl.col("step").max())["step"]
        self._taken = int(newest.min()) - 1 if len(newest) else None  # type: ignore[arg-type]
        wanted = started & (pl.col("step") >= first)  # one more, to see records that repeat those before
        jobs = pl.concat([self._before.filter(wanted), self._last.filter(wanted)])
        profile = profile_of(jobs, list(self._logs), self._members, after=first)
        return replace(profile, spans=profile.spans.with_columns(run=pl.lit(self._starts.run, pl.Int32)))

    def _number(self) -> None:
        """Gives the new records their steps. All but the last step of each rank, where there are several in a log the
        last two, are numbered for good."""
        new = drain({log.number: log.scanner for log in self._logs.values()})
        if new.is_empty() and not self._stale:
            return
        self._stale = False
        jobs = jobs_of(pl.concat([self._open, new]), list(self._logs))
        self._start(jobs)
        jobs = jobs.filter(
            pl.col("run") == pl.col("run").max().over("member"),
            pl.col("step").is_not_null(),
        ).with_columns(run=pl.lit(0, pl.Int32), part=pl.col("member").cast(pl.Int64))
        several = pl.col("member").n_unique().over("log") > 1
        is_last = pl.col("step") >= pl.col("step").max().over("member") - several.cast(pl.Int32)
        self._last = jobs.filter(is_last)
        self._open = self._last.with_columns(announced=pl.col("step").min().over("member")).select(*COLUMNS)
        newest = self._last.group_by("member").agg(newest=pl.col("step").max())
        self._before = (
            pl.concat([self._before, jobs.filter(~is_last)])
            .join(newest, on="member", how="left", maintain_order="left")
            .filter(
                (pl.col("step") > last_dropped(pl.col("newest"), self._keep, self._taken, MOST_STEPS)).fill_null(True)
            )
            .drop("newest")
        )

    def _start(self, jobs: pl.DataFrame) -> None:
        """Notes which ranks were started, and drops the steps before that."""
        runs = dict(jobs.group_by("member").agg(pl.col("run").max()).iter_rows())
        again = {member for member, run in runs.items() if run and member in self._members}
        followed = {log.number for log in self._logs.values() if log.followed}
        seen = {member for member in again if member // MOST_RANKS in followed}  # not long before this watch
        if self._starts.add(again | (runs.keys() - self._members), seen):
            self._taken = None
        self._members |= runs.keys()
        if again:
            kept = pl.col("member").is_in(list(self._starts.started - again))
            self._before = self._before.filter(kept)

    def _replace(self, log: _Log) -> None:
        """Drops the records of a log that are not older than those it begins with now."""
        log.replaced = False
        new = drain({log.number: log.scanner})
        first = new.filter(pl.col("start_us") > 0)["start_us"].min()
        older = (pl.col("end_us") <= first) if first is not None else pl.lit(True)
        own = pl.col("log") == log.number
        before = self._before.filter(own).with_columns(announced=pl.col("step").min().over("member")).select(*COLUMNS)
        kept = pl.concat([before, self._open.filter(own)]).filter(older)
        self._open = pl.concat([self._open.filter(~own), kept, new])
        self._before, self._last = self._before.filter(~own), self._last.filter(~own)
        self._stale = True
