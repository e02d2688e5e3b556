"""Profiler databases of torch_npu, MindSpore or msprof: their tables as the frames that `reader.py` makes blocks of.

`rows` reads one database; `tables` makes the tables of many at once.

Tables without rows are absent and columns come and go with the version, so both are asked for before they are used.
Times are ns of the host's wall clock; names are ids into STRING_IDS; 4294967295 means "not available".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain

import orjson
import polars as pl

from trace_export.model import COUNTERS, INT, TEXT, TIME, Schema, conform, empty
from trace_export.sources.ascend.hccl import COPIES, OPERATORS
from trace_export.sources.ascend.marker_blocks import (
    CAPTURE,
    MARKS,
    OPTIMIZER,
    STEPS,
    WORKED,
    Kernels,
    any_starts,
    sum_between,
)  # fmt: skip
from trace_export.sources.ascend.metadata import group_hash
from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.shared.batch import sources_of
from trace_export.sources.shared.sqlite import Database
from trace_export.sources.shared.timestamps import valid_unix_times

NAMES = "STRING_IDS"
NOT_AVAILABLE = 4294967295
HOST_ONLY = 4000000000
"""`connectionId` of a marker without a place on the device; marker n has HOST_ONLY + 1 + n, on host and device."""

_TASKS = "COMMUNICATION_TASK_INFO"
PARTS = {_TASKS.lower(): "opid"}
"""The table of the tasks that communication operators are made of (see sqlite_beginning.views)."""

_NO_STEPS = pl.DataFrame(schema=dict.fromkeys(STEPS, TIME))
_NOT_ON_DEVICE = pl.DataFrame(schema=dict.fromkeys(("start_ns", "end_ns", "mark", "stream", "device"), TIME))
_HOST_MARKS: Schema = {"host_start_ns": TIME, "host_end_ns": TIME, "text": TEXT, "mark": TIME, "domain": TEXT}
_NO_CALLS = empty(_HOST_MARKS)
_NO_MARKS = empty(dict.fromkeys(_HOST_MARKS, TIME))
_NO_OPERATORS = empty(dict.fromkeys(("op", "group", "start_ns", "end_ns", "opId", "count", "item"), TIME))
NUMBERED = {"marks": ["text", "domain"], "operators": ["op", "group"], "tasks": ["task"]}
"""The columns of each table that hold numbers of STRING_IDS."""
_NO_COPYING = pl.DataFrame(schema=dict.fromkeys(("opId", "src", "dst", "task", "moved"), TIME))

ON_DEVICE = f"connectionId > {HOST_ONLY} AND connectionId < {NOT_AVAILABLE}"

_ITEM_BYTES = {
    0: 1, 1: 2, 2: 4, 3: 2, 4: 4, 5: 8, 6: 8, 7: 1, 8: 2, 9: 4, 10: 8, 11: 2, 12: 16, 14: 1, 15: 1, 16: 1, 17: 1,
}  # fmt: skip
"""Bytes of one element by ENUM_HCCL_DATA_TYPE."""

_KERNELS = "TASK t JOIN COMPUTE_TASK_INFO c ON c.globalTaskId = t.globalTaskId"
BUSY_RANGES, BUSY_STEPS = 500, 1_000_000
"""This many ranges are asked about in one query, which the index of TASK answers in some 250 steps for each. Without an
index, or where tasks that compute nothing fill the ranges, to look at each task once is faster."""

_COUNTERS = (
    ("AICORE_FREQ", "AI Core frequency", "MHz", "timestampNs", "freq", ""),
    ("HBM", "HBM {} {}", "B/s", "timestampNs", "bandwidth", "hbmId type"),
    ("NPU_MEM", "{} HBM", "B", "timestampNs", "hbm", "type"),
    ("MEMORY_RECORD", "{} allocated", "B", "timestamp", "totalAllocated", "component"),
    ("MEMORY_RECORD", "{} reserved", "B", "timestamp", "totalReserved", "component"),
)
"""Table, name, unit, its columns of time and value, and the columns that fill the name (`hbmId` is a plain number)."""


def named(db: Database, frame: pl.DataFrame, *columns: str) -> pl.DataFrame:
    """`frame` with the id `columns` replaced by their texts; ids without an entry become null."""
    ids = [frame[column].cast(TIME) for column in columns]
    text_of = db.names(NAMES, pl.concat([pl.Series(dtype=TIME), *ids]).unique().drop_nulls())
    if not text_of:
        return frame.with_columns(pl.lit(None, TEXT).alias(column) for column in columns)
    old, new = pl.Series(list(text_of), dtype=TIME), pl.Series(list(text_of.values()), dtype=TEXT)
    return frame.with_columns(pl.col(*columns).replace_strict(old, new, default=None, return_dtype=TEXT))


@dataclass(frozen=True)
class Rows:
    """The tables that a database `db`, which is open, holds. Its `tables` are the marker ranges as the host saw them
    (`marks`) and as the `device` did, the `calls` of PyTorch that rules of the user name, the `operators` of
    communication and the `tasks` that these are made of; with ids for texts (`NUMBERED`). `communicates`: operators
    were recorded; otherwise only markers announce them."""

    db: Database
    tables: Mapping[str, pl.DataFrame]
    communicates: bool


def rows(db: Database, dialects: Dialects, *, on_device: bool) -> Rows:
    """The rows of a database; without `on_device` its markers only as the host saw them."""
    marked, communicates = db.has("MSTX_EVENTS"), db.has("COMMUNICATION_OP")
    tables = {
        "marks": host_marks(db) if marked else _NO_MARKS,
        "device": device_marks(db) if marked and on_device else _NOT_ON_DEVICE,
        "calls": api_marks(db, dialects.of_user) if dialects.of_user.rules else _NO_CALLS,
        "operators": communication(db) if communicates else _NO_OPERATORS,
        "tasks": copying(db) if communicates else _NO_COPYING,
    }
    return Rows(db, tables, communicates)


def by_device(db: Database, rows: Rows) -> tuple[dict[int, Rows], int]:
    """The rows of each device that markers are on, in order, and of how many ranges no device reached the end.
    Operators are left out where the profiler does not say where they ran."""
    alone = pl.lit(0, INT).alias("capture")
    marks, on_device = rows.tables["marks"], rows.tables["device"]
    reached, unreached = matched(marks.with_columns(alone), on_device.with_columns(alone))
    says = db.has("COMMUNICATION_OP", "deviceId")
    devices = {}
    for device in sorted(reached["device"].drop_nulls().unique()):
        tables = {
            "marks": reached.filter(device=device).select(marks.columns),
            "device": on_device.filter(device=device),
            "calls": rows.tables["calls"].clear(),
            "operators": communication(db, device) if says else _NO_OPERATORS,
        }
        devices[device] = replace(rows, tables={**rows.tables, **tables})
    return devices, unreached.height


def tables(captures: Mapping[int, Rows]) -> tuple[dict[str, pl.DataFrame], dict[int, int]]:
    """The marks (`MARKS`), operators and copies of these captures, one at least, each with `CAPTURE`; and of how many
    ranges of a capture its device reached no end."""
    frames_of = {}
    for table in next(iter(captures.values())).tables:
        frames = [one.tables[table] for one in captures.values()]
        whole = pl.concat(frames, how="vertical_relaxed")
        frames_of[table] = whole.hstack([sources_of(frames, list(captures)).alias("capture")])
    frames_of = _named(frames_of, captures)
    host = pl.concat([frames_of["marks"], frames_of["calls"].select(frames_of["marks"].columns)])
    reached, unreached = matched(host, frames_of["device"])
    marks = placed(reached)
    recorded = [number for number, one in captures.items() if one.communicates]
    operators = described(frames_of["operators"])
    announced = _announced(marks.filter(~pl.col("capture").is_in(recorded)))
    return {
        "marks": conform(marks, {**MARKS, **CAPTURE}),
        "operators": pl.concat([conform(operators, {**OPERATORS, **CAPTURE}), announced]),
        "copies": copies(frames_of["tasks"], operators),
    }, dict(unreached.group_by("capture").len().iter_rows())


def _named(tables: Mapping[str, pl.DataFrame], captures: Mapping[int, Rows]) -> dict[str, pl.DataFrame]:
    """The `tables` of captures with texts for the ids in the columns that are `NUMBERED`; ids without an entry become
    null. One look for each capture, and one join for each column."""
    columns = [(table, column) for table, columns in NUMBERED.items() for column in columns]
    ids = pl.concat([tables[table].select("capture", id=pl.col(column).cast(TIME)) for table, column in columns])
    wanted = dict(ids.drop_nulls().unique().group_by("capture").agg("id").iter_rows())
    said = [(number, captures[number].db.names(NAMES, of_capture)) for number, of_capture in wanted.items()]
    names = pl.DataFrame(
        {
            "id": pl.Series(list(chain.from_iterable(of_id for _, of_id in said)), dtype=TIME),
            "name": pl.Series(list(chain.from_iterable(of_id.values() for _, of_id in said)), dtype=TEXT),
            "capture": sources_of([of_id for _, of_id in said], [number for number, _ in said]),
        }
    )
    named = dict(tables)
    for table, column in columns:
        of_column = names.rename({"id": column})
        joined = named[table].join(of_column, on=["capture", column], how="left", maintain_order="left")
        named[table] = joined.with_columns(pl.col("name").alias(column)).drop("name")
    return named


def device_marks(db: Database) -> pl.DataFrame:
    """The marker ranges as the devices saw them: start_ns, end_ns, mark, stream, device."""
    device = "deviceId" if db.has("TASK", "deviceId") else "0"
    return db.frame(
        "SELECT startNs AS start_ns, endNs AS end_ns, connectionId AS mark, streamId AS stream,"
        f" {device} AS device FROM TASK WHERE {ON_DEVICE}"
    )


def has_work_on(db: Database, devices: Iterable[int]) -> list[int]:
    """Those of the `devices` on which kernels ran."""
    if not db.has("COMPUTE_TASK_INFO", "globalTaskId") or not db.has("TASK", "deviceId"):
        return []
    work = f"SELECT 1 FROM {_KERNELS} WHERE t.deviceId"
    return [device for device in devices if db.texts(f"{work} = {device} LIMIT 1")]


def matched(host: pl.DataFrame, device: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The marker ranges of the `host` with their times on the `device`, and apart from them those whose end the device
    never reached, where it recorded any. Both have `CAPTURE`."""
    key = ["capture", "mark"]
    both = host.join(device.unique(key, keep="first", maintain_order=True), on=key, how="left", maintain_order="left")
    recorded = pl.col("capture").is_in(device["capture"].unique().implode())
    unreached = both.select(pl.col("start_ns").is_null() & (pl.col("mark") > HOST_ONLY) & recorded).to_series()
    return both.filter(~unreached), both.filter(unreached)


def host_marks(db: Database) -> pl.DataFrame:
    """The marker ranges as the host saw them: host_start_ns, host_end_ns, text and domain, which are ids, mark."""
    return db.frame(
        "SELECT startNs AS host_start_ns, endNs AS host_end_ns, message AS text, connectionId AS mark,"
        " domainId AS domain FROM MSTX_EVENTS WHERE eventType IN (1, 2)"
    )


def api_marks(db: Database, dialects: Dialects) -> pl.DataFrame:
    """The ranges of PyTorch on the host (operators, annotations) whose names `dialects` may know, as from `host_marks`
    with texts for ids. Their times are texts (msprof's schema)."""
    if not db.has("PYTORCH_API", "startNs", "endNs", "name"):
        return _NO_CALLS
    names = db.names(NAMES, db.frame("SELECT DISTINCT name AS name FROM PYTORCH_API")["name"].drop_nulls())
    of_passes = pl.DataFrame({"id": list(names), "text": list(names.values())}, {"id": TIME, "text": TEXT})
    of_passes = of_passes.filter(dialects.may_know("text"))
    if of_passes.is_empty():
        return _NO_CALLS
    rows = db.frame(
        "SELECT CAST(startNs AS INTEGER) AS host_start_ns, CAST(endNs AS INTEGER) AS host_end_ns, name AS id"
        f" FROM PYTORCH_API WHERE name IN (SELECT value FROM json_each('{json.dumps(of_passes['id'].to_list())}'))"
    )
    return conform(rows.join(of_passes, on="id").with_columns(mark=pl.lit(HOST_ONLY, TIME)), _HOST_MARKS)


def placed(marks: pl.DataFrame) -> pl.DataFrame:
    """Marker ranges with a text, where they were on the device with these times, else with those of the host."""
    valid = valid_unix_times("host_start_ns", "host_end_ns")
    times = [pl.when(valid).then(c).alias(c) for c in ("host_start_ns", "host_end_ns")]
    return (
        marks.filter(pl.col("text").is_not_null())
        .with_columns(times)
        .with_columns(
            origin=pl.when(pl.col("start_ns").is_null()).then(pl.lit("host")).otherwise(pl.lit("device")),
            start_ns=pl.coalesce("start_ns", "host_start_ns"),
            end_ns=pl.coalesce("end_ns", "host_end_ns"),
        )
    )


def steps(db: Database) -> pl.DataFrame:
    """The host span of each `ProfilerStep#id`: step, start_ns, end_ns; only torch_npu records them."""
    if not db.has("STEP_TIME"):
        return _NO_STEPS
    return db.frame("SELECT id AS step, startNs AS start_ns, endNs AS end_ns FROM STEP_TIME")


def communication(db: Database, device: int | None = None) -> pl.DataFrame:
    """The communication operators, with a `device` those there: op and group, which are ids, start_ns, end_ns, opId,
    count, item (its type)."""
    size = "CAST(count AS INTEGER)" if db.has("COMMUNICATION_OP", "count") else "-1"
    kind = "dataType" if db.has("COMMUNICATION_OP", "dataType") else "65535"
    where = "" if device is None else f" WHERE deviceId = {device}"
    return db.frame(
        "SELECT opName AS op, groupName AS 'group', startNs AS start_ns, endNs AS end_ns, opId AS opId,"
        f" COALESCE({size}, -1) AS count, COALESCE({kind}, 65535) AS item FROM COMMUNICATION_OP{where}"
    )


def described(frame: pl.DataFrame) -> pl.DataFrame:
    """Operators with a name, with the hash of their group and their bytes."""
    item = pl.col("item").replace_strict(_ITEM_BYTES, default=None, return_dtype=TIME)
    sized = frame.with_columns(bytes=pl.when(pl.col("count") > 0).then(pl.col("count") * item))
    return sized.with_columns(_hashed(sized["group"])).filter(pl.col("op").is_not_null())


def _announced(ranges: pl.DataFrame) -> pl.DataFrame:
    """`OPERATORS` and `CAPTURE` that HCCL marked itself, in the domain `communication`, as JSON. These names have no
    index."""
    marked = ranges.filter(pl.col("domain") == "communication")
    if marked.is_empty():
        return empty({**OPERATORS, **CAPTURE})
    parsed = []
    for text in marked["text"].unique():
        with suppress(orjson.JSONDecodeError):
            message = orjson.loads(text)
            if isinstance(message, dict) and isinstance(message.get("opName"), str):
                parsed.append({"text": text, "op": message["opName"], "group": str(message.get("groupName", "N/A"))})
    schema = {"text": TEXT, "op": TEXT, "group": TEXT}
    rows = marked.join(pl.DataFrame(parsed, schema=schema), on="text")
    return conform(rows.with_columns(_hashed(rows["group"])), {**OPERATORS, **CAPTURE})


def _hashed(groups: pl.Series) -> pl.Series:
    """Group identifiers as their hashes; what is a number already is one."""
    hashes = {g: g if g.isdecimal() else group_hash(g) for g in groups.unique().drop_nulls() if g != "N/A"}
    return groups.replace_strict(hashes, default=None, return_dtype=TEXT) if hashes else groups.replace({"N/A": None})


def copying(db: Database) -> pl.DataFrame:
    """The small tasks that point-to-point operators are made of: opId, src, dst, task (an id), moved (bytes). Of more
    than a piece those alike are one row, with their sum."""
    if not db.has(_TASKS, "opId", "srcRank", "dstRank", "size", "taskType"):
        return _NO_COPYING
    transfers = (
        "SELECT o.opId FROM COMMUNICATION_OP o JOIN STRING_IDS s ON s.id = o.opName"
        " WHERE s.value LIKE '%send%' OR s.value LIKE '%rec%v%'"
    )
    sql = (
        "SELECT opId AS opId, srcRank AS src, dstRank AS dst, taskType AS task,"
        " CAST(MAX(COALESCE(size, 0), 0) AS INTEGER) AS moved"
        f" FROM {_TASKS} WHERE {{where}} AND opId IN ({transfers})"
    )
    copying = _NO_COPYING
    for rows in db.frames(_TASKS, sql):
        if copying.height:
            both = pl.concat([copying, rows], how="vertical_relaxed")
            alike = both.group_by("opId", "src", "dst", "task", maintain_order=True)
            rows = alike.agg(pl.col("moved").cast(pl.Float64).sum())  # a fraction cannot overflow
        copying = rows
    return copying


def copies(tasks: pl.DataFrame, operators: pl.DataFrame) -> pl.DataFrame:
    """`COPIES` and `CAPTURE`: what each of the `operators` (capture, opId, op, group) copied, by its `tasks`."""
    tasks = tasks.cast({"moved": pl.Float64}).filter(
        (pl.col("src") != NOT_AVAILABLE) & (pl.col("dst") != NOT_AVAILABLE) & pl.col("task").is_not_null()
    )
    data, key = ~pl.col("task").str.starts_with("Notify"), ["capture", "opId"]
    away = pl.col("src") != pl.col("dst")
    here = tasks.group_by(key, maintain_order=True).agg(local=pl.col("moved").filter(data & ~away).sum())
    peers = tasks.filter(away).group_by(*key, peer="dst", maintain_order=True)
    remote = peers.agg(remote=pl.col("moved").filter(data).sum())
    copied = here.join(remote, on=key, how="left", maintain_order="left_right")
    single = operators.select(*key, "op", "group").unique(key, keep="none")
    return conform(copied.join(single, on=key, maintain_order="left"), {**COPIES, **CAPTURE})


class StoredKernels(Kernels):
    """Those of a database; where it holds several devices, those on this `device` answer. Devices have streams of the
    same numbers."""

    def __init__(self, db: Database, device: int | None = None) -> None:
        self._db = db
        self._here = "TRUE" if device is None else f"t.deviceId = {device}"

    def all(self) -> pl.DataFrame:
        db = self._db
        if not db.has("COMPUTE_TASK_INFO", "globalTaskId", "name"):
            return empty(WORKED)
        kind = "opType" if db.has("COMPUTE_TASK_INFO", "opType") else "name"
        wanted = f"t.startNs AS start_ns, t.endNs AS end_ns, t.streamId AS stream, c.{kind} AS text, c.name AS name"
        parts = list(self._computing(wanted))
        if not parts:
            return empty(WORKED)
        whole = named(db, pl.concat(parts), "text", "name")
        typed = pl.when(pl.col("text") != "N/A").then("text").otherwise("name")
        return conform(whole.filter(valid_unix_times()).with_columns(text=typed), WORKED).sort("start_ns")

    def optimizing(self) -> pl.DataFrame:
        db, kernels = self._db, pl.DataFrame(schema={"start_ns": TIME, "end_ns": TIME})
        if not db.has("COMPUTE_TASK_INFO", "globalTaskId", "name"):
            return kernels
        names = db.names(NAMES, db.frame("SELECT DISTINCT name AS name FROM COMPUTE_TASK_INFO")["name"].drop_nulls())
        wanted = [i for i, name in names.items() if re.search(OPTIMIZER, name)]
        if not wanted:
            return kernels
        only = f"c.name IN (SELECT value FROM json_each('{json.dumps(wanted)}'))"
        parts = self._computing("t.startNs AS start_ns, t.endNs AS end_ns", only)
        return pl.concat([kernels, *parts]).filter(valid_unix_times())

    def busy(self, ranges: pl.DataFrame) -> pl.Series:
        worked = self._answers(
            ranges.select("start_ns", "end_ns"),
            f"SELECT row, TRUE FROM w WHERE EXISTS (SELECT 1 FROM {_KERNELS} WHERE t.startNs >= start_ns"
            f" AND t.startNs < end_ns AND {self._here})",
        )
        if worked is not None:
            return pl.Series([row in worked for row in range(ranges.height)], dtype=pl.Boolean)
        busy = pl.repeat(False, ranges.height, dtype=pl.Boolean, eager=True)
        for kernels in self._computing("t.startNs AS start_ns", self._here):
            busy |= any_starts(kernels["start_ns"], ranges)
        return busy

    def between(self, ranges: pl.DataFrame) -> pl.Series:
        sums = self._answers(
            ranges.select("start_ns", "end_ns"),
            f"SELECT row, SUM(min(t.endNs, end_ns) - t.startNs) FROM w JOIN {_KERNELS} WHERE t.startNs >= start_ns"
            f" AND t.startNs < end_ns AND {self._here} GROUP BY row",
        )
        if sums is None:
            kernels = self._computing("t.startNs AS start_ns, t.endNs AS end_ns", self._here)
            return sum_between(pl.concat([*kernels]), ranges)
        return pl.Series([sums.get(row, 0) for row in range(ranges.height)], dtype=TIME)

    def before(self, times: pl.DataFrame) -> pl.Series:
        """See Kernels; null for all where that takes long to find."""
        ends = self._answers(
            times.select(pl.col("stream").fill_null(-1), "at_ns"),
            f"SELECT row, (SELECT t.endNs FROM {_KERNELS} WHERE t.startNs < at_ns AND t.streamId = stream"
            f" AND {self._here} ORDER BY t.startNs DESC LIMIT 1) FROM w",
        )
        return pl.Series([(ends or {}).get(row) for row in range(times.height)], dtype=TIME)

    def _answers(self, rows: pl.DataFrame, query: str) -> dict[int, int] | None:
        """What the `query` says of each of the `rows`, which it reads as `w` with their number `row`; None where that
        takes long to find."""
        asked, answers = rows.with_row_index("row"), dict[int, int]()
        for lot in asked.iter_slices(BUSY_RANGES):
            values = ",".join(f"({','.join(map(str, row))})" for row in lot.rows())
            answered = self._db.attempt(f"WITH w({','.join(asked.columns)}) AS (VALUES {values}) {query}", BUSY_STEPS)
            if answered is None:
                return None
            answers.update(answered)
        return answers

    def _computing(self, wanted: str, only: str = "TRUE") -> Iterator[pl.DataFrame]:
        """What is `wanted` of the tasks `t` that are compute kernels (further columns: `c`) and meet the condition
        `only`, in pieces."""
        for rows in self._db.chunks("TASK"):
            yield self._db.frame(f"SELECT {wanted} FROM {_KERNELS} WHERE t.{rows} AND {only}")


def counters(db: Database) -> pl.DataFrame:
    """The sampled quantities of the device as in model.COUNTERS but for the rank."""
    parts = [empty(COUNTERS)]
    for table, name, unit, time, value, by in _COUNTERS:
        keys = by.split()
        if not db.has(table, time, value, *keys):
            continue
        columns = ", ".join([f"{time} AS ts_ns", f"COALESCE({value}, 0) AS value", *(f"{k} AS {k}" for k in keys)])
        samples = db.frame(f"SELECT {columns} FROM {table}", real=["value"])
        samples = named(db, samples, *(k for k in keys if k != "hbmId"))
        title = pl.format(name, *(pl.col(k).cast(TEXT).fill_null("") for k in keys)) if keys else pl.lit(name)
        parts.append(conform(samples.with_columns(name=title, unit=pl.lit(unit)), COUNTERS))
    return pl.concat(parts)
