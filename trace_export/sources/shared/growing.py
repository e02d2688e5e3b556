"""Whole lines of files, also of files that grow; the last steps of these are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import polars as pl

from trace_export.files import open_file

SEEN_BYTES = 256
"""This many of the first and of the last bytes that were read must stand there still when a file is read on."""


def lines(
    file: IO[bytes], piece_bytes: int, longest: int, cut: Callable[[bytes], int], *, last: bool = True
) -> Iterator[bytes]:
    """What follows in a file in pieces of whole lines; with `last` also a line at its end that has none. Of more than
    the `longest` line `cut` says how much is a piece of its own, or raises an error."""
    rest = b""
    while block := file.read(piece_bytes):
        whole, newline, rest = (rest + block).rpartition(b"\n")
        if newline:
            yield whole + newline
        if len(rest) > longest:
            at = cut(rest)
            yield rest[:at]
            rest = rest[at:]
    if rest and last:
        yield rest


@dataclass
class Tail:
    """How far a file that grows was read: `offset`, the first byte not read, which begins a line, unless that is too
    long; `first`, the first bytes of the file, which say who writes it, and `seen`, the last ones before `offset`."""

    offset: int = 0
    first: bytes = b""
    seen: bytes = b""

    def goes_on(self, path: Path) -> bool:
        """Whether the file at `path` still begins with the part that was read."""
        with open_file(path) as file:
            if file.read(len(self.first)) != self.first:
                return False
            file.seek(self.offset - len(self.seen))
            return file.read(len(self.seen)) == self.seen

    def lines(
        self, path: Path, piece_bytes: int, longest: int, cut: Callable[[bytes], int]
    ) -> Iterator[tuple[int, bytes]]:
        """The whole lines that were appended, in pieces, and where each begins; an incomplete line is held back. A
        caller that stops before the end reads on there."""
        with open_file(path) as file:
            file.seek(self.offset)
            for text in lines(file, piece_bytes, longest, cut, last=False):
                begin = self.offset
                if len(self.first) < SEEN_BYTES:
                    self.first += text[: SEEN_BYTES - len(self.first)]
                self.offset += len(text)
                self.seen = (self.seen + text)[-SEEN_BYTES:]
                yield begin, text

    def begin_anew(self) -> None:
        """The file holds something else now."""
        self.offset, self.first, self.seen = 0, b"", b""


class Starts:
    """Counts the runs of a job by the starts of its ranks, whatever numbers them: `run`, and `started`, those that were
    started in it."""

    def __init__(self) -> None:
        self.run = 0
        self.started: set[int] = set()

    def add(self, numbers: Set[int], again: Set[int]) -> bool:
        """`numbers` were started, those in `again` while they were followed; whether a new run has begun: one of these
        was started in this run before."""
        begins = bool(again & self.started)
        if begins:
            self.run += 1
            self.started = set()
        self.started |= numbers
        return begins

    def leave_out(self, lives: Mapping[int, tuple[int, int, int]]) -> None:
        """Those that are of an earlier run, because they were started less often than others and had ended before these
        began: a job that was started again may have died before all its ranks were there. `lives`: of each how often
        it was started again, and when its last start began and ended."""
        most = max((again for again, *_ in lives.values()), default=0)
        latest = max((begun for again, begun, _ in lives.values() if again == most), default=0)
        self.started -= {number for number, (again, _, ended) in lives.items() if again < most and ended < latest}


def last_dropped(newest: pl.Expr, keep: int, taken: int | None, most: int) -> pl.Expr:
    """The last step that is not kept of a rank whose `newest` is there: `keep` steps are, and those after `taken`, the
    last one that nobody will ask for any more, but not more than `most`."""
    if taken is None:
        return newest - keep
    return pl.max_horizontal(pl.min_horizontal(newest - keep, pl.lit(taken)), newest - most)
