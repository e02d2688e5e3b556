"""Folders of `nsys export --type parquetdir` and `arrowdir`: a file a table, with the columns of the SQLite export.

They are put into a temporary SQLite file, the columns that count only, and read as an export.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import adbc_driver_sqlite.dbapi as adbc
import polars as pl

from trace_export.errors import SourceError
from trace_export.files import open_file
from trace_export.sources.nsys.session import is_export
from trace_export.sources.shared.parquet_pages import checked

SUFFIXES = (".parquet", ".arrow")
REMEDY = "export it again with nsys export --type parquetdir"
ROWS = 1 << 18
"""Rows that are taken at a time."""

_TASK = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
_LARGE = {
    "NVTX_EVENTS": ("start", "end", "eventType", "text", "textId", "globalTid", "domainId", "binaryData"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end", "globalTid", "correlationId", "nameId"),
    "CUPTI_ACTIVITY_KIND_KERNEL": (*_TASK, "shortName", "demangledName"),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (*_TASK, "graphId"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (*_TASK, "copyKind"),
    "CUPTI_ACTIVITY_KIND_MEMSET": _TASK,
    "StringIds": ("id", "value"),
    "ThreadNames": ("nameId", "globalTid"),
}  # fmt: skip
"""Tables of many rows or columns → the columns that are read."""
_SMALL = (
    "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_SYSTEM_ENV", "TARGET_INFO_CUDA_DEVICE", "TARGET_INFO_GPU",
    "META_DATA_EXPORT", "META_DATA_CAPTURE", "EXPORT_META_DATA", "DIAGNOSTIC_EVENT", "MPI_RANKS",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES",
)  # fmt: skip


def is_table_folder(files: Iterable[str]) -> bool:
    """Whether files of these names are the tables of an export."""
    return is_export(frozenset(Path(name).stem.lower() for name in files if name.endswith(SUFFIXES)))


def write_database(folder: Path, target: Path) -> None:
    """Puts the tables in `folder` into a new SQLite file. Raises SourceError when one of them cannot be read."""
    with closing(sqlite3.connect(target)) as db:  # what fails leaves a file that is thrown away
        db.execute("PRAGMA journal_mode = off")
    with closing(adbc.connect(f"file:{target}")) as connection, closing(connection.cursor()) as cursor:
        for table in (*_LARGE, *_SMALL):
            mode = "create"
            for piece in _pieces(folder, table):
                try:
                    cursor.adbc_ingest(table, piece, mode=mode)  # type: ignore[arg-type]
                except adbc.Error as error:
                    raise SourceError(folder, f"{table} cannot be put into a database", REMEDY) from error
                mode = "append"
        connection.commit()


def _pieces(folder: Path, table: str) -> Iterator[pl.DataFrame]:
    """The rows of a table, none where there is no file for it; the first piece may be empty."""
    path = next((p for suffix in SUFFIXES if (p := folder / f"{table}{suffix}").exists()), None)
    if path is None:
        return
    try:
        with open_file(path) as file:
            if path.suffix == ".parquet":
                checked(file)
        rows = pl.scan_parquet(path) if path.suffix == ".parquet" else pl.scan_ipc(path)
        schema = rows.collect_schema()
        wanted = [name for name in _columns(schema) if name in _LARGE.get(table, tuple(schema))]
        rows = rows.select(_stored(name, schema[name]) for name in wanted)
        height = rows.select(pl.len()).collect().item()
        if height > path.stat().st_size:  # even packed, a row has a time or an id of its own
            raise SourceError(folder, f"{path.name}: so small a file cannot hold {height:,} rows", REMEDY)
        for at in range(0, max(height, 1), ROWS):
            yield rows.slice(at, ROWS).collect()
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise SourceError(folder, f"{path.name} cannot be read as a table of Nsight Systems", REMEDY) from error


def _columns(names: Iterable[str]) -> list[str]:
    """Those that a column can have in SQLite, where letters have no case; a NUL in a name ends the process in Arrow."""
    spelled: dict[str, str] = {}
    for name in names:
        if name.isidentifier():
            spelled.setdefault(name.lower(), name)
    return list(spelled.values())


def _stored(name: str, dtype: pl.DataType) -> pl.Expr:
    """A column as SQLite has it: whole numbers are signed."""
    if dtype == pl.UInt64():
        return pl.col(name).reinterpret(signed=True)
    if dtype.is_integer() or dtype == pl.Boolean():
        return pl.col(name).cast(pl.Int64)
    if dtype == pl.Binary() or dtype.is_float():
        return pl.col(name)
    return pl.col(name).cast(pl.String)
