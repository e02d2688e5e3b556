"""The recorder's files while they grow: what is appended is read once, and the blocks of the last steps are kept.

Only whole lines are read. A file that has reached its limit becomes `….earlier`, and what is left of it is read there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl

from trace_export.errors import SourceError
from trace_export.files import is_file
from trace_export.model import Note, Profile
from trace_export.sources.recorder.find import EARLIER, header_of
from trace_export.sources.recorder.lines import (
    BLOCKS,
    LONGEST_LINE,
    PIECE_BYTES,
    Header,
    Lines,
    Scanner,
    blocks_of,
    too_long,
)
from trace_export.sources.recorder.reader import files, malformed, profile_of
from trace_export.sources.shared.batch import as_source_error
from trace_export.sources.shared.growing import Starts, Tail, last_dropped
from trace_export.sources.source import Source

MOST_STEPS = 100
"""This many steps are kept at most, however long nobody asks for them."""
MOST_UNNUMBERED = 20_000
"""This many blocks are kept of a rank whose steps are not numbered."""
MOST_BYTES = 16 << 20
"""After this many new bytes, old steps are dropped before more is read."""
COLUMNS = {**BLOCKS, "file": pl.UInt32()}


@dataclass
class _File:
    """The part of the file of a rank that was read. `number` is its place among the files."""

    source: Source
    number: int
    scanner: Scanner
    tail: Tail = field(default_factory=Tail)

    @property
    def header(self) -> Header | None:
        return self.scanner.header

    def read(self, path: Path) -> Iterator[Lines]:
        """The whole lines that were appended to the file that is at `path` now."""
        for _, text in self.tail.lines(path, PIECE_BYTES, LONGEST_LINE, too_long(path)):
            yield self.scanner.take_headers(text)


class Follower:
    """The blocks of the last `keep` steps in the recorder's files, on each rank, and of those that were not asked for
    yet. Where a rank is started again, its steps before are dropped; when that happens to a rank for the second time, a
    new run has begun, and the other ranks count once they are started again too."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._files: dict[Path, _File] = {}
        self._blocks = pl.DataFrame(schema=COLUMNS)
        self._new: list[tuple[int, Lines]] = []
        self._bytes = 0
        """Lines of files by their number, and how many bytes they have."""
        self._starts = Starts()
        """Of the ranks, by the numbers of their files."""
        self._again: Counter[Path] = Counter()
        """How often the rank of a file was started again."""
        self._taken: int | None = None
        """The last step that is not asked for any more."""

    def advance(self, source: Source) -> bool:
        """Reads the part that was appended to a file; whether there was anything. Raises SourceError where it cannot be
        read."""
        any_new = False
        if source.path.name.endswith(EARLIER):  # of a start before the one that is followed
            self._again.setdefault(source.path.with_name(source.path.name.removesuffix(EARLIER)), 1)
            return False
        with as_source_error(source.path):
            for file, lines in self._read(source):
                any_new = True
                self._new.append((file.number, lines))
                self._bytes += len(lines.text)
                if self._bytes > MOST_BYTES:
                    self._gather()
        if (file := self._files[source.path]).header is None and file.tail.offset:
            raise SourceError(source.path, "no header of the recorder in this file", "record it again")
        return any_new

    def _read(self, source: Source) -> Iterator[tuple[_File, Lines]]:
        """Reads the new part of the file of a rank, and of its earlier file."""
        path, earlier = source.path, source.path.with_name(source.path.name + EARLIER)
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = _File(source, len(self._files), Scanner(path))
            self._starts.add({file.number}, set())
            is_next = len(files(path)) > 1
        else:
            file.source = source
            is_next = not file.tail.goes_on(path)
            now = header_of(path) if is_next else file.header
            restarted = now is not None and file.header is not None and now.process != file.header.process
            if is_next and (restarted or not (is_file(earlier) and file.tail.goes_on(earlier))):
                self._replace(file, same=not restarted and now is not None and file.header is not None)
                is_next = False
        if is_next:
            yield from ((file, lines) for lines in file.read(earlier))
            file.tail.begin_anew()
        yield from ((file, lines) for lines in file.read(path))

    def _replace(self, file: _File, *, same: bool) -> None:
        """The file holds something else now: an older state of itself, of the `same` process, or what another start of
        it recorded. What it held before is dropped."""
        self._gather()
        self._blocks = self._blocks.filter(pl.col("file") != file.number)
        if not same:
            file.scanner = Scanner(file.source.path)
            self._again[file.source.path] += 1
            if self._starts.add({file.number}, {file.number}):
                self._taken = None
        file.tail.begin_anew()

    def profile(self, after: tuple[int, int] | None = None) -> Profile:
        """The tables of the steps after that one (run and step), or of the last ones, with all ranks."""
        self._taken = after[1] if after is not None and after[0] == self._starts.run else None
        self._gather()
        headers = self._newest()
        if not headers:
            return Profile()
        numbers = [file.number for file, _ in headers]
        self._leave_out(headers)
        counted = [number for number in numbers if number in self._starts.started]
        blocks = self._blocks.filter(pl.col("file").is_in(counted))
        if self._taken is not None:
            blocks = blocks.filter(pl.col("step") > self._taken)
        number_of_file = pl.col("file").replace_strict(numbers, range(len(numbers)), return_dtype=pl.UInt32)
        profile = profile_of([(file.source, header) for file, header in headers], blocks.with_columns(number_of_file))
        notes: list[Note] = [note for file, _ in headers for note in malformed(file.scanner)]
        spans = profile.spans.with_columns(run=pl.lit(self._starts.run, pl.Int32))
        return replace(profile, spans=spans).with_notes(notes)

    def _leave_out(self, headers: Sequence[tuple[_File, Header]]) -> None:
        """Leaves the ranks out that are of an earlier run."""
        ends = dict(self._blocks.group_by("file").agg((pl.col("start") + pl.col("length")).max()).iter_rows())
        self._starts.leave_out(
            {
                file.number: (self._again[file.source.path], now.unix_ns, now.unix_ns + end - now.clock_ns)
                for file, now in headers
                if (end := ends.get(file.number)) is not None
            }
        )

    def _newest(self) -> list[tuple[_File, Header]]:
        """The files that have a header; of several of a rank, that of its last start."""
        newest: dict[int | None, tuple[_File, Header]] = {}
        for file in self._files.values():
            header = file.header
            if header is not None:
                rank = file.source.rank if header.rank is None else header.rank
                last = newest.get(rank)
                if last is None or last[1].unix_ns <= header.unix_ns:
                    newest[rank] = file, header
        return list(newest.values())

    def _gather(self) -> None:
        """Takes the blocks that were read, and drops all but the last steps of each rank."""
        if self._new:
            numbers = [number for number, _ in self._new]
            blocks = blocks_of([lines for _, lines in self._new])
            number = pl.col("lines").replace_strict(range(len(numbers)), numbers, return_dtype=pl.UInt32)
            self._blocks = pl.concat([self._blocks, blocks.select(*BLOCKS, file=number)])
            self._new, self._bytes = [], 0
        newest = pl.col("step").max().over("file")
        oldest = last_dropped(newest, self._keep, self._taken, MOST_STEPS)
        unnumbered = newest.is_null() & (pl.int_range(pl.len(), 0, -1).over("file") <= MOST_UNNUMBERED)
        self._blocks = self._blocks.filter((pl.col("step") > oldest).fill_null(False) | unnumbered)
