"""Text log → records: finds the job records and the step announcements of Paddle's static-graph executor in a log.

A log is bytes in any encoding with any line ends; a record may follow other text on its line, or another record, so
records are searched and never split by lines. The file is read in chunks that overlap by the longest possible record:
time is linear in the file's size, memory does not grow with it nor with the length of a line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from operator import itemgetter
from pathlib import Path

import numpy as np
import polars as pl

from trace_export.files import end_of, open_text
from trace_export.units import thousandths

READ_BYTES = 256 << 10
FRAME_ROWS = 16_384
"""Rows per flush into columns; trades memory for speed."""
LONGEST = 512
"""More bytes than a record can have; the bounds in RECORD see to that."""

MARKER = b"Profiler "
NEEDLES = (b"Profiler Info: Job (", b"Profiler start at step ")
"""Matches of RECORD begin with these; long, because a search may skip as many bytes as its needle has."""
TRIES = 64
"""How many bytes "P" of a chunk are looked at before it is searched for the needles: a search for a single byte takes a
fortieth of the time, and most text of a training log has few."""
RECORD = re.compile(
    rb"Profiler (?:"
    rb"start at step (\d{1,9}) and end at step ?(\d{0,9})|"
    rb"Info: Job \((?:\d{1,19}\), type = ([^,\r\n]{1,64}), micro_batch_id = (\d{1,9}),"
    rb" job_start_time = (\d{1,15}\.\d{6})(?!\d), job_end_time = (\d{1,15}\.\d{6})(?!\d))?)"
)
"""A record, an announcement, or (all groups empty) the beginning of a record that is broken."""
Match = tuple[bytes, bytes, bytes, bytes, bytes, bytes]
_TYPE = itemgetter(2)
"""The type of job of a record; empty where it is no whole one."""

PREFIX = re.compile(rb"[IWEF]\d{4} [\d:.]+\s+(\d{1,9})( \S+\] )$")
PREFIX_LENGTH = 96

RECORDS: dict[str, pl.DataType] = {
    "thread": pl.Int32(), "job": pl.Categorical(), "microbatch": pl.Int32(), "start_us": pl.Int64(),
    "end_us": pl.Int64(), "announced": pl.Int32(), "announcement": pl.Int32(), "section": pl.Int32(),
}  # fmt: skip
"""A record; times are unix microseconds, 0 as printed. `thread` is null where the log's own prefix is missing.
`announced` is the first profiled step that the log last announced before the record (null: none), `section` counts the
changes of that text, and `announcement` those after which steps do not go on: another run."""

Said = tuple[int | None, int, int]
"""The last announcement of a log: `announced`, `announcement` and `section` of RECORDS."""


def scan(path: Path, pieces: int = 0) -> tuple[Scanner, bool]:
    """The records in the log at `path`, or in its first `pieces` of READ_BYTES, and whether that is all of it. Raises
    OSError when it cannot be read."""
    scanner = Scanner()
    buffer = bytearray(READ_BYTES + PREFIX_LENGTH + LONGEST)
    filled = start = base = (
        0  # `start`: searched up to there; `base`: the offset in the file of the buffer's first byte
    )
    with open_text(path) as file:
        while True:
            got = file.readinto(memoryview(buffer)[filled:])
            filled += got
            end = filled
            if got:  # what begins in the last bytes may go on in the next block: leave it to the next round
                last = buffer.find(MARKER, max(start, filled - LONGEST), filled)
                end = last if last >= 0 else max(start, filled - len(MARKER))
            scanner.take(buffer, start, end, base)
            enough = 0 < pieces * READ_BYTES <= base + filled and bool(file.peek(1))
            if not got or enough:
                return scanner, not enough
            keep = max(end - PREFIX_LENGTH, 0)
            buffer[: filled - keep] = buffer[keep:filled]
            filled, start, base = filled - keep, end - keep, base + keep


class Scanner:
    """The records of a log, in the file's order, and the state between two chunks of it. `malformed` counts the broken
    records, `first_malformed` is the byte offset of the first; `headless`: records precede the first announcement."""

    def __init__(self) -> None:
        self.frames: list[pl.DataFrame] = []
        self.records: list[Match] = []  # found, but not in a frame yet
        self.threads: list[int | None] = []
        self.said: list[tuple[Said, int]] = []  # and for how many records, up to the last announcement
        self.completed = 0
        self.malformed = 0
        self.first_malformed = -1
        self.text: tuple[bytes, bytes] | None = None
        self.now: Said = (None, 0, 0)
        self.headless = False

    def take(self, buffer: bytearray, start: int, end: int, base: int) -> None:
        """Everything in buffer[start:end]; the bytes before `start` are there for the prefix's sake."""
        start = _first(buffer, start, end)
        if start < 0:  # found out much faster than by the pattern, and most chunks of a log hold no record
            return
        records: list[Match] = RECORD.findall(buffer, start, end)
        if records and all(map(_TYPE, records)):  # the usual case: records and nothing else
            self.records += records
            self.threads += _threads(buffer, start, end, len(records))
        else:
            self._take_each(records, buffer, start, end, base)
        if len(self.records) >= FRAME_ROWS:
            self._flush()

    def _take_each(self, records: list[Match], buffer: bytearray, start: int, end: int, base: int) -> None:
        """Takes the matches in buffer[start:end], also announcements and broken records."""
        broken = sum(not (match[0] or match[2]) for match in records)
        if broken and not self.malformed:
            at = next(m.start() for m in RECORD.finditer(buffer, start, end) if m[1] is None and m[3] is None)
            self.first_malformed = base + at
        self.malformed += broken
        before = len(self.records)
        for match in records:
            if match[2]:
                self.records.append(match)
            elif match[0]:
                self._announce(match[0], match[1])
        if len(self.records) > before:
            self.threads += _threads(buffer, start, end, len(self.records) - before)

    def _announce(self, first: bytes, last: bytes) -> None:
        self._complete()
        _, announcement, section = self.now
        if self.text is not None and self.text != (first, last):
            section += 1
            announcement += int(first) < int(self.text[1] or int(self.text[0]) + 1)
        self.headless |= self.text is None and bool(self.said or self.frames)
        self.text = (first, last)
        self.now = int(first), announcement, section

    def _complete(self) -> None:
        """Gives the last announcement to the records since it."""
        if since := len(self.records) - self.completed:
            self.said.append((self.now, since))
            self.completed = len(self.records)

    def move(self, other: Scanner) -> None:
        """Gives the records that are in no frame yet to another one."""
        self._complete()
        other.records += self.records
        other.threads += self.threads
        other.said += self.said
        other.completed += self.completed
        self.records, self.threads, self.said, self.completed = [], [], [], 0

    def _flush(self) -> None:
        self._complete()
        self.frames.append(_frame(self.records, self.threads, self.said))
        self.records, self.threads, self.said, self.completed = [], [], [], 0

    @property
    def waiting(self) -> int:
        """How many records wait to be drained."""
        return len(self.records) + sum(frame.height for frame in self.frames)

    def steps(self) -> tuple[int, int] | None:
        """The profiled steps as announced, the first and the one after the last; None where the log announces none or
        several ranges, or has records before that: then it lacks its beginning, and its steps cannot be numbered for
        sure."""
        if self.text is None or self.now[2] or not self.text[1] or self.headless:
            return None
        first, end = int(self.text[0]), int(self.text[1])
        return (first, end) if first < end else None


def drain(scanners: Mapping[int, Scanner]) -> pl.DataFrame:
    """The records that wait in the scanners of several logs: RECORDS, and `log`, the key of each. The last ones of all
    logs become columns together, which costs no more than those of one log."""
    frames, logs = [], []
    waiting = Scanner()
    for log, scanner in scanners.items():
        frames += [frame.with_columns(log=pl.lit(log, pl.Int32)) for frame in scanner.frames]
        scanner.frames = []
        logs += [log] * len(scanner.records)
        scanner.move(waiting)
    if waiting.records:
        waiting._flush()
        frames.append(waiting.frames[0].with_columns(log=pl.Series(logs, dtype=pl.Int32)))
    return pl.concat(frames) if frames else pl.DataFrame(schema={**RECORDS, "log": pl.Int32()})


def _first(buffer: bytearray, start: int, end: int) -> int:
    """The first place in buffer[start:end] where a needle is, or -1."""
    for _ in range(TRIES):
        start = buffer.find(MARKER[:1], start, end)
        if start < 0 or buffer.startswith(NEEDLES, start, end):
            return start
        start += 1
    return min((at for needle in NEEDLES if (at := buffer.find(needle, start, end)) >= 0), default=-1)


def _frame(records: list[Match], threads: list[int | None], said: list[tuple[Said, int]]) -> pl.DataFrame:
    """`records` with the other columns of RECORDS."""
    _, _, jobs, microbatches, starts, ends = zip(*records, strict=True)
    facts, counts = zip(*said, strict=True)
    announced = pl.DataFrame(facts, dict.fromkeys(("announced", "announcement", "section"), pl.Int32), orient="row")
    of_record = announced[np.repeat(np.arange(len(counts)), counts)]
    texts = {job: job.decode("utf-8", "replace") for job in set(jobs)}
    raw = pl.DataFrame(
        [
            pl.Series("thread", threads, pl.Int32),
            pl.Series("job", [texts[job] for job in jobs], pl.String),
            pl.Series("microbatch", microbatches, pl.Binary),
            pl.Series("start", starts, pl.Binary),
            pl.Series("end", ends, pl.Binary),
            *of_record,
        ]
    )
    return raw.select(
        "thread",
        pl.col("job").cast(pl.Categorical),
        pl.col("microbatch").cast(pl.String).cast(pl.Int32),
        # In milliseconds; the clock has 1 µs, the digits below are noise of the double.
        *(thousandths(pl.col(name).cast(pl.String)).alias(f"{name}_us") for name in ("start", "end")),
        "announced",
        "announcement",
        "section",
    )


def _threads(buffer: bytearray, start: int, end: int, records: int) -> list[int | None]:
    """The thread ids in the log's prefixes before the records of buffer[start:end], in order; null without a prefix."""
    first = next(m for m in RECORD.finditer(buffer, start, end) if m[3] is not None)
    prefix = PREFIX.search(buffer, max(0, first.start() - PREFIX_LENGTH), first.start())
    if (
        prefix
        and buffer.count(b" " + prefix[1] + prefix[2] + b"Profiler Info: Job (", max(0, start - PREFIX_LENGTH), end)
        == records
    ):
        return [int(prefix[1])] * records  # the usual case: one thread
    threads: list[int | None] = []
    for match in RECORD.finditer(buffer, start, end):
        if match[3] is not None:
            prefix = PREFIX.search(buffer, max(0, match.start() - PREFIX_LENGTH), match.start())
            threads.append(int(prefix[1]) if prefix else None)
    return threads


def last_ends(path: Path) -> list[bytes]:
    """The ends of the last records of a log, those in its last piece, as printed. Raises OSError."""
    return [match[5] for match in RECORD.findall(end_of(path, 0, READ_BYTES)) if match[2]]


def latest_us(ends: Sequence[Sequence[bytes]]) -> list[int | None]:
    """The latest of each log's `ends`, None if it has none. The texts of all become numbers together."""
    texts = pl.DataFrame({"end": pl.Series(list(chain.from_iterable(ends)), dtype=pl.Binary).cast(pl.String)})
    times = texts.select(thousandths(pl.col("end")))["end"]
    latest = (
        times.slice(stop - len(each), len(each)).max()
        for each, stop in zip(ends, accumulate(map(len, ends)), strict=True)
    )
    return [time if isinstance(time, int) else None for time in latest]


def line_of(path: Path, offset: int) -> int:
    """The number, from 1, of the line that holds the byte at `offset`."""
    line, left = 1, offset
    with open_text(path) as file:
        while left > 0 and (block := file.read(min(READ_BYTES, left))):
            line += block.count(b"\n")
            left -= len(block)
    return line
