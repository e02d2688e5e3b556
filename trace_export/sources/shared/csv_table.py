"""CSV files as lazy frames of text, read in pieces: memory grows neither with the file nor with its lines."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import polars as pl
from polars.io.plugins import register_io_source

from trace_export.errors import SourceError
from trace_export.files import open_file

PIECE_BYTES = 8 << 20
LONGEST_LINE = 1 << 20
"""In bytes; the rows of profilers have some hundreds."""
MOST_COLUMNS = 1000


def scan(path: Path) -> pl.LazyFrame:
    """All columns of the table as String, null where a row has nothing; read when it is collected.

    Raises SourceError, now or then, when the file cannot be read or holds lines that no table has.
    """
    names = _columns(path)

    def pieces(
        columns: list[str] | None, predicate: pl.Expr | None, rows: int | None, batch_rows: int | None
    ) -> Iterator[pl.DataFrame]:
        left = rows
        for body in _bodies(path):
            lazy = _read(path, body, names).select(columns or names)
            frame = (lazy if predicate is None else lazy.filter(predicate)).collect()
            yield frame if left is None else frame.head(left)
            if left is not None and (left := left - frame.height) <= 0:
                return

    return register_io_source(pieces, schema=dict.fromkeys(names, pl.String()))


def _columns(path: Path) -> list[str]:
    """The names in the first line, as Polars makes them unique."""
    try:
        with open_file(path) as file:
            line = file.readline(LONGEST_LINE)
    except OSError as error:
        raise SourceError(path, f"cannot be read ({error.strerror})") from error
    if len(line) == LONGEST_LINE or line.count(b",") >= MOST_COLUMNS:
        raise SourceError(path, "is no table: its first line is longer than any table's")
    return _read(path, line).collect_schema().names() if line.strip() else []


def _bodies(path: Path) -> Iterator[bytes]:
    """The lines after the first, some MB at a time."""
    with open_file(path) as file:
        file.readline()
        rest = b""
        while block := file.read(PIECE_BYTES):
            body = rest + block
            end = _end_of_row(body)
            rest = body[end:]
            if len(rest) > LONGEST_LINE:
                raise SourceError(path, f"holds a line of more than {LONGEST_LINE:,} bytes", "collect or copy it again")
            if end:
                yield body[: end - 1]
        if rest:
            yield rest


def _end_of_row(body: bytes) -> int:
    """Just behind the last line break of `body`, which begins with a row, that is in no quoted value: an even number of
    quotation marks lies before. 0 if there is none."""
    end = body.rfind(b"\n") + 1
    quotes = body.count(b'"', 0, end)
    while quotes % 2:
        before = body.rfind(b"\n", 0, end - 1) + 1
        quotes -= body.count(b'"', before, end)
        end = before
    return end


def _read(path: Path, content: bytes, names: list[str] | None = None) -> pl.LazyFrame:
    """`content` as a table of the columns `names`, or of those that its first line names."""
    schema = None if names is None else dict.fromkeys(names, pl.String())
    return pl.scan_csv(
        io.BytesIO(content),
        has_header=names is None,
        schema=schema,
        infer_schema=False,
        encoding="utf8-lossy",
        truncate_ragged_lines=True,
        extra_columns="ignore",
        missing_columns="insert",
    )
