"""Folders of `nsys export --type parquetdir` and `arrowdir`: a file a table, with the columns of the SQLite export.

They are put into a temporary SQLite file, which is read as an export is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

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
        tables = {name: table for name in (*_EVENTS, *_OTHERS) if (table := _Table.of(self._folder, name))}
        self.path = self._stack.enter_context(scratch_folder()) / "tables.sqlite"
        with closing(sqlite3.connect(self.path)) as db:  # what fails leaves a file that is thrown away
            db.execute("PRAGMA journal_mode = off")
        with closing(self._adbc.connect(f"file:{self.path}")) as connection, closing(connection.cursor()) as cursor:
            for name, table in tables.items():
                try:
                    table.put_into(cursor)
                except self._adbc.Error as error:
                    raise SourceError(self._folder, f"{name} cannot be put into a database", REMEDY) from error
            connection.commit()
        super()._open()


@dataclass(frozen=True)
class _Table:
    """A table in a file: the columns that are read, as SQLite has them."""

    path: Path
    rows: pl.LazyFrame
    height: int

    @classmethod
    def of(cls, folder: Path, table: str) -> _Table | None:
        """None where there is no file for it."""
        path = next((p for suffix in SUFFIXES if (p := folder / f"{table}{suffix}").exists()), None)
        if path is None:
            return None
        try:
            with open_file(path) as file:
                if path.suffix == ".parquet":
                    checked(file)
            rows = pl.scan_parquet(path) if path.suffix == ".parquet" else pl.scan_ipc(path)
            rows = rows.select(_stored_columns(rows.collect_schema(), _EVENTS.get(table)))
            height = rows.select(pl.len()).collect().item()
        except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise _unreadable(path) from error
        if height > path.stat().st_size:  # even packed, a row has a time or an id of its own
            raise SourceError(folder, f"{path.name}: so small a file cannot hold {height:,} rows", REMEDY)
        return cls(path, rows, height)

    def put_into(self, cursor: Any) -> None:
        """Makes the table in a database."""
        mode: Literal["create", "append"] = "create"
        for at in range(0, max(self.height, 1), ROWS):
            try:
                cursor.adbc_ingest(self.path.stem, self.rows.slice(at, ROWS).collect(), mode=mode)
            except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
                raise _unreadable(self.path) from error
            mode = "append"


def _unreadable(path: Path) -> SourceError:
    return SourceError(path.parent, f"{path.name} cannot be read as a table of Nsight Systems", REMEDY)


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
