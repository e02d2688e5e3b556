"""A text export of torch_npu or MindSpore: `kernel_details.csv`, `communication*.json` and tables of memory.

Columns come and go with level and version, so they are selected by name. Times are µs as text, often with a TAB behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from trace_export.errors import SourceError
from trace_export.files import read_file
from trace_export.model import COUNTERS, INT, TEXT, TIME, Note, Schema, conform, empty
from trace_export.sources.ascend import trace_view
from trace_export.sources.ascend.hccl import COPIES, OPERATORS
from trace_export.sources.ascend.marker_blocks import OPTIMIZER, STEPS, WORKED, Kernels, any_starts, sum_between
from trace_export.sources.ascend.metadata import COMMUNICATION, TABLE, TRACES, home_of, info_of, metadata, whole
from trace_export.sources.ascend.recorded import Recorded
from trace_export.sources.ranges.devices import SEVERAL
from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.ranges.notes import unmatched
from trace_export.sources.shared import csv_table
from trace_export.sources.shared.sqlite import Database
from trace_export.sources.shared.timestamps import ZERO_NS, valid_unix_times
from trace_export.sources.source import Source
from trace_export.units import thousandths

KERNELS: Schema = {
    "name": TEXT, "type": TEXT, "core": TEXT, "stream": TIME, "step": INT, "start_ns": TIME, "end_ns": TIME,
}  # fmt: skip
"""One row of kernel_details.csv. `type` is null at Level0: only the name identifies a kernel."""

_COLUMNS = {"name": "Name", "type": "Type", "core": "Accelerator Core", "stream": "Stream ID", "step": "Step Id"}
_TIMES = ("Start Time(us)", "Duration(us)")

_MEMORY = (
    ("memory_record.csv", "{} allocated", "Component", "Total Allocated(MB)"),
    ("memory_record.csv", "{} reserved", "Component", "Total Reserved(MB)"),
    ("npu_module_mem.csv", "{} module reserved", "Component", "Total Reserved(MB)"),
)
DEVICE = "Device_id"
MB = 1_000_000
MAX_JSON_TABLE = 512 << 20
"""A communication file holds some 2 kB for each operator, and is read whole."""
LARGEST = 1 << 53
"""Of the numbers in JSON files: a time in µs far beyond ours, and the largest up to which a float is exact."""


def recorded(source: Source, dialects: Dialects) -> Recorded:
    """The rank of an export. Raises SourceError where it has several devices, and as `_on_one_clock` does."""
    folder, rank = source.path, 0 if source.rank is None else source.rank
    notes = list(unfinished(folder))
    seen = _trace(folder, dialects)
    rows = kernels(folder)
    of_hccl = pl.col("core").is_in(COMMUNICATION).fill_null(False)
    is_communication = of_hccl | pl.col("name").str.starts_with("hcom_")
    communication = rows.filter(is_communication).collect(engine="streaming")
    computing = rows.filter(~is_communication)
    listed = ListedKernels(computing)
    by_step = computing.group_by("step").agg(pl.col("end_ns").max()).drop_nulls().collect(engine="streaming")
    correlated = seen.marks["host_start_ns"].null_count() == 0 and len(seen.steps) > 0
    operations, copies = operators(communication, folder, notes)
    host, epoch, samples = source.host, None, counters(folder)
    if seen.tasks is not None:
        seen, epoch = _on_one_clock(seen, rows, operations, folder, notes)
    if epoch is not None:
        host = f"{source.host} rank {rank}"
        text = "samples of memory at unix times, left out: the times of the blocks count from the start of the rank"
        notes += [Note("samples-unplaced", "note", text, str(folder), len(samples))] if len(samples) else []
        samples = samples.clear()
    origin = "assumed" if source.rank is None else source.rank_origin
    return Recorded(
        source=source, rank=rank, rank_origin=origin, device=device(folder), host=host, label=host, epoch=epoch,
        meta=metadata((), home_of(folder), rank, folder),
        steps=seen.steps if correlated or by_step.is_empty() else steps(by_step),
        tables={"marks": seen.marks, "operators": operations, "copies": copies},
        counters=pl.concat([seen.counters, samples]),
        kernels=listed, looks=listed if len(by_step) else Kernels(), notes=(*seen.notes, *notes),
    )  # fmt: skip


def _on_one_clock(
    seen: trace_view.TraceView, rows: pl.LazyFrame, operators: pl.DataFrame, folder: Path, notes: list[Note]
) -> tuple[trace_view.TraceView, str | None]:
    """The trace of a rank, whose times count from the start of its recording, in the clock of the tables beside it (the
    `rows` of kernel_details.csv, or else the `operators`), and the epoch of that clock. Appends a note on it.

    Raises SourceError where there are tables and nothing says how their clock and that of the trace differ.
    """
    path = _trace_in(folder)
    table = rows.select("start_ns", "end_ns").collect(engine="streaming")
    table = operators.select("start_ns", "end_ns").drop_nulls() if table.is_empty() else table
    assert seen.tasks is not None
    if table.is_empty():
        return seen.moved(ZERO_NS), "start"
    offset = trace_view.clock_offset(seen.tasks, table)
    if offset is None and seen.marks.is_empty():
        return trace_view.NOTHING, None
    if offset is None:
        what = "counts its times from the start of the recording, and nothing in it is in the tables beside it"
        raise SourceError(path, what, "export the profile again, or draw trace_view.json without the tables beside it")
    text = "times that count from the start of the recording, placed by the kernels that the tables have too"
    notes.append(Note("trace-times-relative", "note", text, str(path)))
    return seen.moved(offset), None


def _trace(folder: Path, dialects: Dialects) -> trace_view.TraceView:
    path = _trace_in(folder)
    if path.is_file():
        return trace_view.read(path, dialects)
    return replace(
        trace_view.NOTHING, notes=tuple(unmatched(folder, dialects.unmatched(pl.Series([], dtype=pl.String))))
    )


def _trace_in(folder: Path) -> Path:
    """The trace of a text export, packed or not."""
    return next((path for name in TRACES if (path := folder / name).is_file()), folder / TRACES[0])


def kernels(folder: Path) -> pl.LazyFrame:
    """The rows of kernel_details.csv as `KERNELS`, read when collected; none if there is no such file.

    Raises SourceError when it lacks the columns of times.
    """
    path = folder / TABLE
    if not path.is_file() or path.stat().st_size == 0:
        return empty(KERNELS).lazy()
    rows = csv_table.scan(path)
    there = rows.collect_schema().names()
    if not {"Name", *_TIMES} <= set(there):
        raise SourceError(path, f"has no columns {', '.join(_TIMES)}", "collect the profile again")
    columns = [pl.col(old).replace({"N/A": None}).alias(new) for new, old in _COLUMNS.items() if old in there]
    absent = [pl.lit(None, TEXT).alias(new) for new, old in _COLUMNS.items() if old not in there]
    start, length = (thousandths(pl.col(column)) for column in _TIMES)
    return rows.select(*columns, *absent, start_ns=start, end_ns=start + length).with_columns(
        pl.col("stream").cast(TIME, strict=False), pl.col("step").cast(INT, strict=False)
    ).filter(valid_unix_times())  # fmt: skip


def unfinished(folder: Path) -> Iterator[Note]:
    """A warning for each table without content, which is read as if it were absent."""
    for path in sorted(folder.glob("*.csv")):
        if path.is_file() and path.stat().st_size == 0:
            text = "empty table, treated as absent; its export or copy did not finish"
            yield Note("table-empty", "warning", text, str(path))


def device(folder: Path) -> int | None:
    """The device's number on its host: a column that several tables have, depending on the version. Raises SourceError
    where it has several: the trace does not say which blocks are whose."""
    for name in ("step_trace_time.csv", TABLE):
        path = folder / name
        if path.is_file() and path.stat().st_size and DEVICE in csv_table.scan(path).collect_schema().names():
            column = csv_table.scan(path).select(DEVICE)
            values = (column.head(1) if name == TABLE else column.unique(maintain_order=True)).collect()[DEVICE]
            numbers = [number for value in values if (number := whole(value, least=0)) is not None]
            if len(numbers) > 1:
                what = f"{SEVERAL}, and a text export does not say which of them runs a block"
                raise SourceError(folder, what, "export the profile with the export type db")
            return next(iter(numbers), None)
    inner = info_of(home_of(folder)).get("ms_profiler_info")
    return whole(inner.get("device_id"), least=0) if isinstance(inner, dict) else None


def operators(rows: pl.DataFrame, folder: Path, notes: list[Note]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """(`OPERATORS`, `COPIES`): times from the communication `rows` of kernel_details.csv, the rest from the JSON files.

    A rank without kernel_details.csv has its times from communication.json, on a grid of 0.25 µs, or analysis.db.
    """
    operators = _communication(folder, notes)
    timed = rows.select("start_ns", "end_ns", op="name")
    if timed.is_empty():
        sized = operators if len(operators) else _analysed(folder)
    else:
        sized = timed.join(operators.select("op", "group", "bytes").unique("op", keep="none"), on="op", how="left")
    return conform(sized, OPERATORS), _copies(folder, operators, notes)


def _communication(folder: Path, notes: list[Note]) -> pl.DataFrame:
    """The operators in communication.json: op, group, start_ns, end_ns, bytes (remote).

    The profiler writes a sum of nothing if it took no sizes: null.
    """
    rows = []
    for name, group, entry in _entries(folder / "communication.json", notes):
        time, bandwidth = entry.get("Communication Time Info"), entry.get("Communication Bandwidth Info")
        if not isinstance(time, dict) or "Start Timestamp(us)" not in time:
            continue  # Total Op Info
        start, length = _number(time["Start Timestamp(us)"]), _number(time.get("Elapse Time(ms)"))
        links = bandwidth if isinstance(bandwidth, dict) else {}
        sizes = [_number(links[k].get("Transit Size(MB)")) for k in ("SDMA", "RDMA") if isinstance(links.get(k), dict)]
        start_ns = round(start * 1000)
        rows.append((name, group, start_ns, start_ns + round(length * 1e6), round(sum(sizes) * MB) or None))
    return pl.DataFrame(rows, schema=OPERATORS, orient="row")


def _copies(folder: Path, operators: pl.DataFrame, notes: list[Note]) -> pl.DataFrame:
    """`COPIES`: remote and local bytes per operator from communication_matrix.json, which lists a few of each kind; of
    the others communication.json has the remote ones, if it recorded sizes at all."""
    rows = [
        (str(link["Op Name"]), group, *pair, round(_number(link.get("Transit Size(MB)")) * MB))
        for _, group, links in _entries(folder / "communication_matrix.json", notes)
        for between, link in links.items()
        if isinstance(link, dict) and "Op Name" in link and (pair := _pair(between)) is not None
    ]
    schema = {"op": TEXT, "group": TEXT, "own": INT, "peer": INT, "moved": TIME}
    links = pl.DataFrame(rows, schema=schema, orient="row").unique()
    away = pl.col("own") != pl.col("peer")
    matrix = links.group_by("op", "group").agg(
        peer=pl.col("peer").filter(away).first(),
        remote=pl.col("moved").filter(away).sum(),
        local=pl.col("moved").filter(~away).sum(),
    )
    if not operators["bytes"].sum():
        return conform(matrix, COPIES)
    rest = operators.join(matrix, on=["op", "group"], how="anti").with_columns(remote="bytes")
    return pl.concat([conform(matrix, COPIES), conform(rest, COPIES)])


def _pair(between: str) -> tuple[int, int] | None:
    first, dash, peer = between.partition("-")
    return (int(first), int(peer)) if dash and first.isdecimal() and peer.isdecimal() else None


def _entries(path: Path, notes: list[Note]) -> Iterator[tuple[str, str | None, dict[str, Any]]]:
    """(name before the @, group hash after it, entry) of every step and kind in a communication file."""
    if not path.is_file():
        return
    try:
        content = orjson.loads(read_file(path, MAX_JSON_TABLE))
    except (OSError, orjson.JSONDecodeError):
        content = None
    if not isinstance(content, dict):
        text = "not a JSON object; communication of this rank is missing"
        notes.append(Note("communication-malformed", "warning", text, str(path)))
        return
    for step in content.values():
        for kind in step.values() if isinstance(step, dict) else ():
            for name, entry in kind.items() if isinstance(kind, dict) else ():
                op, _, group = name.partition("@")
                if isinstance(entry, dict):
                    yield op, group or None, entry


def _number(value: object) -> float:
    """A quantity of a JSON file, 0 for what cannot be one."""
    return float(value) if isinstance(value, (int, float)) and abs(value) < LARGEST else 0.0


def _analysed(folder: Path) -> pl.DataFrame:
    """The operators of analysis.db (torch_npu) or communication_analyzer.db (MindSpore), if nothing else has them."""
    for name in ("analysis.db", "communication_analyzer.db"):
        if not (folder / name).is_file():
            continue
        with Database(folder / name) as db:
            if db.has("CommAnalyzerTime"):
                rows = db.texts(
                    "SELECT hccl_op_name, group_name, CAST(ROUND(start_timestamp * 1000) AS INTEGER),"
                    " CAST(ROUND(start_timestamp * 1000 + elapse_time * 1000000) AS INTEGER), NULL"
                    " FROM CommAnalyzerTime WHERE hccl_op_name LIKE 'hcom%'"
                )
                return pl.DataFrame(rows, schema=OPERATORS, orient="row")
    return empty(OPERATORS)


def steps(kernel_steps: pl.DataFrame) -> pl.DataFrame:
    """`STEPS` on the device, from the step of each kernel: each step begins where the one before it ended."""
    ends = kernel_steps.sort("end_ns").select("step", "end_ns", start_ns=pl.col("end_ns").shift(1).fill_null(0))
    return conform(ends, STEPS)


def counters(folder: Path) -> pl.DataFrame:
    """The samples in the tables of memory as in model.COUNTERS but for the rank, in bytes."""
    parts = [empty(COUNTERS)]
    for name, title, by, value in _MEMORY:
        path = folder / name
        if not path.is_file() or path.stat().st_size == 0:
            continue
        rows = csv_table.scan(path)
        if not {by, value, "Timestamp(us)"} <= set(rows.collect_schema().names()):
            continue
        samples = rows.select(
            name=pl.format(title, by), unit=pl.lit("B"), ts_ns=thousandths(pl.col("Timestamp(us)")),
            value=pl.col(value).str.strip_chars().cast(pl.Float64, strict=False) * (1 << 20),
        ).drop_nulls().collect()  # fmt: skip
        parts.append(conform(samples, COUNTERS))
    return pl.concat(parts)


class ListedKernels(Kernels):
    """Those among the rows of kernel_details.csv (`KERNELS`)."""

    def __init__(self, rows: pl.LazyFrame) -> None:
        self._rows = rows

    def all(self) -> pl.DataFrame:
        rows = self._rows.select("stream", "step", "start_ns", "end_ns", text=pl.coalesce("type", "name"))
        return conform(rows.collect(engine="streaming"), WORKED).sort("start_ns")

    def optimizing(self) -> pl.DataFrame:
        named = self._rows.filter(pl.col("name").str.contains(OPTIMIZER))
        return named.select("start_ns", "end_ns").collect(engine="streaming")

    def busy(self, ranges: pl.DataFrame) -> pl.Series:
        return any_starts(self._rows.select("start_ns").collect(engine="streaming")["start_ns"], ranges)

    def between(self, ranges: pl.DataFrame) -> pl.Series:
        return sum_between(self._rows.select("start_ns", "end_ns").collect(engine="streaming"), ranges)

    def before(self, times: pl.DataFrame) -> pl.Series:
        kernels = self._rows.select("stream", "start_ns", ended="end_ns").collect(engine="streaming").sort("start_ns")
        asked = times.with_row_index("row").sort("at_ns")
        ended = asked.join_asof(kernels, left_on="at_ns", right_on="start_ns", by="stream", allow_exact_matches=False,
                                check_sortedness=False)  # fmt: skip
        return ended.sort("row")["ended"]
