"""Worker logs that grow: appended parts are read once, and the blocks of the last steps are kept.

Only whole lines are read; an incomplete record is held back. A log that was copied anew with its old content goes on
where it was. A log with other content (truncated, rotated, replaced) is read from its beginning, and replaces the
records that are not older than its first one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import polars as pl

from trace_export.model import TIME, Profile
from trace_export.sources.paddle.log_scanner import LONGEST, MARKER, READ_BYTES, RECORDS, Scanner, drain
from trace_export.sources.paddle.reader import MOST_RANKS, TRAINS, jobs_of, profile_of
from trace_export.sources.shared.batch import as_source_error
from trace_export.sources.shared.growing import Starts, Tail, last_dropped
from trace_export.sources.source import Source

MOST_RECORDS = 250_000
"""After this many new records, old steps are dropped before more is read."""
MOST_STEPS = 50
"""At most this many steps are kept, even if nobody asks for them."""
COLUMNS = {**RECORDS, "log": pl.Int32()}


@dataclass
class _Log:
    """The part of a log that was read. `number` is its place among the logs; `replaced`: its content is another since
    it was read last; `followed`: all of its first content was numbered; `at_end`: it was read to its end."""

    source: Source
    number: int
    scanner: Scanner = field(default_factory=Scanner)
    tail: Tail = field(default_factory=Tail)
    replaced: bool = False
    followed: bool = False
    at_end: bool = False

    def read(self) -> bool:
        """Scans the appended part, at most about MOST_RECORDS records at once; whether there were any."""
        before = self.scanner.waiting
        if not self.tail.goes_on(self.source.path):
            self.tail.begin_anew()
            self.replaced = True
        self.at_end = True
        for begin, text in self.tail.lines(self.source.path, READ_BYTES, READ_BYTES, _cut):
            self.scanner.take(bytearray(text), 0, len(text), begin)
            if self.scanner.waiting - before >= MOST_RECORDS:
                self.at_end = False
                break
        return self.scanner.waiting > before


def _cut(line: bytes) -> int:
    """Where to cut a text that is no line of a log, so that memory does not grow with it: before a possible record."""
    return max(line.rfind(MARKER), len(line) - LONGEST)


class Follower:
    """The blocks of the last `keep` steps in worker logs, on each rank, and of those that were not asked for yet.

    A record is given its step with those of the previous step, so that the time of a look does not depend on the number
    of kept steps. If a rank is started again, its earlier steps are dropped. If that happens to a rank for the second
    time, a new run has begun, and the other ranks count once they are started again, too.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._logs: dict[Source, _Log] = {}
        self._open = pl.DataFrame(schema=COLUMNS)
        """The records that give the next ones their steps: the last step of each rank, or the record that closed it."""
        self._last = jobs_of(self._open, [])
        self._before = self._last
        """The jobs in `_open`, and those before them."""
        self._stale = False
        """Whether there are records in `_open` that have no step yet."""
        self._starts = Starts()
        """Of the members."""
        self._taken: int | None = None
        """The last step that was finished on all ranks when somebody asked for the tables."""
        self._begun: dict[int, tuple[int, int]] = {}
        """How often each member was started again, and when it was last."""

    def advance(self, source: Source) -> bool:
        """Reads the part that was appended to a log; whether there were records. Raises SourceError where it cannot be
        read."""
        log = self._logs.setdefault(source, _Log(source, len(self._logs)))
        any_new = False
        with as_source_error(source.path):
            while log.read():
                any_new = True
                if log.replaced:
                    self._replace(log)
                if log.scanner.waiting >= MOST_RECORDS:
                    self._number()
                if log.at_end:
                    break
        return any_new

    def profile(self, after: tuple[int, int] | None = None) -> Profile:
        """The tables of all logs, without records that belong to no step."""
        self._number()
        for log in self._logs.values():
            log.followed = True
        if not self._begun:
            return Profile()
        ends = dict(self._last.group_by("member").agg(pl.col("end_us").max()).iter_rows())
        self._starts.leave_out({member: (*begun, ends.get(member, 0)) for member, begun in self._begun.items()})
        first = after[1] if after is not None and after[0] == self._starts.run else -1
        started = pl.col("member").is_in(list(self._starts.started))
        newest = self._last.filter(started).group_by("member").agg(pl.col("step").max())["step"]
        self._taken = int(newest.min()) - 1 if len(newest) else None  # type: ignore[arg-type]
        wanted = started & (pl.col("step") >= first)  # one more, to see records that repeat those before
        jobs = pl.concat([self._before.filter(wanted), self._last.filter(wanted)])
        profile = profile_of(jobs, list(self._logs), self._begun, after=first)
        begins = pl.Series([begin_us * 1000 or None for _, (_, begin_us) in sorted(self._begun.items())], dtype=TIME)
        return replace(
            profile,
            spans=profile.spans.with_columns(run=pl.lit(self._starts.run, pl.Int32)),
            ranks=profile.ranks.with_columns(begun_ns=begins),
        )

    def _number(self) -> None:
        """Gives the new records their steps. All but `_is_open` are numbered for good."""
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
        is_open = jobs.with_columns(newest=pl.col("step").max().over("member")).select(_is_open()).to_series()
        self._last = jobs.filter(is_open)
        self._open = self._last.with_columns(announced=pl.col("step").min().over("member")).select(*COLUMNS)
        before = pl.concat([self._before, jobs.filter(~is_open)])
        newest = self._last.group_by("member").agg(newest=pl.col("step").max())
        dropped = last_dropped(pl.col("newest"), self._keep, self._taken, MOST_STEPS)
        kept = before.select("member", "step").join(newest, on="member", how="left", maintain_order="left")
        self._before = before.filter(kept.select((pl.col("step") > dropped).fill_null(True)).to_series()).rechunk()

    def _start(self, jobs: pl.DataFrame) -> None:
        """Notes which ranks were started, and drops the steps before that."""
        runs = dict(jobs.group_by("member").agg(pl.col("run").max()).iter_rows())
        again = {member for member, run in runs.items() if run and member in self._begun}
        new = runs.keys() - self._begun
        newest = jobs.filter(pl.col("run") == pl.col("run").max().over("member"), pl.col("start_us") > 0)
        begins = dict(newest.group_by("member").agg(pl.col("start_us").min()).iter_rows())
        for member in again | new:
            times, _ = self._begun.get(member, (0, 0))
            self._begun[member] = times + runs[member], begins.get(member, 0)
        followed = {log.number for log in self._logs.values() if log.followed}
        seen = {member for member in again if member // MOST_RANKS in followed}  # not long before this watch
        if self._starts.add(again | new, seen):
            self._taken = None
        if again:
            kept = pl.col("member").is_in(list(self._starts.started - again))
            self._before = self._before.filter(kept)

    def _replace(self, log: _Log) -> None:
        """Drops the records of a log that are not older than those it begins with now."""
        log.replaced = False
        new = drain({log.number: log.scanner})
        first = new.filter(pl.col("start_us") > 0)["start_us"].min()
        older = (pl.col("end_us") <= first) if first is not None else pl.lit(True)
        of_log = pl.col("log") == log.number
        before = self._before.filter(of_log).with_columns(announced=pl.col("step").min().over("member"))
        before = before.select(*COLUMNS)
        kept = pl.concat([before, self._open.filter(of_log)]).filter(older)
        self._open = pl.concat([self._open.filter(~of_log), kept, new])
        self._before, self._last = self._before.filter(~of_log), self._last.filter(~of_log)
        self._stale = True


def _is_open() -> pl.Expr:
    """Whether the steps of later records may depend on a job, which has the `newest` step of its rank: those of the
    last step that is more than forwards, and later ones; where several ranks write into one log, of the last two that
    all of them have, by which `reader.jobs_of` tells the ranks apart. Of a step that its optimizer has closed these are
    enough: the optimizer, and those that begin first and end last."""
    of_rank, start, end, newest = pl.col("member"), pl.col("start_us"), pl.col("end_us"), pl.col("newest")
    several = of_rank.n_unique().over("log") > 1
    trained = pl.coalesce(pl.col("step").filter(TRAINS).max().over("member"), newest)
    common = pl.min_horizontal(trained, pl.max_horizontal(newest.min().over("log") - 1, newest - MOST_STEPS))
    is_last = pl.col("step") >= pl.when(several).then(common).otherwise(trained)
    closed = pl.col("job").last().over("member") == "optimizer"
    timed = is_last & (start > 0) & (end >= start)
    outermost = (start == start.filter(timed).min().over("member")) | (end == end.filter(timed).max().over("member"))
    return is_last & (several | ~closed | of_rank.is_last_distinct() | outermost)
