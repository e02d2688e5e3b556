"""Build small databases of the shape that rocprofv3 writes (rocpd, one a process): for the samples and for tests.

The tables have the columns that AMD's definitions give them; those that a reader never asks for are left out. Schema 3
is that of ROCm 7; in schema 4 a track names the thread, agent, queue and stream of a row, and categories have a table.
Source: ROCm/rocm-systems, projects/rocprofiler-sdk/source/share/rocprofiler-sdk-rocpd.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

_NODE = "hash machine_id system_name hostname release version hardware_name domain_name"
_PROCESS = "nid ppid pid init fini start end command environment extdata"
_AGENT = "nid pid type absolute_index logical_index type_index uuid name model_name vendor_name product_name extdata"
_DISPATCH = "kernel_id dispatch_id {where} start end region_name_id event_id extdata"
_COPY = "start end name_id {where} size region_name_id event_id extdata"
COMMON = {
    "metadata": "tag value",
    "string": "guid string",
    "info_node": f"guid {_NODE}",
    "info_process": f"guid {_PROCESS}",
    "info_thread": "guid nid ppid pid tid name start end extdata",
    "info_agent": f"guid {_AGENT}",
    "info_queue": "guid nid pid name extdata",
    "info_stream": "guid nid pid name extdata",
    "info_kernel_symbol": "guid nid pid code_object_id kernel_name display_name extdata",
    "arg": "guid event_id position type name value extdata",
}
"""Table → its columns after `id`, the same in both schemas."""
OWN = {
    3: {
        "track": "guid nid pid tid name_id extdata",
        "event": "guid category_id stack_id parent_stack_id correlation_id call_stack line_info extdata",
        "region": "guid nid pid tid start end name_id event_id extdata",
        "sample": "guid track_id timestamp event_id extdata",
        "kernel_dispatch": "guid nid pid tid agent_id " + _DISPATCH.format(where="queue_id stream_id"),
        "memory_copy": "guid nid pid tid " + _COPY.format(where="dst_agent_id src_agent_id queue_id stream_id"),
    },
    4: {
        "info_category": "guid name extdata",
        "track": "guid nid ppid pid tid agent_id queue_id stream_id name_id extdata",
        "event": "guid category_id stack_id parent_stack_id correlation_id extdata",
        "region": "guid track_id name_id start end event_id extdata",
        "sample": "guid track_id name_id timestamp event_id extdata",
        "kernel_dispatch": "guid track_id " + _DISPATCH.format(where=""),
        "memory_copy": "guid track_id " + _COPY.format(where="dst_agent_id src_agent_id"),
    },
}
TEXTS = {
    "guid", "tag", "value", "string", "machine_id", "system_name", "hostname", "release", "version", "hardware_name",
    "domain_name", "command", "environment", "extdata", "call_stack", "line_info", "name", "type", "model_name",
    "vendor_name", "product_name", "kernel_name", "display_name",
}  # fmt: skip

HIP_NAMES = {"cudaLaunchKernel_v7000": "hipLaunchKernel", "cuLaunchKernelEx": "hipModuleLaunchKernel"}
"""What the generator of Nsight's samples calls its launches → the calls of HIP that do the same."""


Row = dict[str, object]


@dataclass
class Export:
    """The database of one process; its times count from the boot of its host."""

    host: str = "node0"
    pid: int = 4000
    schema: int = 3
    environment: dict[str, str] = field(default_factory=dict)
    machine_id: str = ""
    gpu: int = 0
    rows: dict[str, list[Row]] = field(default_factory=dict)
    ids: dict[tuple[str, object], int] = field(default_factory=dict)
    stacks: int = 0

    @property
    def guid(self) -> str:
        return f"0199aaaa-0000-7000-8000-{self.pid:012d}"

    def add(self, table: str, **row: object) -> int:
        """Adds a row; its id."""
        rows = self.rows.setdefault(table, [])
        rows.append({"id": len(rows) + 1, **row})
        return len(rows)

    def once(self, table: str, key: object, **row: object) -> int:
        """The id of the row of `table` that `key` names, which is added where it is new."""
        if (table, key) not in self.ids:
            self.ids[table, key] = self.add(table, **row)
        return self.ids[table, key]

    def string(self, text: str) -> int:
        return self.once("string", text, string=text)

    def event(self, category: str, stack: int, message: str | None = None) -> int:
        named = self.string(category) if self.schema == 3 else self.once("info_category", category, name=category)
        extdata = "{}" if message is None else json.dumps({"message": message})
        return self.add("event", category_id=named, stack_id=stack, parent_stack_id=stack, extdata=extdata)

    def stack(self) -> int:
        self.stacks += 1
        return self.stacks

    def range(self, process: int, start: int, end: int | None, text: str, *, thread: int | None = None,
              registered: bool = False, domain: int = 0) -> None:  # fmt: skip
        """A ROCTx range, or where it is `registered` by NCCL's name a call of RCCL."""
        rccl = registered and text.startswith("nccl")
        stack = self.stack()
        event = self.event("RCCL_API" if rccl else "MARKER_CORE_RANGE_API", stack, None if rccl else text)
        name = text if rccl else "roctxThreadRangeA"
        self._timed("region", stack, thread, start=start, end=start if end is None else end,
                    name_id=self.string(name), event_id=event)  # fmt: skip

    def call(self, process: int, start: int, *, thread: int | None = None, name: str = "hipLaunchKernel") -> int:
        """A call of the HIP runtime; the id of its stack, which its kernels share."""
        stack = self.stack()
        event = self.event("HIP_RUNTIME_API_EXT", stack)
        named = self.string(HIP_NAMES.get(name, name))
        self._timed("region", stack, thread, start=start, end=start + 2_000, name_id=named, event_id=event)
        return stack

    def kernel(self, process: int, start: int, end: int, correlation: int | None, *, name: str = "gemm",
               stream: int = 7, device: int = 0) -> None:  # fmt: skip
        symbol = self.once("info_kernel_symbol", name, kernel_name=f"{name}.kd", display_name=name, code_object_id=1)
        row = {"kernel_id": symbol, "dispatch_id": len(self.rows.get("kernel_dispatch", [])) + 1, "start": start}
        event = self.event("KERNEL_DISPATCH", correlation or 0)
        place = {"agent_id": 2 + self.gpu + device, "queue_id": 1, "stream_id": stream}
        self._timed("kernel_dispatch", 0, None, place=place, end=end, event_id=event, **row)

    def copy(self, process: int, start: int, end: int, stack: int, *, kind: str = "HOST_TO_DEVICE") -> None:
        event = self.event("MEMORY_COPY", stack)
        name = self.string(f"MEMORY_COPY_{kind}")
        place = {"queue_id": 0, "stream_id": 3}
        self._timed("memory_copy", 0, None, place=place, start=start, end=end, name_id=name, size=4096,
                    dst_agent_id=2, src_agent_id=1, event_id=event)  # fmt: skip

    def _timed(self, table: str, key: int, thread: int | None, place: Row | None = None, **row: object) -> None:
        where: Row = {"tid": self.pid if thread is None else thread, **(place or {})}
        if self.schema == 3:
            self.add(table, nid=1, pid=self.pid, **where, **row)
        else:
            track = self.once("track", tuple(sorted(where.items())), nid=1, pid=self.pid, **where)
            self.add(table, track_id=track, **row)

    def write(self, path: Path) -> Path:
        """Writes the database with its views."""
        path.unlink(missing_ok=True)
        suffix = "_" + self.guid.replace("-", "_")
        process = {"nid": 1, "pid": self.pid, "command": "python train.py", "environment": json.dumps(self.environment)}
        fixed: dict[str, list[Row]] = {
            "metadata": [{"id": 1, "tag": "schema_version", "value": str(self.schema)}],
            "info_node": [{"id": 1, "hash": 1, "machine_id": self.machine_id or self.host, "hostname": self.host}],
            "info_process": [{"id": self.pid, **process}],
            "info_agent": [
                {"id": n + 1, "nid": 1, "pid": self.pid, "type": "GPU" if n else "CPU", "type_index": max(n - 1, 0)}
                for n in range(9)
            ],
        }
        with closing(sqlite3.connect(path)) as db:
            db.executescript("PRAGMA journal_mode = off; PRAGMA synchronous = off")
            for table, columns in {**COMMON, **OWN[self.schema]}.items():
                rows = fixed.get(table, self.rows.get(table, []))
                _table(db, f"rocpd_{table}{suffix}", ["id", *columns.split()], rows, self.guid)
                db.execute(f"CREATE VIEW rocpd_{table} AS SELECT * FROM rocpd_{table}{suffix}")
            db.commit()
        return path


def _table(db: sqlite3.Connection, name: str, columns: list[str], rows: Iterable[Row], guid: str) -> None:
    spelled = ", ".join(
        f'"{c}" {"TEXT" if c in TEXTS else "INTEGER"}' + (" NOT NULL PRIMARY KEY AUTOINCREMENT" if c == "id" else "")
        for c in columns
    )
    db.execute(f"CREATE TABLE {name} ({spelled})")
    filled = {"guid": guid, "extdata": "{}"}
    values = [[row.get(c, filled.get(c)) for c in columns] for row in rows]
    db.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(columns))})", values)
