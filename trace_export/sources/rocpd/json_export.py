"""The JSON of `rocprofv3 --output-format json`, put into a temporary database with the tables of rocpd.

One object `rocprofiler-sdk-tool` with a list of processes. Records name their kind and operation by number (the names
are in `strings`), and a ROCTx range its message by its correlation id. The environment is not in it. Source:
ROCm/rocm-systems, projects/rocprofiler-sdk/source/lib/output/generateJSON.cpp.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import polars as pl

from trace_export.errors import SourceError
from trace_export.files import open_file
from trace_export.model import Schema
from trace_export.scratch import scratch_folder
from trace_export.sources.rocpd.tables import MOST_PROCESSES

SUFFIX = ".json"
MOST_BYTES = 1 << 30
"""JSON is parsed as a whole, in some times its size of memory."""

_BEGIN = b'"rocprofiler-sdk-tool"'
_TOP = "rocprofiler-sdk-tool"
_INT, _TEXT = pl.Int64(), pl.String()
_HANDLE = pl.Struct({"handle": _INT})
_RECORD: Schema = {
    "kind": _INT, "operation": _INT, "thread_id": _INT, "correlation_id": pl.Struct({"internal": _INT}),
    "start_timestamp": _INT, "end_timestamp": _INT,
}  # fmt: skip
_DISPATCH: Schema = {
    "dispatch_info": pl.Struct({"kernel_id": _INT, "agent_id": _HANDLE, "queue_id": _HANDLE}), "stream_id": _HANDLE,
}  # fmt: skip
_PROCESS: Schema = {
    "metadata": pl.Struct({
        "node": pl.Struct({"hostname": _TEXT, "machine_id": _TEXT}), "pid": _INT, "init_time": _INT,
    }),
    "agents": pl.List(pl.Struct({"id": _HANDLE, "type": _INT, "logical_node_type_id": _INT})),
    "strings": pl.Struct({
        "buffer_records": pl.List(pl.Struct({"kind": _TEXT, "operations": pl.List(_TEXT)})),
        "marker_api": pl.List(pl.Struct({"key": _INT, "value": _TEXT})),
    }),
    "kernel_symbols": pl.List(pl.Struct({"kernel_id": _INT, "formatted_kernel_name": _TEXT})),
    "buffer_records": pl.Struct({
        "kernel_dispatch": pl.List(pl.Struct(_RECORD | _DISPATCH)),
        **{kind: pl.List(pl.Struct(_RECORD)) for kind in ("hip_api", "marker_api", "rccl_api")},
        "memory_copy": pl.List(pl.Struct(_RECORD | {"stream_id": _HANDLE})),
    }),
}  # fmt: skip
"""What is read of a process; whatever else there is, is passed over."""
_GPU = 2
_TABLES = {
    "metadata": "tag, value", "info_node": "hostname, machine_id", "info_process": "pid, init",
    "info_agent": "type, type_index", "info_kernel_symbol": "display_name", "string": "string",
    "event": "category_id, stack_id, extdata", "region": 'tid, start, "end", name_id, event_id',
    "kernel_dispatch": 'tid, agent_id, kernel_id, queue_id, stream_id, start, "end", event_id',
    "memory_copy": 'stream_id, start, "end", name_id, event_id',
}  # fmt: skip


def is_json(path: Path) -> bool:
    """Whether a file begins as rocprofv3's JSON does."""
    try:
        with open_file(path) as file:
            return _BEGIN in file.read(200)
    except OSError:
        return False


@contextmanager
def as_database(path: Path) -> Iterator[Path]:
    """The database to read for `path`: itself, or for JSON a temporary one. Raises SourceError."""
    if path.suffix != SUFFIX:
        yield path
        return
    with scratch_folder() as folder:
        target = folder / "rocpd.db"
        _write(_processes(path), target)
        try:
            yield target
        except SourceError as error:  # what is wrong with the database is wrong with the JSON
            raise SourceError(path, *error.args[1:]) from error


def _processes(path: Path) -> pl.DataFrame:
    """A row for each process, with the columns of `_PROCESS`."""
    try:
        with open_file(path) as file:
            size = path.stat().st_size
            if size > MOST_BYTES:
                what = f"is {size >> 20} MB of JSON, more than the {MOST_BYTES >> 20} MB that are read"
                raise SourceError(path, what, "record with rocprofv3 --output-format rocpd")
            found = pl.read_json(file, schema={_TOP: pl.List(pl.Struct(_PROCESS))})
    except (OSError, pl.exceptions.PolarsError) as error:
        raise SourceError(path, "is no JSON of rocprofv3, or was cut short", "record or copy it again") from error
    processes = found.explode(_TOP).unnest(_TOP)
    if processes.height > MOST_PROCESSES:
        raise SourceError(path, f"holds {processes.height} processes", "record each by itself")
    return processes


def _write(processes: pl.DataFrame, target: Path) -> None:
    """A set of tables for each process."""
    from adbc_driver_sqlite import dbapi as adbc

    with closing(sqlite3.connect(target)) as db:  # what fails leaves a file that is thrown away
        db.execute("PRAGMA journal_mode = off")
        for number in range(processes.height):
            for table, columns in _TABLES.items():
                db.execute(f"CREATE TABLE rocpd_{table}_{number} (id INTEGER PRIMARY KEY, {columns})")
    with closing(adbc.connect(f"file:{target}")) as connection, closing(connection.cursor()) as cursor:
        for number in range(processes.height):
            for table, rows in _tables(processes[number]).items():
                cursor.adbc_ingest(f"rocpd_{table}_{number}", rows, mode="append")
        connection.commit()


def _tables(process: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """The rows of one process by table."""
    node = (
        process.select(pl.col("metadata").struct.field("node")).unnest("node").select(pl.lit(1).alias("id"), pl.all())
    )
    facts = process.select(pl.col("metadata").struct.unnest())
    started = facts.select("pid", id=pl.lit(1), init="init_time")
    agents = _list(process, "agents").select(
        id=pl.col("id").struct.field("handle"),
        type=pl.when(pl.col("type") == _GPU).then(pl.lit("GPU")).otherwise(pl.lit("CPU")),
        type_index="logical_node_type_id",
    )
    symbols = _list(process, "kernel_symbols").select(id="kernel_id", display_name="formatted_kernel_name")
    calls = pl.concat([_records(process, kind) for kind in ("hip_api", "marker_api", "rccl_api")])
    messages = _list(process.select(rows=pl.col("strings").struct.field("marker_api")), "rows")
    calls = calls.join(messages.unique("key", keep="any"), left_on="stack_id", right_on="key", how="left")
    calls = calls.with_columns(name=pl.coalesce("value", "name")).filter(pl.col("end") > pl.col("start"))
    kernels = _records(process, "kernel_dispatch").with_columns(
        pl.col("dispatch_info").struct.field("kernel_id"),
        **{c: pl.col("dispatch_info").struct.field(c).struct.field("handle") for c in ("agent_id", "queue_id")},
    )
    copies = _records(process, "memory_copy")
    timed = {"region": calls, "kernel_dispatch": kernels, "memory_copy": copies}
    texts = pl.concat([rows.select(pl.concat_list("category", "name")) for rows in timed.values()])
    strings = texts.select(string=pl.col("category").explode()).drop_nulls().unique().sort("string")
    strings = strings.with_row_index("id", 1).cast({"id": pl.Int64})
    events, first = [], 1
    for table, rows in timed.items():
        numbered = rows.with_columns(event_id=pl.int_range(first, first + pl.len(), dtype=pl.Int64))
        first += rows.height
        for column, number in (("category", "category_id"), ("name", "name_id")):
            known = strings.select(pl.col("string").alias(column), pl.col("id").alias(number))
            numbered = numbered.join(known, on=column, how="left", maintain_order="left")
        events.append(numbered.select("category_id", "stack_id", id="event_id", extdata=pl.lit("{}")))
        timed[table] = numbered.select(c.strip(' "') for c in _TABLES[table].split(","))
    return {"info_node": node, "info_process": started, "info_agent": _keyed(agents),
            "info_kernel_symbol": _keyed(symbols), "string": strings, "event": pl.concat(events), **timed}  # fmt: skip


def _keyed(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with an id, of several with one the first: it becomes the key of a table."""
    return rows.drop_nulls("id").unique("id", keep="first", maintain_order=True)


def _list(process: pl.DataFrame, column: str) -> pl.DataFrame:
    """The structs in a list of one process as rows."""
    return process.select(pl.col(column).explode()).drop_nulls().unnest(column)


def _records(process: pl.DataFrame, kind: str) -> pl.DataFrame:
    """Records of a kind: tid, start, end, stack_id, category, name, stream_id, and what else they have."""
    rows = _list(process.select(rows=pl.col("buffer_records").struct.field(kind)), "rows")
    names = _list(process.select(rows=pl.col("strings").struct.field("buffer_records")), "rows").with_row_index(
        "number"
    )
    operations = names.select(
        kind=pl.col("number").cast(pl.Int64),
        operation=pl.int_ranges(pl.col("operations").list.len(), dtype=pl.Int64),
        name="operations",
    ).explode("operation", "name")
    kinds = names.select(kind=pl.col("number").cast(pl.Int64), category="kind")
    stream = pl.col("stream_id").struct.field("handle") if "stream_id" in rows.columns else pl.lit(0, pl.Int64)
    return (
        rows.rename({"thread_id": "tid", "start_timestamp": "start", "end_timestamp": "end"})
        .with_columns(stack_id=pl.col("correlation_id").struct.field("internal"), stream_id=stream)
        .drop("correlation_id")
        .join(kinds, on="kind", how="left", maintain_order="left")
        .join(operations, on=["kind", "operation"], how="left", maintain_order="left")
        .drop("kind", "operation")
    )
