"""CSV files as lazy frames of text, separated by commas, semicolons or tabs; memory grows with their longest line and
not with the file."""

from __future__ import annotations

import re
from io import BytesIO
from pathlib import Path

import polars as pl

from trace_export.errors import SourceError, path_text
from trace_export.files import open_text
from trace_export.model import Note, Profile
from trace_export.units import EPOCH_NS

LONGEST_LINE = 1 << 20
"""In bytes, of the first; the rows of profilers have some hundreds."""
MOST_COLUMNS = 1000
SUFFIXES = (".csv", ".tsv")
SEPARATORS = (",", ";", "\t")
"""Spreadsheets write others than a comma, as the language of the system has it."""

SEPARATOR_LINE = re.compile(rb'(?i)^(?:\xef\xbb\xbf)?"?sep=([,;\t])"?\s*$')
"""Excel takes the separator from such a first line, and other programs write it for Excel."""
ROUNDED = r"(?i)^\d(?:[.,]\d{0,14})?E\+?\d\d$"
"""A time as spreadsheets show it: they keep at most 15 digits of a number, and a unix time in ns has 19."""
KEPT_NS = 10_000
"""Of a unix time 15 digits are multiples of this, in any unit."""
FEW = 8
"""So few different times may all be such multiples by chance."""


def scan(path: Path) -> pl.LazyFrame:
    """All columns of the table as String, null where a row has nothing; read when it is collected. The first separator
    that its first line has, or that it says (`sep=;`), is that of all lines.

    Raises SourceError when the file cannot be read or its first line is that of no table.
    """
    try:
        with open_text(path) as text:
            file = text if text.seekable() else BytesIO(text.read())
            line = file.readline(LONGEST_LINE)
            said = SEPARATOR_LINE.match(line)
            line = file.readline(LONGEST_LINE) if said else line
            file.seek(0)
            separator = said[1].decode() if said else next((each for each in SEPARATORS if each.encode() in line), ",")
            if len(line) == LONGEST_LINE or line.count(separator.encode()) >= MOST_COLUMNS:
                raise SourceError(path, "is not a table: its first line is longer than any table's")
            if not line.strip():
                return pl.LazyFrame()
            return pl.scan_csv(
                file,
                separator=separator,
                skip_rows=1 if said else 0,
                infer_schema=False,
                encoding="utf8-lossy",
                truncate_ragged_lines=True,
                missing_columns="insert",
                extra_columns="ignore",
            )
    except OSError as error:
        raise SourceError(path, f"cannot be read ({error.strerror})") from error


def refuse_rounded(times: pl.Series, path: Path) -> None:
    """Raises SourceError where all times of a column are rounded."""
    given = times.drop_nulls() if times.dtype == pl.String else times.clear()
    if len(given) and given.str.strip_chars().str.contains(ROUNDED).all():
        what = f"has times that a spreadsheet has rounded: {given[0].strip()} in the column {times.name}"
        raise SourceError(path, what, "give the table as it was before a spreadsheet saved it")


def with_doubts_of_rounding(profile: Profile, path: Path) -> Profile:
    """`profile` with a warning where its unix times have 15 digits, as spreadsheets save longer numbers. Times in whole
    tenths of a millisecond, or coarser, were made so."""
    times = pl.concat([profile.spans["start_ns"], profile.spans["end_ns"]]).drop_nulls()
    unix, kept = (times >= EPOCH_NS).all(), (times % KEPT_NS == 0).all()
    if not (unix and kept) or times.n_unique() <= FEW or (times % (10 * KEPT_NS) == 0).all():
        return profile
    text = "all times are multiples of 10 µs, as if a spreadsheet had kept 15 digits of them: each may be off by 10 µs"
    return profile.with_notes([Note("times-rounded", "warning", text, path_text(path))])
