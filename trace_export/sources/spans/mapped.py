"""Tables of anybody's own tool, Parquet, CSV or Chrome JSON, by the columns that the user names or a preset does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import polars as pl

from trace_export.errors import SourceError, in_column, path_text
from trace_export.files import Unpacked, open_file
from trace_export.model import Declared, Profile
from trace_export.schedules.operation_types import COLLECTIVE, TRANSFERS
from trace_export.sources.shared import csv_table
from trace_export.sources.shared.parquet_pages import checked
from trace_export.sources.source import ReadOptions, Source
from trace_export.sources.spans.blocks import ZERO_NS, kind_of, one_after_another, profile_of
from trace_export.sources.spans.columns import TIMES, Columns
from trace_export.sources.spans.megascan_files import iterations

MEGASCAN = Columns.parse(
    "rank=pid,kind=name,start=ts:us,end=end:us,step=iteration,stage=pp_rank,microbatch=microbatch,chunk=model_chunk"
)
"""The pipeline traces of MegaScan (arXiv 2507.19845): B and E events whose numbers stand on the E event."""
EARLIEST_DATE_NS = 1e18
"""Earlier times (September 2001) are no dates: they count from a start of their own."""
TEXTS = ("kind", "host")
OTHERS = 40
"""Fields of events that are kept beside those that are wanted, so that an error can name them."""
REMEDY = "say which column means what with --columns"
LARGEST_NS = float(1 << 62)
LARGEST_JSON = 1 << 30
SMALL_JSON, LARGEST_RATIO = 16 << 20, 40
"""Bytes of JSON that are read: of a packed file so many, and so many times its size; Python objects of them take ten
times as many."""


def read(source: Source, options: ReadOptions) -> Profile:
    """The pipeline traces of MegaScan, of one or several iterations; the ranks' clocks were aligned by it, and time
    counts from the iteration.

    Raises SourceError as `read_columns` does, and where two files hold the same iteration.
    """
    paths = iterations(source.path)
    parts = [_rows(path, MEGASCAN) for path in paths]
    _refuse_repeated(paths, parts)
    return _profile(pl.concat(parts), source, epoch="start")


def _refuse_repeated(paths: list[Path], parts: list[pl.DataFrame]) -> None:
    """Raises SourceError where two files hold the same iteration."""
    first: dict[int, Path] = {}
    for path, rows in zip(paths, parts, strict=True):
        for step in rows["step"].unique().drop_nulls().sort().to_list():
            if first.setdefault(step, path) != path:
                what = f"holds iteration {step}, which {path_text(first[step])} holds too"
                raise SourceError(path, what, "keep only one of them in the folder")


def read_columns(source: Source, columns: Columns, *, epoch: str | None = None) -> Profile:
    """The spans of a table: blocks by what their kind is called, transfers and collectives by the names of
    `schedules.operation_types`, all else named work.

    Raises SourceError when a column is missing, or holds what it cannot.
    """
    return _profile(_rows(source.path, columns), source, epoch)


def _rows(path: Path, columns: Columns) -> pl.DataFrame:
    """The rows of a table with the fields that `columns` names."""
    try:
        table = _table(path, {column for _, column in columns.names})
        missing = [column for _, column in columns.names if column not in table.columns]
        if missing:
            there = ", ".join(map(_short, table.columns[:20]))
            raise SourceError(path, f"has no column {missing[0]}; it has {there}", REMEDY)
        rows = table.select(_typed(field, column, columns.unit_ns) for field, column in columns.names)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise SourceError(path, f"cannot be read as a table of spans{in_column(error)}", REMEDY) from error
    if "duration" in rows.columns:
        rows = rows.with_columns(end=pl.col("start") + pl.col("duration"))
    return _checked(rows, path)


def _profile(rows: pl.DataFrame, source: Source, epoch: str | None) -> Profile:
    if rows.select((pl.col("start").min() < EARLIEST_DATE_NS).fill_null(False)).item():
        epoch = "start"
    return profile_of(_placed(rows, source.path), source, Declared(), epoch=epoch)


def _table(path: Path, wanted: set[str]) -> pl.DataFrame:
    if path.suffix == ".csv":
        return csv_table.scan(path).collect()
    if path.suffix == ".parquet":
        with open_file(path) as file:
            return pl.read_parquet(checked(file))
    try:
        largest = min(LARGEST_JSON, SMALL_JSON + LARGEST_RATIO * path.stat().st_size)
        with Unpacked(path) as packed:
            text = packed.read(largest + 1)
        if len(text) > largest:
            raise SourceError(path, f"holds more than {largest >> 20} MiB of JSON", "write a Parquet table")
        content = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise SourceError(path, f"is no JSON ({error})", "record it again") from error
    events = content.get("traceEvents") if isinstance(content, dict) else content
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise SourceError(path, "holds no list of trace events", REMEDY)
    return _events(events, path, wanted)


def _events(events: list[dict[str, Any]], path: Path, wanted: set[str]) -> pl.DataFrame:
    """A row per complete event: its fields and arguments, the `wanted` and a few more, and `end`; B and E of a thread
    are a pair, the E event's arguments count where both have one."""
    kept = dict.fromkeys(sorted({*wanted, "ts", "name", "pid", "tid"}))

    def scalars(fields: dict[str, Any]) -> dict[str, Any]:
        for name in fields if len(kept) < len(wanted) + OTHERS else ():
            kept.setdefault(name)
        return {k: v for k, v in fields.items() if k in kept and not isinstance(v, dict | list)}

    rows: list[dict[str, Any]] = []
    begun: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
    for event in events:
        arguments = event.get("args")
        flat = scalars(event)
        thread = flat.get("pid"), flat.get("tid")
        if isinstance(arguments, dict):
            flat |= scalars(arguments)
        if event.get("ph") == "X":
            rows.append({**flat, "end": _number(event.get("ts")) + _number(event.get("dur"))})
        elif event.get("ph") == "B":
            begun.setdefault(thread, []).append(flat)
        elif event.get("ph") == "E":
            if not begun.get(thread):
                raise SourceError(path, "has an end event (E) without its begin", "record it again")
            first = begun[thread].pop()
            rows.append({**flat, **{k: first[k] for k in ("ts", "name") if k in first}, "end": event.get("ts")})
    if not rows:
        raise SourceError(path, "holds no event with a start and an end", REMEDY)
    return pl.DataFrame(rows, infer_schema_length=None, strict=False)


def _short(name: object) -> str:
    """A name of the user's, for a message."""
    return text if len(text := str(name)) <= 60 else f"{text[:59]}…"


def _number(value: object) -> float:
    """A time of an event; what is no number counts as none."""
    return value if isinstance(value, int | float) else 0


def _typed(field: str, column: str, unit_ns: int) -> pl.Expr:
    value = pl.col(column)
    if field in TIMES:
        return (value.cast(pl.Int64) * unit_ns if unit_ns == 1 else value.cast(pl.Float64) * unit_ns).alias(field)
    return value.cast(pl.String if field in TEXTS else pl.Int32).alias(field)


def _checked(rows: pl.DataFrame, path: Path) -> pl.DataFrame:
    times = [pl.col(end).cast(pl.Float64) for end in ("start", "end")]
    valid = pl.all_horizontal(t.is_finite() & (t.abs() < LARGEST_NS) for t in times)
    bad = rows.filter(~(valid & (times[1] >= times[0]) & pl.col("rank").is_not_null()).fill_null(False))
    if bad.height:
        row = bad.row(0, named=True)
        if row["rank"] is None or row["start"] is None or row["end"] is None:
            raise SourceError(path, "has a row without a rank or a time", "leave such rows out")
        kind = _short(row["kind"])
        what = f"has a span that ends before it starts, or at an impossible time: {kind} of rank {row['rank']}"
        raise SourceError(
            path, f"{what} from {row['start']:.9g} to {row['end']:.9g} ns", "check the units in --columns"
        )
    return rows


def _placed(rows: pl.DataFrame, path: Path) -> pl.DataFrame:
    """`rows` with start_ns, end_ns, kind, op and marker. Times that may count from 0 are moved off it."""
    moved = ZERO_NS if rows.select((pl.col("start").min() < ZERO_NS).fill_null(False)).item() else 0
    known = [*TRANSFERS, *COLLECTIVE]
    placed = rows.with_columns(
        marker="kind", op=pl.when(pl.col("kind").is_in(known)).then("kind"), kind=kind_of("kind"),
        **{f"{end}_ns": pl.col(end).round().cast(pl.Int64) + moved for end in ("start", "end")},
    )  # fmt: skip
    placed = one_after_another(placed)
    if placed["kind"].drop_nulls().is_empty():
        kinds = placed["marker"].drop_nulls().unique(maintain_order=True).head(5)
        names = ", ".join(f'"{_short(name)}"' for name in kinds) or "empty"
        raise SourceError(
            path, f"names no forward or backward: its kinds are {names}", "give the column with the kinds"
        )
    return placed
