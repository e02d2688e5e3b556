"""Read-only SQLite → Polars. A database is never changed and nothing is left beside it.

Numbers come through ADBC in whole columns. Texts are read as bytes (`CAST(x AS BLOB)`) and decoded with `decoded`, or
row by row with `texts` where the table is small: profilers store strings that are not UTF-8, which Polars must not see.

Two traps that a caller's SQL has to mind: ADBC types a column by its first batch, so a column that may begin with many
NULLs wants `COALESCE(x, -1)`; and `end`, `group` are keywords, so names are quoted.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, nullcontext
from functools import lru_cache
from itertools import cycle
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import polars as pl

from trace_export.errors import SourceError
from trace_export.files import EMPTY, open_file
from trace_export.scratch import scratch_folder
from trace_export.sources.shared import sqlite_beginning
from trace_export.sources.shared.names import LONGEST_NAME
from trace_export.sources.shared.sqlite_beginning import quoted

if TYPE_CHECKING:
    from adbc_driver_sqlite import dbapi as adbc

MAGIC = b"SQLite format 3\0"
BATCH_ROWS = 1 << 18
AHEAD_ROWS = 1 << 16
"""The rows of a piece that is read ahead: few enough that all readers have work in tables of 100,000 rows."""
HEADER_BYTES = 100
PIECE_ROWS = 1024
"""The rows of a table that `ReadOptions.beginning` counts."""
READERS = 2
"""How many pieces of a table are read at a time. SQLite releases the GIL while it does."""

_OPENING = Lock()
"""Beginnings are opened one after the other. Opening is many short queries; each gives the GIL away and takes
it back, and SQLite has one lock for all memory it allocates: two threads that open take longer than one for all."""
_AGAIN = "export or copy it again"
_LONGEST_REASON = 200


class Database:
    """An open SQLite file; use it in a `with` statement.

    With `beginning`, a number of rows, a table of events that has more shows no others than its first, and so do those
    of their `parts`, see `sqlite_beginning`; `shortened` are the names of such tables in lower case.

    Raises SourceError when `path` is missing, unreadable, empty, no SQLite database, cut short, or locked by a writer.
    """

    def __init__(self, path: Path, beginning: int = 0, parts: Mapping[str, str] | None = None) -> None:
        from adbc_driver_sqlite import dbapi  # here, since detectors import this file and most runs open no database

        self._adbc = dbapi
        self.path = path
        self.shortened: frozenset[str] = frozenset()
        self._beginning = beginning
        self._parts = parts or {}
        self._views_of_beginning: list[str] = []
        self._stack = ExitStack()

    def __enter__(self) -> Database:
        try:
            with _OPENING if self._beginning else nullcontext():
                self._open()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def _open(self) -> None:
        locks = _check_header(self.path)
        wal, journal = (self.path.with_name(self.path.name + ending) for ending in ("-wal", "-journal"))
        for companion in (wal, journal):
            if companion.exists() and not companion.is_file():  # SQLite would open a pipe, and wait
                raise SourceError(self.path, f"{companion.name} beside it is not a regular file", "remove that")
        try:
            if wal.exists() and wal.stat().st_size > 0:
                self._uri = f"file:{_address(self._copied(wal))}"
            else:
                if locks:
                    _check_lock(self.path)
                self._uri = f"file:{_address(self.path)}?mode=ro&immutable=1"
            self._rows = self._stack.enter_context(closing(sqlite3.connect(self._uri, uri=True)))
            self._rows.text_factory = _text
            self._schema = self._read_schema()
            if self._beginning:
                views = sqlite_beginning.views(self._rows, self._schema, self._beginning, self._parts)
                self.shortened, self._views_of_beginning = frozenset(views), list(views.values())
            self._columns = [self._connected()]
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            raise _refused(self.path, error) from error

    def _read_schema(self) -> dict[str, frozenset[str]]:
        """Table → columns, all in lower case."""
        sql = "SELECT t.name, c.name FROM sqlite_master AS t, pragma_table_info(t.name) AS c WHERE t.type = 'table'"
        columns: dict[str, set[str]] = defaultdict(set)
        for table, column in self._rows.execute(sql).fetchall():
            columns[table.lower()].add(column.lower())
        return {table: frozenset(names) for table, names in columns.items()}

    def _connected(self) -> adbc.Connection:
        try:
            connection = self._stack.enter_context(closing(self._adbc.connect(self._uri)))
            with closing(connection.cursor()) as cursor:
                for view in self._views_of_beginning:
                    cursor.execute(view)
            return connection
        except self._adbc.Error as error:
            raise _refused(self.path, error) from error

    def _copied(self, wal: Path) -> Path:
        """A copy of the database and its write-ahead log, which SQLite may then put together without touching ours."""
        folder = self._stack.enter_context(scratch_folder())
        for file in (self.path, wal):
            shutil.copyfile(file, folder / file.name)
        return folder / self.path.name

    def tables(self) -> frozenset[str]:
        """The names of all tables, in lower case."""
        return frozenset(self._schema)

    def has(self, table: str, *columns: str) -> bool:
        """Whether there is such a table with these columns. Case does not count, as in SQL."""
        existing = self._schema.get(table.lower())
        return existing is not None and existing >= {column.lower() for column in columns}

    def frame(self, sql: str, real: Collection[str] = ()) -> pl.DataFrame:
        """The rows of `sql`: Int64 columns, but Float64 those named in `real`.

        Raises SourceError when the query fails or a column holds anything else.
        """
        return self._frame(self._columns[0], sql, real, ())

    def frames(self, table: str, sql: str, blobs: Collection[str] = ()) -> Iterator[pl.DataFrame]:
        """As `frame`, but in pieces of bounded size, in the order of `table`: {where} in `sql` stands for the condition
        that picks a piece. Columns named in `blobs` are Binary. Pieces are read ahead. A beginning is one piece.
        Nothing where there is no such table."""
        if not self.has(table):
            return
        conditions = ["TRUE"] if table.lower() in self.shortened else [*self.chunks(table, AHEAD_ROWS)]
        if len(conditions) < 2:
            yield from (self._frame(self._columns[0], sql.format(where=where), (), blobs) for where in conditions)
            return
        self._columns += [self._connected() for _ in range(READERS - len(self._columns))]
        with ThreadPoolExecutor(READERS) as pool:
            ahead: deque[Future[pl.DataFrame]] = deque()
            for where, connection in zip(conditions, cycle(self._columns), strict=False):
                if len(ahead) == READERS:  # so that the connection's last piece has arrived
                    yield ahead.popleft().result()
                ahead.append(pool.submit(self._frame, connection, sql.format(where=where), (), blobs))
            while ahead:
                yield ahead.popleft().result()

    def _frame(
        self, connection: adbc.Connection, sql: str, real: Collection[str], blobs: Collection[str]
    ) -> pl.DataFrame:
        try:
            with closing(connection.cursor()) as cursor:
                cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)})
                cursor.execute(sql)
                frame = pl.DataFrame(cursor.fetch_arrow())
        except (self._adbc.Error, pl.exceptions.PolarsError, UnicodeDecodeError) as error:
            raise _refused(self.path, error) from error
        allowed = {pl.Float64: real, pl.Binary: blobs, pl.String: ()}
        for name, dtype in frame.schema.items():
            if name not in allowed.get(dtype.base_type(), (name,)):
                held = {pl.Float64: "fractions", pl.Binary: "bytes", pl.String: "text"}[dtype.base_type()]
                raise SourceError(self.path, f'column "{name}" holds {held} instead of whole numbers', _AGAIN)
        return frame.with_columns(pl.col(name).cast(pl.Float64) for name in real) if real else frame

    def texts(self, sql: str, parameters: Collection[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of `sql` as tuples of numbers, str and None, undecodable bytes replaced. For small tables and single
        values."""
        try:
            rows = self._rows.execute(sql, tuple(parameters)).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise _refused(self.path, error) from error
        return [tuple(_text(value) if isinstance(value, bytes) else value for value in row) for row in rows]

    def names(self, table: str, ids: Iterable[int], longest: int = LONGEST_NAME) -> dict[int, str]:
        """The first characters of the entries of a table of names (id, value) with these ids, of several with one id
        the first; looked up by id, for the table may hold a million call stacks."""
        wanted = sorted(set(ids))
        value = f"substr(value, 1, {longest})"
        sql = f"SELECT id, {value} FROM {table} WHERE id IN (SELECT value FROM json_each(?)) ORDER BY rowid DESC"
        return dict(self.texts(sql, [json.dumps(wanted)])) if wanted else {}

    def first(
        self, table: str, wanted: str, *needed: str, rest: str = "", parameters: Collection[Any] = ()
    ) -> tuple[Any, ...] | None:
        """What is `wanted` of the first row of a table, the `rest` of the query being this; None where there is no row,
        or none of the columns `needed`."""
        if not self.has(table, *needed):
            return None
        return next(iter(self.texts(f"SELECT {wanted} FROM {table} {rest} LIMIT 1", parameters)), None)

    def last(self, table: str, column: str) -> int | None:
        """The value of a column in the last row of a table, or None where that is not a whole number."""
        rows = self.texts(f"SELECT {column} FROM main.{quoted(table)} ORDER BY rowid DESC LIMIT 1")
        return rows[0][0] if rows and isinstance(rows[0][0], int) else None

    def attempt(self, sql: str, steps: int) -> list[tuple[Any, ...]] | None:
        """As `texts`, but None when SQLite's machine needs more than about this many steps."""
        self._rows.set_progress_handler(lambda: 1, steps)
        try:
            return self._rows.execute(sql).fetchall()
        except sqlite3.Error as error:
            if "interrupted" in str(error):
                return None
            raise _refused(self.path, error) from error
        finally:
            self._rows.set_progress_handler(None, 0)

    def chunks(self, table: str, rows: int = BATCH_ROWS) -> Iterator[str]:
        """Conditions `rowid BETWEEN a AND b` that together cover `table` in pieces of at most `rows` rows.

        Where the ids have more gaps than a table that was written front to back, the end of each piece is looked up:
        else there might be a piece for each row. Raises SourceError where damaged ids would never come to an end.
        """
        name = quoted(table)
        ((first, end),) = self.texts(f"SELECT (SELECT min(rowid) FROM {name}), (SELECT max(rowid) FROM {name})")
        dense = first is not None and end - first < self.path.stat().st_size  # a row takes more than a byte
        while first is not None:
            last = first + rows - 1
            if first <= end:  # else the last row number is damaged
                last = min(last, end)  # of two bounds, that of a view of a beginning too, SQLite takes either
            if not dense:
                last_row = self.texts(
                    f"SELECT rowid FROM {name} WHERE rowid >= {first} ORDER BY rowid LIMIT 1 OFFSET {rows - 1}"
                )
                last = last_row[0][0] if last_row else end
            yield f"rowid BETWEEN {first} AND {last}"
            before = first
            ((first,),) = self.texts(f"SELECT min(rowid) FROM {name} WHERE rowid > {last}")
            if first is not None and first <= max(before, last):
                raise SourceError(self.path, f"is damaged: the rows of {table} are out of order", _AGAIN)


def tables_of(path: Path) -> frozenset[str]:
    """The tables of a database in lower case, for a first look: empty when it is not a database or cannot be read.
    Ignores a log beside it."""
    try:
        status = path.stat()
    except OSError:
        return frozenset()
    return _tables_of(path, (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))


@lru_cache(maxsize=4096)
def _tables_of(path: Path, version: tuple[int, ...]) -> frozenset[str]:
    """Of this version of the file: the detectors of several formats look at the same files."""
    try:
        with open_file(path) as file:
            if file.read(len(MAGIC)) != MAGIC:
                return frozenset()
        with closing(sqlite3.connect(f"file:{_address(path)}?mode=ro&immutable=1", uri=True)) as connection:
            connection.text_factory = _text
            return frozenset(name.lower() for (name,) in connection.execute("SELECT name FROM sqlite_master"))
    except (OSError, sqlite3.Error, UnicodeDecodeError):
        return frozenset()


def decoded(column: pl.Series) -> pl.Series:
    """A Binary column as String, bytes that are not UTF-8 replaced."""
    try:
        return column.cast(pl.String)
    except pl.exceptions.ComputeError:
        raw = column.drop_nulls().unique()
        repaired = pl.Series([_text(value) for value in raw], dtype=pl.String)
        return column.replace_strict(raw, repaired, default=None, return_dtype=pl.String)


def overlapping(window_ns: tuple[int, int] | None, start: str, end: str, earlier_ns: int = 0) -> str:
    """The condition in SQL that a row from column `start` to column `end` touches the window (None: any does). The
    columns' clock shows `earlier_ns` less than the window's."""
    if window_ns is None:
        return "TRUE"
    first, last = (t - earlier_ns for t in window_ns)
    return f"({end} >= {first} AND {start} <= {last})"


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


def _address(path: Path) -> str:
    return quote(bytes(path.absolute()))


def _check_header(path: Path) -> bool:
    """The first 100 bytes: magic, page size (16), change counter (24), pages (28), counter when that was valid (92).
    Returns whether a writer locks the database (18 is 1, a rollback journal): in WAL mode readers are never shut out,
    and even looking may create files.

    Source: https://www.sqlite.org/fileformat2.html#the_database_header
    """
    try:
        with open_file(path) as file:
            header = file.read(HEADER_BYTES)
        size = path.stat().st_size
    except OSError as error:
        raise SourceError(path, f"cannot be opened ({error.strerror})") from error
    if not header:
        raise SourceError(path, EMPTY, _AGAIN)
    if not header.startswith(MAGIC):
        raise SourceError(path, "is not an SQLite database")
    page = int.from_bytes(header[16:18])
    needed = (65536 if page == 1 else page) * int.from_bytes(header[28:32])
    if len(header) < HEADER_BYTES or (header[24:28] == header[92:96] and size < needed):
        raise SourceError(path, f"is truncated ({size} of {max(needed, HEADER_BYTES)} bytes)", _AGAIN)
    return header[18] == 1


def _check_lock(path: Path) -> None:
    """Raises sqlite3.OperationalError while a writer is at work. An immutable connection would not notice."""
    with closing(sqlite3.connect(f"file:{_address(path)}?mode=ro", uri=True, timeout=0)) as connection:
        connection.execute("PRAGMA schema_version").fetchone()


def _refused(path: Path, error: Exception) -> SourceError:
    """SQLite's message in the user's words. The messages name columns and tables, never stored values."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    text = text.rpartition("[SQLite] ")[2].removeprefix("Failed to prepare query: ")[:_LONGEST_REASON]
    if "locked" in text:
        return SourceError(path, "is locked: another program is writing it", "wait until that has finished")
    if "readonly" in text:
        return SourceError(path, "holds an unfinished transaction, left by a program that was interrupted", _AGAIN)
    if "malformed" in text or "not a database" in text or isinstance(error, UnicodeDecodeError):
        return SourceError(path, "is damaged", _AGAIN)
    if "Type mismatch" in text:
        return SourceError(path, "holds a column whose values are not all of one type", _AGAIN)
    if "no such column" in text:
        return SourceError(path, f"lacks the column {text.rpartition(' ')[2]}", _AGAIN)
    return SourceError(path, f"cannot be read ({text})")
