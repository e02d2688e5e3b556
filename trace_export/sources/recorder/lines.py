"""Bytes → blocks and headers: the lines that `trace_export.instrument` appends to the file of a rank.

A line that begins with `#` is a header, a JSON object; any other is a block:

    kind,step,microbatch,chunk,microbatch_b,chunk_b,start,length,origin

Numbers that are not known are left empty; times are nanoseconds of the clock that the header relates to unix time. The
origin stands last, so that a line that was cut off anywhere is seen to be no whole one.
Format: docs/collect/recorder.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from io import BytesIO
from pathlib import Path
from typing import IO, NamedTuple

import orjson
import polars as pl

from trace_export.errors import SourceError
from trace_export.files import open_text
from trace_export.model import INT, TEXT, TIME, Schema
from trace_export.sources.shared.growing import lines

VERSION = 1
VERSION_FIELD = "trace_export_blocks"
MAGIC = b'#{"' + VERSION_FIELD.encode() + b'":'
"""Every header begins with this."""

PIECE_BYTES = 8 << 20
LONGEST_LINE = 1 << 16
"""In bytes; a block has some fifty, a header some hundreds."""
LATEST_NS = 1 << 62
"""The latest time in a header. A time and a length of a block are less than half of it, so that their sum fits into 64
bits."""
LARGEST_LABEL = 10**9 - 1
"""The largest number of a step, a micro-batch or a chunk."""
LARGEST_NUMBER = 10**7
"""Ranks and sizes of a job are smaller."""

NUMBERS = ("step", "microbatch", "chunk", "microbatch_b", "chunk_b")
TIMES = ("start", "length")
FIELDS = ("kind", *NUMBERS, *TIMES, "origin", "more")
ORIGINS = {"h": "host", "d": "device"}
BLOCKS: Schema = {"kind": TEXT, **dict.fromkeys(NUMBERS, INT), **dict.fromkeys(TIMES, TIME), "origin": TEXT}
"""A block; `start` and `length` in ns of the recorder's clock, `origin` as in `model.SPANS`."""
NEXT = b"#@"
"""A line between the lines of two files."""
KINDS = ("F", "B", "W", "FB", "OPT")

_HEADER = re.compile(rb"^#.*$", re.MULTILINE)
_NUMBER = rb"(\d{0,9})"
_BLOCK = re.compile(rb"(?:F|B|W|FB|OPT)," + rb",".join([_NUMBER] * len(NUMBERS)) + rb",\d{1,19},\d{1,19},[hd]")


@dataclass(frozen=True)
class Header:
    """The facts that the process states; None where it did not know it then. `clock_ns` and `unix_ns` are one
    moment."""

    host: str
    boot: str | None
    pid: int
    clock_ns: int
    unix_ns: int
    rank: int | None = None
    world: int | None = None
    device: int | None = None
    stage: int | None = None
    dp: int | None = None
    tp: int | None = None
    cp: int | None = None
    pp_size: int | None = None
    dp_size: int | None = None
    tp_size: int | None = None
    cp_size: int | None = None

    @property
    def process(self) -> tuple[object, ...]:
        """The fields that are the same in all headers of a process."""
        return self.host, self.boot, self.pid, self.clock_ns, self.unix_ns

    @property
    def clock(self) -> str:
        """The name of the clock that the times are of: machines may have the same name, but not the same boot."""
        return self.host if self.boot is None else f"{self.host}@{self.boot}"

    def then(self, later: Header) -> Header:
        """The header, completed by a later header of the same process."""
        news = {f.name: value for f in fields(later) if (value := getattr(later, f.name)) is not None}
        return replace(self, **news)


class WrongVersion(ValueError):
    """A header of another version of the format."""


def header(line: bytes) -> Header | None:
    """The header in a line; None where the line is not one. Raises WrongVersion."""
    if not line.startswith(MAGIC):
        return None
    try:
        content = orjson.loads(line[1:])
    except orjson.JSONDecodeError:
        return None
    version = content.pop(VERSION_FIELD)
    if version != VERSION:
        raise WrongVersion(f"version {version}" if type(version) is int else "an unknown version")
    values = {f.name: content.get(f.name) for f in fields(Header)}
    texts = {name: values.pop(name) for name in ("host", "boot")}
    times = {name: values.pop(name) for name in ("clock_ns", "unix_ns")}
    valid = (
        _is_name(texts["host"])
        and (texts["boot"] is None or _is_name(texts["boot"]))
        and all(type(t) is int and 0 <= t < LATEST_NS for t in times.values())
        and type(values["pid"]) is int
        and all(n is None or (type(n) is int and 0 <= n < LARGEST_NUMBER) for k, n in values.items())
    )
    return Header(**texts, **times, **values) if valid else None


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) < 256 and value.isprintable()


class Lines(NamedTuple):
    """Whole lines of a file, whose headers were taken; `before`: the number of lines before them."""

    scanner: Scanner
    text: bytes
    before: int


@dataclass
class Scanner:
    """The blocks and headers in the lines of a file, piece by piece. `header` holds all known facts of the process;
    `malformed` counts the lines that are neither a block nor a header, `first_malformed` is the number of the first,
    from 1."""

    path: Path
    header: Header | None = None
    malformed: int = 0
    first_malformed: int = 0
    _lines: int = 0

    def take(self, text: bytes) -> pl.DataFrame:
        """The blocks (BLOCKS) in whole lines. Raises SourceError for a header of another version or process."""
        return blocks_of([self.take_headers(text)]).drop("lines")

    def take_headers(self, text: bytes) -> Lines:
        """The same lines for `blocks_of`. Raises SourceError as `take` does."""
        matches = _HEADER.finditer(text) if b"#" in text else ()
        broken = sum(not self._take_header(match[0]) for match in matches)
        lines = Lines(self, text, self._lines)
        self._lines += text.count(b"\n")
        self.count(broken, lines)
        return lines

    def count(self, malformed: int, lines: Lines) -> None:
        """Counts that this many of these lines are malformed."""
        if malformed and not self.malformed:
            self.first_malformed = lines.before + _first_malformed(lines.text)
        self.malformed += malformed

    def _take_header(self, line: bytes) -> bool:
        """Whether it is one."""
        try:
            now = header(line)
        except WrongVersion as error:
            what = f"was written in {error} of the format, and this trace-export reads version {VERSION}"
            raise SourceError(self.path, what, "use the trace-export that recorded it, or a newer one") from error
        if now is None:
            return False
        before = self.header or now
        if now.process != before.process or (before.rank is not None and now.rank not in (None, before.rank)):
            what = "holds the blocks of several processes"
            raise SourceError(self.path, what, "give the file of each as it was recorded")
        self.header = before.then(now)
        return True


def blocks_of(parts: Sequence[Lines]) -> pl.DataFrame:
    """The blocks in lines of several files: BLOCKS, and `lines`, a place in `parts`. Lines that are neither a block nor
    a header nor empty are counted."""
    marked = [b"," * (len(FIELDS) - 1)]  # the first line says how many columns there are
    for part in parts:
        text = part.text.replace(NEXT, b"##") if NEXT in part.text else part.text
        marked += [NEXT, text.removesuffix(b"\n")]
    rows = pl.read_csv(
        b"\n".join(marked),
        has_header=False,
        schema=dict.fromkeys(FIELDS, TEXT),
        quote_char=None,
        encoding="utf8-lossy",
        truncate_ragged_lines=True,
    )
    rows = rows.with_columns(lines=(pl.col("kind") == NEXT.decode()).fill_null(False).cum_sum() - 1)
    is_header = pl.col("kind").str.starts_with("#").fill_null(False)
    rows = rows.filter(~is_header & ~pl.all_horizontal(pl.col(*FIELDS).is_null()))
    typed = rows.with_columns(pl.col(*NUMBERS).cast(INT, strict=False), pl.col(*TIMES).cast(TIME, strict=False))
    numbers = pl.all_horizontal(
        (rows[name].is_null() | typed[name].is_between(0, LARGEST_LABEL)).fill_null(False) for name in NUMBERS
    )
    times = pl.all_horizontal(pl.col(name).is_between(0, LATEST_NS // 2).fill_null(False) for name in TIMES)
    named = pl.col("kind").is_in(KINDS) & pl.col("origin").is_in(list(ORIGINS)) & pl.col("more").is_null()
    checked = typed.with_columns(good=numbers & times & named.fill_null(False))
    good = checked.filter("good")
    if good.height < checked.height:
        for number, count in checked.filter(~pl.col("good")).group_by("lines").len().iter_rows():
            parts[number].scanner.count(count, parts[number])
    origin = pl.col("origin").replace_strict(ORIGINS, return_dtype=TEXT)
    return good.select(*BLOCKS, "lines").with_columns(origin)


def _first_malformed(text: bytes) -> int:
    """The number, from 1, of the first line that is neither a block nor a header."""
    for number, line in enumerate(text.split(b"\n"), 1):
        if line and not _BLOCK.fullmatch(line) and not (line.startswith(b"#") and header(line)):
            return number
    return 1


def pieces(path: Path, most: int = 0) -> Iterator[bytes]:
    """The lines of a file, some MB at a time; the last may have no end. With `most` the whole lines in this many bytes.

    Raises SourceError where a line has no end, OSError.
    """
    with open_text(path) as file:
        start: IO[bytes] = BytesIO(file.read(most)) if most else file
        cut = most and file.peek(1)
        yield from lines(start, PIECE_BYTES, LONGEST_LINE, too_long(path), last=not cut)


def too_long(path: Path) -> Callable[[bytes], int]:
    """Raises the error for a line of more than `LONGEST_LINE` bytes."""

    def refuse(_: bytes) -> int:
        raise SourceError(path, f"holds a line of more than {LONGEST_LINE:,} bytes", "record it again")

    return refuse
