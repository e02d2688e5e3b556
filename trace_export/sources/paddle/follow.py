"""Worker logs that grow: what is appended is read once, and the blocks of the last steps are kept.

Only whole lines are read, so half a record waits for its rest. A log that was copied anew with what it had before goes
on where it was; one whose content is another (truncated, rotated, replaced) is read from its beginning, and takes the
place of the records that are not older than its own.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from io import BufferedReader

import polars as pl

from trace_export.errors import SourceError
from trace_export.files import open_file
from trace_export.model import Profile
from trace_export.sources.paddle.log_scanner import LONGEST, MARKER, READ_BYTES, RECORDS, Scanner
from trace_export.sources.paddle.reader import jobs_of, profile_of
from trace_export.sources.source import Source

SEEN_BYTES = 256
"""So many of the last bytes that were read must stand there still when the log is read on."""
MOST_RECORDS = 250_000
"""From so many new records on, old steps are dropped before more is read."""
COLUMNS = {**RECORDS, "log": pl.Int32()}


@dataclass
class _Log:
    """How far a log was read: `offset`, the first byte not read; `seen`, the last bytes before it; `pending`, the
    beginning of a line of which the end is missing. `number` is its place among the logs."""

    source: Source
    number: int
    scanner: Scanner = field(default_factory=Scanner)
    offset: int = 0
    seen: bytes = b""
    pending: bytes = b""
    replaced: bool = False

    def read(self) -> pl.DataFrame:
        """The records that were appended, at most about MOST_RECORDS at once."""
        with open_file(self.source.path) as file:
            size = os.fstat(file.fileno()).st_size
            if size < self.offset or not self._goes_on(file):
                self.offset, self.seen, self.pending, self.replaced = 0, b"", b"", True
            file.seek(self.offset)
            found = 0
            while found < MOST_RECORDS and (piece := file.read(READ_BYTES)):
                base = self.offset - len(self.pending)
                self.offset += len(piece)
                self.seen = (self.seen + piece)[-SEEN_BYTES:]
                text = bytearray(self.pending + piece)
                end = text.rfind(b"\n") + 1
                if not end and len(text) > READ_BYTES:  # no line of a log, but memory must not grow with it
                    end = max(text.rfind(MARKER), len(text) - LONGEST)
                self.scanner.take(text, 0, end, base)
                self.pending = bytes(text[end:])
                found += text.count(b"\n")
        return self.scanner.drain()

    def _goes_on(self, file: BufferedReader) -> bool:
        file.seek(self.offset - len(self.seen))
        return file.read(len(self.seen)) == self.seen


class Follower:
    """The blocks of the last `keep` steps in worker logs, on each rank."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._logs: dict[Source, _Log] = {}
        self._records = pl.DataFrame(schema=COLUMNS)

    def advance(self, source: Source) -> bool:
        """Reads what was appended to a log; whether there were records. Raises SourceError where it cannot be read."""
        log = self._logs.setdefault(source, _Log(source, len(self._logs)))
        any_new = False
        try:
            while (new := log.read()).height:
                any_new = True
                self._add(new, log.number, replaced=log.replaced)
                log.replaced = False
                if new.height >= MOST_RECORDS:
                    self._recent()
        except OSError as error:
            what = f"cannot be read ({error.strerror or error})"
            raise SourceError(source.path, what, "check that it is there and readable") from error
        return any_new

    def _add(self, new: pl.DataFrame, number: int, *, replaced: bool) -> None:
        if replaced:
            first = new.filter(pl.col("start_us") > 0)["start_us"].min()
            older = (pl.col("end_us") <= first) if first is not None else pl.lit(True)
            self._records = self._records.filter((pl.col("log") != number) | older)
        self._records = pl.concat([self._records, new.with_columns(log=pl.lit(number, pl.Int32))])

    def profile(self) -> Profile:
        """The tables of all logs, without what belongs to no step."""
        return profile_of(self._recent(), list(self._logs))

    def _recent(self) -> pl.DataFrame:
        """The jobs of the last run and its last steps on each rank; all others are dropped for good. The run is 0."""
        jobs = jobs_of(self._records, list(self._logs))
        last_run = pl.col("run") == pl.col("run").max().over("member")
        jobs = jobs.filter(last_run & pl.col("step").is_not_null())
        jobs = jobs.filter(pl.col("step") > pl.col("step").max().over("member") - self._keep)
        first = pl.col("step").min().over("member")
        self._records = jobs.with_columns(announced=first).select(*COLUMNS)
        return jobs.with_columns(run=pl.lit(0, pl.Int32))
