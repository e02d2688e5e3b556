"""Build small databases of the shape of `nsys export --type sqlite`: for the samples, and for tests.

Only what readers look at is there: tables without rows are missing, as in a real export, no table has an index, and
columns that nobody asks for are left out.
"""

from __future__ import annotations

import sqlite3
import struct
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

VM = 1 << 48
"""The part of a global id above the process id."""
PUSHED, STARTED, DOMAIN_CREATED = 59, 60, 75
"""Event types of NVTX ranges: pushed and popped on one thread, or started and ended anywhere; and of a new domain."""

_TASK = "start end deviceId contextId streamId correlationId globalPid"
COLUMNS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_TASK} demangledName shortName graphNodeId",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{_TASK} graphId graphExecId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_TASK} bytes copyKind",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_TASK} bytes",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end eventClass globalTid correlationId nameId returnValue",
    "NVTX_EVENTS": "start end eventType text globalTid endGlobalTid textId domainId binaryData",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": "domainId schemaId idx type name offset",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid",
    "TARGET_INFO_GPU": "id uuid",
    "DIAGNOSTIC_EVENT": "timestamp severity text globalPid",
    "PROFILER_OVERHEAD": "start end globalTid nameId returnValue",
    "MPI_RANKS": "globalTid rank",
    "ThreadNames": "nameId priority globalTid",
    "META_DATA_CAPTURE": "name value",
}
INT, UINT64, SIZE = 5, 18, 22
"""Types of values in payloads."""
FIELDS = {
    "communicator": ("NCCL communicator ID", UINT64), "bytes": ("Message size [bytes]", SIZE),
    "peer": ("Peer rank", INT), "ranks": ("No. of ranks", INT), "rank": ("Rank", INT),
}  # fmt: skip
TEXTS = {"text", "name", "value", "uuid"}


def as_folder(database: Path, folder: Path, suffix: str) -> Path:
    """The tables of an export as files in `folder`, which is made if it is not there; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(database)) as db:
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            rows = db.execute(f"SELECT * FROM {table}")
            columns = [name for name, *_ in rows.description]
            schema = {c: pl.Binary if c == "binaryData" else pl.String if c in TEXTS else pl.Int64 for c in columns}
            frame = pl.DataFrame(rows.fetchall(), schema=schema, orient="row")
            path = folder / f"{table}{suffix}"
            frame.write_parquet(path) if suffix == ".parquet" else frame.write_ipc(path)
    return folder


@dataclass
class Export:
    """One session. Times are session time in nanoseconds; a thread is (process id, thread id)."""

    epoch_ns: int = 1_760_000_000_000_000_000
    host: str = "node0"
    shift_ns: int = 0
    schema: str = "3.20.3"
    environment: str = ""
    rows: dict[str, list[tuple[object, ...]]] = field(default_factory=dict)
    strings: dict[str, int] = field(default_factory=dict)
    calls: dict[int, int] = field(default_factory=dict)
    described: set[tuple[int, int]] = field(default_factory=set)

    def string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings))

    def add(self, table: str, *row: object) -> None:
        self.rows.setdefault(table, []).append(row)

    def range(self, process: int, start: int, end: int | None, text: str, *, thread: int | None = None,
              registered: bool = False, kind: int = PUSHED, domain: int = 0, payload: bytes | None = None
              ) -> None:  # fmt: skip
        """A range on `thread` (else the main thread); `end` None: still open when the capture ended."""
        tid = thread_id(process, thread)
        text_id = self.string(text) if registered else None
        self.add("NVTX_EVENTS", start, end, kind, None if registered else text, tid, None, text_id, domain, payload)

    def payload(self, domain: int, schema: int, **values: int) -> bytes:
        """A payload with these values, named as in `FIELDS`, whose layout is described where it is new."""
        packed, described = b"", (domain, schema) in self.described
        for name, value in values.items():
            label, kind = FIELDS[name]
            width = 4 if kind == INT else 8
            packed += b"\0" * (-len(packed) % width)
            if not described:
                self.add("NVTX_PAYLOAD_SCHEMA_ENTRIES", domain, schema, len(packed), kind, label, len(packed) or None)
            packed += value.to_bytes(width, "little")
        self.described.add((domain, schema))
        return struct.pack("<QQQQ", domain, schema, len(packed), 32 + len(packed)) + packed

    def call(self, process: int, start: int, *, thread: int | None = None, name: str = "cudaLaunchKernel_v7000") -> int:
        """A call of the runtime; its correlation id, which is unique in its process only."""
        correlation = self.calls[process] = self.calls.get(process, 100) + 1
        row = (start, start + 2_000, 0, thread_id(process, thread), correlation, self.string(name), 0)
        self.add("CUPTI_ACTIVITY_KIND_RUNTIME", *row)
        return correlation

    def kernel(self, process: int, start: int, end: int, correlation: int | None, *, name: str = "gemm",
               stream: int = 7, device: int = 0) -> None:  # fmt: skip
        pid, text = VM | process << 24, self.string(name)
        self.add("CUPTI_ACTIVITY_KIND_KERNEL", start, end, device, 1, stream, correlation, pid, text, text, None)

    def graph(self, process: int, start: int, end: int, correlation: int) -> None:
        row = (start, end, 0, 1, 7, correlation, VM | process << 24, 3, 4)
        self.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", *row)

    def copy(self, process: int, start: int, end: int, correlation: int, *, kind: int = 1, stream: int = 14) -> None:
        row = (start, end, 0, 1, stream, correlation, VM | process << 24, 4096, kind)
        self.add("CUPTI_ACTIVITY_KIND_MEMCPY", *row)

    def clear(self, process: int, start: int, end: int, correlation: int) -> None:
        self.add("CUPTI_ACTIVITY_KIND_MEMSET", start, end, 0, 1, 7, correlation, VM | process << 24, 64)

    def overhead(self, process: int, start: int, end: int, name: str) -> None:
        """A time in which the profiler itself worked."""
        self.add("PROFILER_OVERHEAD", start, end, thread_id(process), self.string(name), 0)

    def write_folder(self, folder: Path, suffix: str) -> Path:
        """The tables as `nsys export --type parquetdir` (suffix .parquet) or `arrowdir` (.arrow) write them."""
        folder.mkdir(parents=True)
        database = self.write(folder / "export.sqlite")
        as_folder(database, folder, suffix)
        database.unlink()
        return folder

    def write(self, path: Path) -> Path:
        """Writes the database; events stand in the order of their start, as the profiler writes them."""
        path.unlink(missing_ok=True)
        old = self.schema == "3.0.0"
        with closing(sqlite3.connect(path)) as db:
            db.executescript("PRAGMA journal_mode = off; PRAGMA synchronous = off")
            for table, rows in self.rows.items():
                columns = COLUMNS[table].split()
                if table == "NVTX_EVENTS" and all(row[-1] is None for row in rows):  # without --include-blobs
                    columns, rows = columns[:-1], [row[:-1] for row in rows]
                ordered = sorted(rows, key=lambda row: row[0]) if columns[0] == "start" else rows  # type: ignore[arg-type, return-value]
                _table(db, table, columns, ordered)
            _table(db, "StringIds", ["id", "value"], [(i, s) for s, i in self.strings.items()])
            _table(db, "TARGET_INFO_SESSION_START_TIME", ["utcEpochNs"], [(self.epoch_ns,)])
            system = [("Hostname", self.host), ("DeviceEnvironment", self.environment)]
            _table(db, "TARGET_INFO_SYSTEM_ENV", ["name", "value"], system)
            facts = {"EXPORT_SCHEMA_VERSION": self.schema}
            if not old:
                facts["EXPORT_CONFIG_TIME_SHIFT"] = str(self.shift_ns)
            _table(db, "EXPORT_META_DATA" if old else "META_DATA_EXPORT", ["name", "value"], list(facts.items()))
            db.commit()
        return path


def thread_id(process: int, thread: int | None = None) -> int:
    """The global id of a thread; on Linux the main thread has its process's number."""
    return VM | process << 24 | (process if thread is None else thread)


def _table(db: sqlite3.Connection, name: str, columns: list[str], rows: list[tuple[object, ...]]) -> None:
    spelled = ", ".join(f'"{c}" {"TEXT" if c in TEXTS else "INTEGER"}' for c in columns)
    db.execute(f"CREATE TABLE {name} ({spelled})")
    db.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(columns))})", rows)
