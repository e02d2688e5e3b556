"""What the Ascend profilers leave of one rank, as a database of torch_npu or as a text export of MindSpore.

Only the tables, columns and files that a reader of pipelines needs, with made-up contents.
"""

from __future__ import annotations

import csv
import gzip
import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Literal

ABSENT = 4294967295
FIRST_MARK = 4000000001
STREAM, LINK_STREAM = 2, 5
APART = 1 << 24
"""How far apart the numbers are that a process gives to the work of two of its devices."""

TABLES = {
    "STRING_IDS": "id INTEGER PRIMARY KEY, value TEXT",
    "META_DATA": "name TEXT, value TEXT",
    "RANK_DEVICE_MAP": "rankId INTEGER, deviceId INTEGER",
    "HOST_INFO": "hostUid TEXT, hostName TEXT",
    "STEP_TIME": "id INTEGER, startNs INTEGER, endNs INTEGER",
    "TASK": "startNs INTEGER, endNs INTEGER, deviceId INTEGER, connectionId INTEGER, globalTaskId INTEGER,"
    " globalPid INTEGER, taskType INTEGER, contextId INTEGER, streamId INTEGER, taskId INTEGER, modelId INTEGER",
    "COMPUTE_TASK_INFO": "name INTEGER, globalTaskId INTEGER PRIMARY KEY, taskType INTEGER, opType INTEGER",
    "MSTX_EVENTS": "startNs INTEGER, endNs INTEGER, eventType INTEGER, rangeId INTEGER, category INTEGER,"
    " message INTEGER, globalTid INTEGER, endGlobalTid INTEGER, domainId INTEGER, connectionId INTEGER",
    "COMMUNICATION_OP": "opName INTEGER, startNs INTEGER, endNs INTEGER, connectionId INTEGER, groupName INTEGER,"
    " opId INTEGER PRIMARY KEY, dataType INTEGER, count NUMERIC, opType INTEGER",
    "COMMUNICATION_TASK_INFO": "name INTEGER, globalTaskId INTEGER, taskType INTEGER, groupName INTEGER,"
    " srcRank INTEGER, dstRank INTEGER, size INTEGER, opId INTEGER",
}

CALLS = {
    "CANN_API": "startNs INTEGER, endNs INTEGER, type INTEGER, globalTid INTEGER, connectionId INTEGER PRIMARY KEY,"
    " name INTEGER"
}
"""The calls of CANN that launched the tasks. Small samples do without: no reader of blocks needs them."""
ACL, NODE, COMMUNICATION = 20000, 10000, 5500
"""Kinds of calls (ENUM_API_TYPE)."""
FIRST_CALL, LEAD_NS = 1 << 20, 1_000_000
PAGE, LARGE_PAGE, LARGE = 1024, 4096, 10_000
"""Bytes of a page, where there are more tasks than `LARGE` those that the profiler's databases have."""

Stamps = Literal["text", "numbers", "relative"]
"""How trace_view.json writes its times: unix µs as texts with three decimals, as the profilers do; as JSON numbers, on
the grid of 0.25 µs that a float has there; or as numbers that count from the first event of each rank."""

Layout = Literal["capture", "beside", "timeline beside", "rank folders", "loose", "merged"]
"""Where the files of a capture lie: in a folder of its own; as MindSpore 2.4 has it, with what describes it and the raw
data of all ranks beside it, and as 2.3, with a timeline besides; with the traces alone in one folder, each called after
its rank, or merged into one file, as msprof-analyze does."""

WORK_TABLES = ("COMPUTE_TASK_INFO", "COMMUNICATION_OP", "COMMUNICATION_TASK_INFO")


@dataclass(frozen=True)
class Kernel:
    type: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Operator:
    """A communication operator. `place` and `peer` are places in the group; `peer` is None for a collective. A
    `batched` transfer is recorded as batchSendRecv. `met_ns`: when both sides of a transfer are there; where it is
    given, the transfer waits until then and copies after, else both of its tasks take the whole time."""

    what: str
    group: str
    index: int
    start_ns: int
    end_ns: int
    place: int = 0
    peer: int | None = None
    bytes: int = 0
    batched: bool = False
    met_ns: int | None = None

    @property
    def type(self) -> str:
        return f"hcom_{'batchSendRecv' if self.batched else self.what}_"

    @property
    def name(self) -> str:
        return f"{self.type}_{hash_of(self.group)[-3:]}_{self.index}_1"

    @property
    def tasks(self) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Start, end and stream of the wait and the copy of a transfer. Sends and receives that are told apart have
        streams of their own, for both may be under way at a time."""
        if self.met_ns is None:
            whole = self.start_ns, self.end_ns, LINK_STREAM
            return whole, whole
        stream = LINK_STREAM + (self.what == "receive")
        met = min(max(self.met_ns, self.start_ns + 1_000), self.end_ns - 1_000)
        return (self.start_ns, met, stream), (met, self.end_ns, stream)


@dataclass(frozen=True)
class Mark:
    """A marker range: on the device, unless it is not `on_device`, and when the host issued it."""

    text: str
    start_ns: int
    end_ns: int
    host_start_ns: int
    host_end_ns: int
    on_device: bool = True


@dataclass
class Recording:
    """Everything one rank recorded, on its host's clock. `metadata` is what the training script added; `level` None
    (marks only), 0 (no types of kernels, no peers of transfers) or 1. `calls`: whether the calls of CANN are there:
    two for each kernel and one for each operator. `stamps`: see there. `packed`: the trace is gzipped."""

    rank: int
    device: int
    host: str
    metadata: dict[str, object]
    framework: str = "pytorch"
    level: int | None = 1
    calls: bool = False
    stamps: Stamps = "text"
    packed: bool = False
    marks: list[Mark] = field(default_factory=list)
    kernels: list[tuple[int, Kernel]] = field(default_factory=list)
    operators: list[tuple[int, Operator]] = field(default_factory=list)
    steps: list[tuple[int, int, int]] = field(default_factory=list)


def hash_of(group: str) -> str:
    """HCCL's number of a group: two sums of 32 bits over the characters of its identifier."""
    high = low = 0
    for character in group:
        high = (high * 29 + ord(character)) % (1 << 32)
        low = (low * 131 + ord(character)) % (1 << 32)
    return str((high << 32) + low)


def write_database(rec: Recording, folder: Path, *others: Recording) -> Path:
    """`ascend_pytorch_profiler_{rank}.db` or `ascend_mindspore_profiler_{rank}.db` in the capture folder `folder`.

    MindSpore's has no steps and no metadata, and does not know its rank. `others` are the further devices of the
    process, which then has no rank.
    """
    number = "" if others else f"_{rec.rank}"
    path = _output(folder) / f"ascend_{rec.framework}_profiler{number}.db"
    path.unlink(missing_ok=True)
    strings: dict[str, int] = {}

    def text(value: str) -> int:
        return strings.setdefault(value, len(strings))

    tables = TABLES | (CALLS if rec.calls else {})
    if others:
        tables = {**tables, "COMMUNICATION_OP": tables["COMMUNICATION_OP"] + ", deviceId INTEGER"}
    rows: dict[str, list[tuple[object, ...]]] = {name: [] for name in tables}

    def task(device: int, start: int, end: int, connection: int, kind: str, stream: int) -> int:
        number = len(rows["TASK"])
        rows["TASK"].append(
            (start, end, device, connection, number, 1, text(kind), ABSENT, stream, number % 65536, ABSENT)
        )
        return number

    def call(start: int, kind: int, connection: int, name: str) -> None:
        rows["CANN_API"].append((start, start + 5_000, kind, 1 << 32 | 1, connection, text(name)))

    for part, one in enumerate([rec, *others]):
        for number, mark in enumerate(one.marks):
            connection = FIRST_MARK + part * APART + number if mark.on_device else ABSENT
            if mark.on_device:
                task(one.device, mark.start_ns, mark.end_ns, connection, "MsTx", STREAM)
            rows["MSTX_EVENTS"].append(
                (
                    mark.host_start_ns,
                    mark.host_end_ns,
                    2,
                    ABSENT,
                    ABSENT,
                    text(mark.text),
                    1,
                    1,
                    text("default"),
                    connection,
                )
            )

        for place, (_, kernel) in enumerate(one.kernels if rec.level is not None else ()):
            connection = FIRST_CALL + part * APART + 2 * place if rec.calls else ABSENT
            if rec.calls:
                call(kernel.start_ns - LEAD_NS, NODE, connection, "launch")
                call(kernel.start_ns - LEAD_NS, ACL, connection + 1, f"aclnn{kernel.type}")
            number = task(one.device, kernel.start_ns, kernel.end_ns, connection, "AI_CORE", STREAM)
            name = text(f"aclnn{kernel.type}_{kernel.type}")
            kinds = ("AI_CORE", kernel.type) if rec.level else ("N/A", "N/A")
            rows["COMPUTE_TASK_INFO"].append((name, number, *map(text, kinds)))
        for number, (_, op) in enumerate(one.operators, part * APART):
            name, group = text(op.name), text(op.group)
            if rec.calls:
                call(op.start_ns - LEAD_NS, COMMUNICATION, number, op.type)
            rows["COMMUNICATION_OP"].append(
                (
                    name,
                    op.start_ns,
                    op.end_ns,
                    number,
                    group,
                    number,
                    11,
                    op.bytes // 2,
                    text(op.type),
                    *([one.device] if others else []),
                )
            )
            if op.peer is None:
                continue
            over = op.peer if op.what == "receive" else op.place
            parts = (("Notify_Wait", op.peer, 0), ("Memcpy", over, op.bytes))
            for (kind, to, size), (start, end, stream) in zip(parts, op.tasks, strict=True):
                small = task(one.device, start, end, number, "SDMA", stream)
                known = (op.place, to, size) if rec.level else (ABSENT, ABSENT, -1)
                rows["COMMUNICATION_TASK_INFO"].append((name, small, text(kind), group, *known, number))
    if rec.calls:
        rows["TASK"].sort(key=itemgetter(0))  # as CANN writes them
    pytorch = rec.framework == "pytorch"
    rows["STEP_TIME"] = list(rec.steps)
    known = pytorch and not others
    rows["RANK_DEVICE_MAP"] = [(rec.rank if known else -1, one.device) for one in (rec, *others)]
    rows["HOST_INFO"] = [(hash_of(rec.host), rec.host)]
    rows["META_DATA"] = [("SCHEMA_VERSION", "1.2.0")]
    if pytorch:
        rows["META_DATA"] += [(k, json.dumps(v)) for k, v in rec.metadata.items()]
    rows["STRING_IDS"] = [(number, value) for value, number in strings.items()]
    with closing(sqlite3.connect(path)) as db:
        db.executescript("PRAGMA journal_mode = off; PRAGMA synchronous = off")
        db.execute(f"PRAGMA page_size = {LARGE_PAGE if len(rows['TASK']) > LARGE else PAGE}")
        absent = (() if pytorch else ("STEP_TIME",)) + (WORK_TABLES if rec.level is None else ())
        for table, columns in tables.items():
            if table in absent:
                continue
            db.execute(f"CREATE TABLE {table} ({columns})")
            if rows[table]:
                db.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(rows[table][0]))})", rows[table])
        db.execute("CREATE INDEX TaskIndex ON TASK (startNs, globalTaskId)")
        db.commit()
        db.execute("VACUUM")
    if pytorch:
        _torch_info(rec, folder)
    else:
        _mindspore_info(rec, folder)
    return path


def write_text(rec: Recording, folder: Path) -> None:
    """`trace_view.json` and the metadata of a capture, and above Level_none `kernel_details.csv` and
    `communication.json`."""
    output = _output(folder)
    hardware = {"pid": 1 << 10 | 13 << 5 | rec.device, "tid": STREAM}
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", **hardware, "args": {"name": "Ascend Hardware"}},
        {"ph": "M", "name": "thread_name", **hardware, "args": {"name": f"Stream {STREAM}"}},
    ]
    kernels = rec.kernels if rec.level is not None else []
    ranges = [(m.text, m.start_ns, m.end_ns) for m in rec.marks if m.on_device]
    ranges += [(k.type, k.start_ns, k.end_ns) for _, k in kernels]
    first = min([start for _, start, _ in ranges] or [m.host_start_ns for m in rec.marks])
    events += [
        {"ph": "X", "name": name, **hardware, "ts": _stamp(rec, start, first), "dur": (end - start) / 1000, "args": {}}
        for name, start, end in ranges
    ]
    events += [
        {
            "ph": "X", "name": m.text, "pid": 7, "tid": 1, "ts": _stamp(rec, m.host_start_ns, first),
            "dur": (m.host_end_ns - m.host_start_ns) / 1000, "args": {},
        }
        for m in rec.marks
        if not m.on_device
    ]  # fmt: skip
    text = json.dumps(events)
    if rec.packed:
        (output / "trace_view.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    else:
        (output / "trace_view.json").write_text(text)
    if rec.level is not None:
        _write_tables(rec, output)
    _text_info(rec, folder)


def lay_beside(rec: Recording, folder: Path, timeline: bool) -> None:
    """Moves what describes the capture `folder` to the folder around it, in the form of MindSpore before 2.5, with the
    raw data that it was made of."""
    name, around = f"profiler_info_{rec.rank}.json", folder.parent
    (folder / name).unlink()
    sizes = rec.metadata.get("distributed_args")
    stages = sizes["pipeline_model_parallel_size"] if isinstance(sizes, dict) else 1
    old = {"context_mode": "pynative", "rank_id": str(rec.rank), "ms_version": "2.4.0", "stage_num": stages}
    (around / name).write_text(json.dumps(old))
    (around / f"dataset_{rec.rank}.csv").write_text("Operation,Stage,Occurrences\n")
    raw = around / f"PROF_{rec.rank:06d}_20240820123456_ABC" / "host"
    raw.mkdir(parents=True)
    (raw / "start_info").write_text("{}")
    tables = raw.parent / "mindstudio_profiler_output"
    tables.mkdir()
    (tables / "op_summary_20240820.csv").write_text("Op Name,Task Start Time(us),Task Duration(us)\n")
    (tables / "msprof_20240820.json").write_text("[]")
    if timeline:
        (around / f"ascend_timeline_display_{rec.rank}.json").write_text("[]")


def lay_loose(rank: int, capture: Path, folder: Path, *, merged: bool) -> None:
    """Leaves of a capture the trace alone: in `folder` under the rank's name, or `merged` into the traces of the ranks
    before, with the rank in the names and numbers of its processes."""
    trace, whole = capture / "ASCEND_PROFILER_OUTPUT" / "trace_view.json", folder / "merged.json"
    if merged:
        events = json.loads(whole.read_text()) if whole.exists() else []
        for event in json.loads(trace.read_text()):
            if event["name"] == "process_name":
                event["args"]["name"] += f"_{rank}"
            events.append({**event, "pid": event["pid"] + rank * 10**10})
        whole.write_text(json.dumps(events))
    else:
        shutil.copy(trace, folder / f"trace_view_rank{rank}.json")
    shutil.rmtree(capture)


def _stamp(rec: Recording, ns: int, first: int) -> str | float:
    """A time of trace_view.json; `first`: that of the rank's first event."""
    if rec.stamps == "text":
        return _us(ns)
    return (ns - first) / 1000 if rec.stamps == "relative" else ns / 1000


def _write_tables(rec: Recording, output: Path) -> None:
    """`kernel_details.csv` and `communication.json`."""
    rows = [(step, f"aclnn{k.type}", k.type, "AI_CORE", STREAM, k.start_ns, k.end_ns) for step, k in rec.kernels]
    rows += [(s, o.name, o.type, "COMMUNICATION", "N/A", o.start_ns, o.end_ns) for s, o in rec.operators]
    with (output / "kernel_details.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["Step Id", "Name", "Type", "Accelerator Core", "Stream ID", "Start Time(us)", "Duration(us)"])
        for step, name, kind, core, stream, start, end in sorted(rows, key=lambda row: row[5]):
            table.writerow([step, name, kind, core, stream, _us(start) + "\t", _us(end - start)])
    steps: dict[str, dict[str, dict[str, object]]] = {}
    for step, op in rec.operators:
        kind = "collective" if op.peer is None else "p2p"
        time = {"Start Timestamp(us)": op.start_ns / 1000, "Elapse Time(ms)": (op.end_ns - op.start_ns) / 1e6}
        moved = {"SDMA": {"Transit Size(MB)": op.bytes / 1e6 if op.what == "receive" else 0}}
        entry = {"Communication Time Info": time, "Communication Bandwidth Info": moved}
        steps.setdefault(f"step{step}", {"p2p": {}, "collective": {}})[kind][f"{op.name}@{hash_of(op.group)}"] = entry
    (output / "communication.json").write_text(json.dumps(steps))


def _output(folder: Path) -> Path:
    output = folder / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True, exist_ok=True)
    return output


def _text_info(rec: Recording, folder: Path) -> None:
    if rec.framework == "mindspore":
        _mindspore_info(rec, folder)
    else:
        _torch_info(rec, folder)
        (folder / "profiler_metadata.json").write_text(json.dumps(rec.metadata))


def _torch_info(rec: Recording, folder: Path) -> None:
    _info(folder, rec.rank, {"rank_id": rec.rank, "torch_npu_version": "2.7.1"})


def _mindspore_info(rec: Recording, folder: Path) -> None:
    (folder / "profiler_metadata.json").write_text(json.dumps(rec.metadata))
    _info(folder, rec.rank, {"ms_profiler_info": {"rank_id": str(rec.rank)}, "ms_version": "2.7.0"})


def _info(folder: Path, rank: int, content: dict[str, object]) -> None:
    (folder / f"profiler_info_{rank}.json").write_text(json.dumps(content, indent=1) + "\n")


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"
