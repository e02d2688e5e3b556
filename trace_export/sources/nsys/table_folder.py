"""Folders of `nsys export --type parquetdir` and `arrowdir`: a file a table, with the columns of the SQLite export.

They are put into a temporary SQLite file, which is read as an export is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal

import polars as pl

from trace_export.errors import SourceError
from trace_export.files import open_file
from trace_export.scratch import scratch_folder
from trace_export.sources.nsys.session import is_export
from trace_export.sources.shared.parquet_pages import checked
from trace_export.sources.shared.sqlite import Database

SUFFIXES = (".parquet", ".arrow")
REMEDY = "export it again with nsys export --type parquetdir"
ROWS = 1 << 18
"""Rows that are taken at a time."""
MOST_BYTES = 256
"""Bytes of a payload that are taken."""

_TASK = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")
_EVENTS = {
    "NVTX_EVENTS": ("start", "end", "eventType", "text", "textId", "globalTid", "domainId", "binaryData"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end", "globalTid", "correlationId", "nameId"),
    "CUPTI_ACTIVITY_KIND_KERNEL": (*_TASK, "shortName", "demangledName"),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (*_TASK, "graphId"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (*_TASK, "copyKind"),
    "CUPTI_ACTIVITY_KIND_MEMSET": _TASK,
}  # fmt: skip
"""Tables of events → the columns that are read."""
_OTHERS = (
    "StringIds", "ThreadNames",
    "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_SYSTEM_ENV", "TARGET_INFO_CUDA_DEVICE", "TARGET_INFO_GPU",
    "META_DATA_EXPORT", "META_DATA_CAPTURE", "EXPORT_META_DATA", "DIAGNOSTIC_EVENT", "MPI_RANKS",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES",
)  # fmt: skip


def is_table_folder(files: Iterable[str]) -> bool:
    """Whether files of these names are the tables of an export."""
    return is_export(frozenset(Path(name).stem.lower() for name in files if name.endswith(SUFFIXES)))


class TableFolder(Database):
    """The tables in `folder` as a database, with `beginning` as there; use it in a `with` statement. Raises SourceError
    when one of them cannot be read."""

    def __init__(self, folder: Path, beginning: int = 0) -> None:
        super().__init__(folder, beginning)
        self._folder = folder

    def _open(self) -> None:
        self.path = self._stack.enter_context(scratch_folder()) / "tables.sqlite"
        with closing(sqlite3.connect(self.path)) as db:  # what fails leaves a file that is thrown away
            db.execute("PRAGMA journal_mode = off")
        with closing(self._adbc.connect(f"file:{self.path}")) as connection, closing(connection.cursor()) as cursor:
            for name in (*_EVENTS, *_OTHERS):
                mode: Literal["create", "append"] = "create"
                for rows in _rows(self._folder, name):
                    try:
                        cursor.adbc_ingest(name, rows, mode=mode)
                    except self._adbc.Error as error:
                        raise SourceError(self._folder, f"{name} cannot be put into a database", REMEDY) from error
                    mode = "append"
            connection.commit()
        super()._open()


def _rows(folder: Path, table: str) -> Iterator[pl.DataFrame]:
    """The rows of a table in pieces, one at least, with the columns that are read, as SQLite has them; nothing where
    there is no file for it."""
    path = next((p for suffix in SUFFIXES if (p := folder / f"{table}{suffix}").exists()), None)
    if path is None:
        return
    with _reading(path):
        with open_file(path) as file:
            if path.suffix == ".parquet":
                checked(file)
        rows = pl.scan_parquet(path) if path.suffix == ".parquet" else pl.scan_ipc(path)
        rows = rows.select(_stored_columns(rows.collect_schema(), _EVENTS.get(table)))
        height = rows.select(pl.len()).collect().item()
    if height > path.stat().st_size:  # even packed, a row has a time or an id of its own
        raise SourceError(folder, f"{path.name}: so small a file cannot hold {height:,} rows", REMEDY)
    for at in range(0, max(height, 1), ROWS):
        with _reading(path):
            piece = rows.slice(at, ROWS).collect()
        yield piece


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        what = f"{path.name} cannot be read as a table of Nsight Systems"
        raise SourceError(path.parent, what, REMEDY) from error


def _stored_columns(schema: pl.Schema, wanted: Sequence[str] | None) -> list[pl.Expr]:
    """The wanted columns (None: all), under the names that they have there: in SQLite letters have no case. A NUL in a
    name ends the process in Arrow."""
    names = {name.lower(): name for name in wanted or ()}
    columns: dict[str, pl.Expr] = {}
    for name, dtype in schema.items():
        stored = names.get(name.lower()) if wanted else name
        if stored and stored.isidentifier() and stored.lower() not in columns:
            columns[stored.lower()] = _stored(name, dtype).alias(stored)
    return list(columns.values())


def _stored(name: str, dtype: pl.DataType) -> pl.Expr:
    """A column as SQLite has it: whole numbers are signed."""
    if dtype == pl.UInt64():
        return pl.col(name).reinterpret(signed=True)
    if dtype.is_integer() or dtype == pl.Boolean():
        return pl.col(name).cast(pl.Int64)
    if dtype == pl.Binary():
        return pl.col(name).bin.head(MOST_BYTES)
    if dtype.is_float():
        return pl.col(name)
    return pl.col(name).cast(pl.String)
