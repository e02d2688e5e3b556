"""CSV files as lazy frames of text, separated by commas, semicolons or tabs; memory grows with their longest line and
not with the file."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import polars as pl

from trace_export.errors import SourceError
from trace_export.files import open_text

LONGEST_LINE = 1 << 20
"""In bytes, of the first; the rows of profilers have some hundreds."""
MOST_COLUMNS = 1000
SUFFIXES = (".csv", ".tsv")
SEPARATORS = (",", ";", "\t")
"""Spreadsheets write others than a comma, as the language of the system has it."""

ROUNDED = r"(?i)^\d(?:[.,]\d{0,14})?E\+?\d\d$"
"""A time as spreadsheets show it: they keep at most 15 digits of a number, and a unix time in ns has 19."""


def scan(path: Path) -> pl.LazyFrame:
    """All columns of the table as String, null where a row has nothing; read when it is collected. The first separator
    that its first line has is that of all lines.

    Raises SourceError when the file cannot be read or its first line is that of no table.
    """
    try:
        with open_text(path) as text:
            file = text if text.seekable() else BytesIO(text.read())
            line = file.readline(LONGEST_LINE)
            file.seek(0)
            separator = next((each for each in SEPARATORS if each.encode() in line), ",")
            if len(line) == LONGEST_LINE or line.count(separator.encode()) >= MOST_COLUMNS:
                raise SourceError(path, "is not a table: its first line is longer than any table's")
            if not line.strip():
                return pl.LazyFrame()
            return pl.scan_csv(
                file,
                separator=separator,
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
