"""Tables of any other tool, Parquet, CSV or Chrome JSON, by the columns that the user or a preset names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import polars as pl

from trace_export.errors import SourceError, in_column, path_text
from trace_export.files import open_file
from trace_export.model import OUTSIDE, RANKS, WORK_KINDS, Declared, Note, Profile, conform
from trace_export.schedules.operation_types import COLLECTIVE, TRANSFERS
from trace_export.schedules.passes import FORWARDS
from trace_export.sources.not_here import no_table
from trace_export.sources.shared import csv_table
from trace_export.sources.shared.batch import each
from trace_export.sources.shared.names import shortened
from trace_export.sources.shared.parquet_pages import checked
from trace_export.sources.shared.timestamps import ZERO_NS
from trace_export.sources.source import ReadOptions, Source
from trace_export.sources.spans.blocks import kind_of, of_ranks, one_after_another, profile_of
from trace_export.sources.spans.columns import TIMES, Columns
from trace_export.sources.spans.find import iterations
from trace_export.units import EPOCH_NS, duration

MEGASCAN = Columns.parse(
    "rank=pid,kind=name,start=ts:us,end=end:us,step=iteration,stage=pp_rank,microbatch=microbatch,chunk=model_chunk"
)
"""The pipeline traces of MegaScan (arXiv 2507.19845): B and E events whose numbers stand on the E event."""
TEXTS = ("kind", "host")
OTHERS = 40
"""Besides the wanted fields of events at most this many others are kept, so that an error can name them."""
REMEDY = "say which column means what with `columns`"
PLAIN = "write times as digits, with a decimal point where there is a fraction, and without a separator of thousands"
LARGEST_NS = float(1 << 62)
NESTED = (dict, list)
"""Types of values that are no column of a table."""
EXACT_DIGITS = range(11, 18)
"""Decimal exponents of numbers with a fraction that a float rounds to more than a thousandth: unix times in µs."""
DECIMAL = r"^-?\d{1,18}(?:\.\d{1,9})?$"

NO_VALUE = ("", "nan", "none", "null", "na", "n/a", "<na>")
"""What programs write where a row has no number."""
NO_WORK = r"(?i)send|recv|receive|p2p|comm|reduce|gather|scatter|broadcast|all.?to.?all|[nhr]ccl|barrier|wait|sync|idle"
"""Kinds that say of communication or of a wait."""
SHORTEST_NS = 20_000
"""A kernel takes some microseconds, and the forward of a stage has many."""
ANOTHER_UNIT = 500
"""Units of time differ by a factor of 1000, and no stage's forward takes this many times as long as another's."""


def read_one(source: Source, options: ReadOptions) -> Profile:
    """The pipeline traces of MegaScan, of one or several iterations; the ranks' clocks were aligned by it, and time
    counts from the iteration.

    Raises SourceError as `read_columns` does, and where two files hold the same iteration.
    """
    paths = iterations(source.path)
    parts = [_rows(path, MEGASCAN) for path in paths]
    _refuse_repeated(paths, parts)
    return of_ranks(_profile(pl.concat(parts), source, epoch="start"), options.ranks)


read = partial(each, read_one)


def _refuse_repeated(paths: list[Path], parts: list[pl.DataFrame]) -> None:
    """Raises SourceError where two files hold the same iteration."""
    first: dict[int, Path] = {}
    for path, rows in zip(paths, parts, strict=True):
        for step in rows["step"].unique().drop_nulls().sort().to_list():
            if first.setdefault(step, path) != path:
                what = f"holds iteration {step}, which {path_text(first[step])} holds too"
                raise SourceError(path, what, "keep only one of them in the folder")


def read_columns(source: Source, columns: Columns) -> Profile:
    """The spans of a table: blocks by what their kind is called, transfers and collectives by the names of
    `schedules.operation_types`, all else named work.

    Raises SourceError when a column is missing, or holds what it cannot.
    """
    profile = _with_other_work(_profile(_rows(source.path, columns), source), source.path)
    profile = csv_table.with_doubts_of_rounding(profile, source.path)
    return profile if columns.has_unit else _with_doubts_of_unit(profile, source.path)


def _with_doubts_of_unit(profile: Profile, path: Path) -> Profile:
    """With a warning where forwards whose unit was not given would be shorter than any."""
    forwards = profile.spans.filter(FORWARDS).select((pl.col("end_ns") - pl.col("start_ns")).median())
    usual = forwards.item() if forwards.height else None
    if usual is None or usual >= SHORTEST_NS:
        return profile
    what = f"times without a unit are taken for nanoseconds, and a forward then takes {duration(usual)} (median)"
    text = f"{what}; if they are in another unit, say so: start=COLUMN:us, or :ms or :s"
    return profile.with_notes([Note("times-without-unit", "warning", text, path_text(path))])


def _with_other_work(profile: Profile, path: Path) -> Profile:
    """With the share of each rank's time that named work takes between the passes, and a warning where it is much."""
    spans = profile.spans.sort("start_ns")
    passes = spans.filter(pl.col("kind").is_not_null()).with_columns(next="start_ns", until="end_ns")
    passes = passes.with_columns(pl.col("until").cum_max().over("rank"))
    unnamed = pl.col("kind").is_null() & ~pl.col("marker").cast(pl.String).str.contains(NO_WORK).fill_null(False)
    other = spans.filter(unnamed).select("rank", "marker", "start_ns", "end_ns")
    last, next_ = passes.select("rank", "start_ns", "until"), passes.select("rank", "start_ns", "next")
    other = other.join_asof(last, on="start_ns", by="rank", check_sortedness=False)
    other = other.join_asof(next_, on="start_ns", by="rank", strategy="forward", check_sortedness=False)
    overlapping = (pl.col("until") > pl.col("start_ns")) | (pl.col("next") < pl.col("end_ns"))
    length = (pl.col("end_ns") - pl.col("start_ns")).sum()
    other = other.filter(~overlapping.fill_null(False))
    alone = other.group_by("rank").agg(alone=length).join(passes.group_by("rank").agg(named=length), on="rank")
    shares = alone.select("rank", outside=pl.col("alone") / (pl.col("alone") + pl.col("named")))
    many = shares.filter(pl.col("outside") >= OUTSIDE)
    if many.is_empty():
        return profile
    names = other.group_by("marker").agg(length.alias("ns")).sort("ns", "marker", descending=[True, False])["marker"]
    most = float(many.select(pl.col("outside").max()).item())
    text = f"work between the passes, up to {most:.1%} of the time of a rank, counts as idle: its kind"
    what = f"{text} ({', '.join(map(shortened, names[:3].to_list()))}) names no pass; call passes F, B, W or OPT"
    ranks = profile.ranks.drop("outside").join(shares, on="rank", how="left", maintain_order="left")
    note = Note("compute-outside-blocks", "warning", what, str(path), many.height)
    return replace(profile, ranks=conform(ranks, RANKS)).with_notes([note])


def _rows(path: Path, columns: Columns) -> pl.DataFrame:
    """The rows of a table with the fields that `columns` names."""
    try:
        table = _table(path, {column for _, column in columns.names})
        missing = [column for _, column in columns.names if column not in table.columns]
        if missing:
            there = ", ".join(map(shortened, table.columns[:20])) or "none"
            raise SourceError(path, f"has no column {missing[0]}; it has {there}", REMEDY)
        twice = [column for _, column in columns.names if f"{column}_duplicated_0" in table.columns]
        if twice:
            raise SourceError(path, f"has two columns {shortened(twice[0])}", "rename one of them")
        rows = pl.DataFrame([
            _typed(table[column], field, columns.unit_ns, path).alias(field) for field, column in columns.names
        ])  # fmt: skip
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise SourceError(path, f"cannot be read as a table of spans{in_column(error)}", REMEDY) from error
    if "duration" in rows.columns:
        rows = rows.with_columns(end=rows["start"] + _exact(rows["duration"], rows["start"]))
    return _checked(rows, path)


def _profile(rows: pl.DataFrame, source: Source, epoch: str | None = None) -> Profile:
    if rows.select((pl.col("start").min() < EPOCH_NS).fill_null(False)).item():
        epoch = "start"
    placed = _placed(rows, source.path)
    _refuse_own_zeros(placed, source.path)
    return profile_of(placed, source, Declared(), epoch=epoch)


def _refuse_own_zeros(placed: pl.DataFrame, path: Path) -> None:
    """Raises SourceError where each rank seems to count from its own first block: all stages begin the same micro-batch
    at one time, though a later stage has its input only when the one before has ended."""
    if not {"stage", "microbatch"} <= set(placed.columns):
        return
    work = placed.filter(pl.col("kind").is_in(WORK_KINDS), pl.col("op").is_null()).sort("start_ns")
    first = work.group_by("rank").first().filter(pl.all_horizontal(pl.col("stage", "microbatch") >= 0))
    same = pl.all_horizontal(pl.col("start_ns", "microbatch").n_unique() == 1) & (pl.col("kind") == "F").all()
    long = (pl.col("end_ns") - pl.col("start_ns")).min() >= SHORTEST_NS  # else the unit may be wrong
    if first.select(same & long & (pl.col("stage").n_unique() > 1)).item():
        what = "has all stages begin the same micro-batch at one time, as where each rank counts from its own start"
        raise SourceError(path, what, "add to the times of each rank when it began, on one clock")


def _table(path: Path, wanted: set[str]) -> pl.DataFrame:
    if path.suffix in csv_table.SUFFIXES:
        return csv_table.scan(path).rename(str.strip).collect()
    if path.suffix == ".parquet":
        with open_file(path) as file:
            return pl.read_parquet(checked(file))
    if other := no_table(path.name):
        raise SourceError(path, f"is {other}", "give CSV, Parquet or Chrome JSON")
    from trace_export.sources.shared.chrome_json import Events, JsonTrace  # and msgspec

    whole: Events[dict[str, Any]] = Events(dict, list, number=Decimal)
    with JsonTrace(path, whole) as trace:
        table = _events(chain.from_iterable(trace.pieces()), path, wanted)
        if any(trace.losses()):
            raise SourceError(path, "is not valid JSON, or breaks off", "record it again")
    return table


def _events(events: Iterable[dict[str, Any]], path: Path, wanted: set[str]) -> pl.DataFrame:
    """A row per complete event: its fields and arguments, the `wanted` and a few more, and `end`; B and E of a thread
    are a pair, the E event's arguments count where both have one."""
    kept = dict.fromkeys(sorted({*wanted, "ts", "name", "pid", "tid"}))

    def scalars(fields: dict[str, Any]) -> dict[str, Any]:
        for name in fields if len(kept) < len(wanted) + OTHERS else ():
            kept.setdefault(name)
        there = ((name, fields[name]) for name in fields if name in kept)
        return {name: _plain(v) if type(v) is Decimal else v for name, v in there if type(v) not in NESTED}

    rows: list[dict[str, Any]] = []
    begun: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
    for event in events:
        arguments = event.get("args")
        flat = scalars(event)
        thread = flat.get("pid"), flat.get("tid")
        if isinstance(arguments, dict):
            flat |= scalars(arguments)
        if event.get("ph") == "X":
            rows.append(_complete(event, flat, path))
        elif event.get("ph") == "B":
            begun.setdefault(thread, []).append(flat)
        elif event.get("ph") == "E":
            if not begun.get(thread):
                raise SourceError(path, "has an end event (E) without its begin", "record it again")
            first = begun[thread].pop()
            end = event.get("ts")
            end = _plain(end) if isinstance(end, Decimal) else end
            rows.append({**flat, **{k: first[k] for k in ("ts", "name") if k in first}, "end": end})
    still_open = [first for events in begun.values() for first in events]
    if still_open:
        count, name = len(still_open), shortened(still_open[0].get("name"))
        what = f"has begin events (B) without their end: {count}, the first is {name} at {still_open[0].get('ts')}"
        raise SourceError(path, what, "leave them out, or record it again")
    if not rows:
        raise SourceError(path, "holds no event with a start and an end", REMEDY)
    return pl.DataFrame(rows, infer_schema_length=None, strict=False)


def _plain(value: Decimal) -> object:
    """A number as a table may hold it: one that a float would round as its text."""
    if value.adjusted() in EXACT_DIGITS:
        return format(value, "f")
    small = value.is_finite() and value.adjusted() < EXACT_DIGITS.start
    return int(value) if small and value == value.to_integral_value() else float(value)


def _number(value: object) -> Decimal | None:
    """A time of an event, also as a text; None for anything but a number."""
    if isinstance(value, Decimal):
        return value
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    try:
        return Decimal(str(value))
    except InvalidOperation:
        return None


def _complete(event: dict[str, Any], flat: dict[str, Any], path: Path) -> dict[str, Any]:
    """The fields of a complete event (X) with its end. Raises SourceError where it has no duration."""
    start, duration = _number(event.get("ts")), _number(event.get("dur"))
    if duration is None:
        raise SourceError(path, "has a complete event (X) whose duration is not a number", "record it again")
    return {**flat, "end": None if start is None else _plain(start + duration)}


def _typed(values: pl.Series, field: str, unit_ns: int, path: Path) -> pl.Series:
    """A column of the table in the type of its meaning. Raises SourceError where it holds values of another type."""
    dtype = values.dtype
    if dtype == pl.String:
        values = values.str.strip_chars()
    if field in TIMES and isinstance(dtype, pl.Datetime):
        return values.dt.epoch("ns")
    if field in TIMES and isinstance(dtype, pl.Duration):
        return values.dt.total_nanoseconds()
    if dtype.is_nested() or (field not in TEXTS and (dtype.is_temporal() or dtype == pl.Boolean)):
        what = "texts" if field in TEXTS else "times" if field in TIMES else "numbers"
        name = shortened(str(dtype).partition("(")[0].lower())
        raise SourceError(path, f"holds no {what} but {name} values in the column {shortened(values.name)}", REMEDY)
    if field in TEXTS:
        return values.cast(pl.String)
    if field in TIMES:
        csv_table.refuse_rounded(values, path)
        return _times(values, unit_ns, field, path)
    if dtype == pl.String:
        values = _numbers(values, field, path)
    if values.dtype.is_float():
        values = values.fill_nan(None)
    if values.dtype.is_float() and (broken := values.filter(values.is_finite() & (values != values.floor()))).len():
        what = f"has a {field} that is not a whole number in the column {shortened(values.name)}: {broken[0]:.6g}"
        raise SourceError(path, what, REMEDY)
    return values.cast(pl.Int32)


def _numbers(texts: pl.Series, field: str, path: Path) -> pl.Series:
    """Texts as numbers; what stands for no value is null."""
    given = texts.set(texts.str.to_lowercase().is_in(NO_VALUE), None)
    values = given.cast(pl.Float64, strict=False)
    if values.null_count() > given.null_count():
        what = f"has a {field} that is not a number in the column {shortened(texts.name)}"
        raise SourceError(path, what, PLAIN if field in TIMES else REMEDY)
    return values


def _times(values: pl.Series, unit_ns: int, field: str, path: Path) -> pl.Series:
    """Numbers of a unit as nanoseconds: whole ones and texts exactly, others as floating-point numbers."""
    if values.dtype == pl.String:
        whole = values.cast(pl.Int64, strict=False)
        if whole.null_count() == values.null_count():
            values = whole
        elif values.str.contains(DECIMAL).all() and (values.cast(pl.Float64).abs() * unit_ns < LARGEST_NS).all():
            return (values.cast(pl.Decimal(38, 9)) * unit_ns).round().cast(pl.Int64)
        else:
            values = _numbers(values, field, path)
    if values.dtype.is_integer():
        beyond = int(LARGEST_NS) // unit_ns + 1  # so large a time is refused later
        return values.cast(pl.Int64).clip(-beyond, beyond) * unit_ns
    return values.cast(pl.Float64) * unit_ns


def _exact(durations: pl.Series, starts: pl.Series) -> pl.Series:
    """`durations` as whole numbers where `starts` are: the sum with a floating-point number would be one, which holds a
    date to 256 ns."""
    finite = durations.is_finite() & (durations.abs() < LARGEST_NS)
    whole = starts.dtype.is_integer() and durations.dtype.is_float() and finite.all()
    return durations.round().cast(pl.Int64) if whole else durations


def _checked(rows: pl.DataFrame, path: Path) -> pl.DataFrame:
    times = [pl.col(end).cast(pl.Float64) for end in ("start", "end")]
    valid = pl.all_horizontal(t.is_finite() & (t.abs() < LARGEST_NS) for t in times)
    bad = rows.filter(~(valid & (pl.col("end") >= pl.col("start")) & (pl.col("rank") >= 0)).fill_null(False))
    if bad.height:
        row = bad.row(0, named=True)
        if row["rank"] is None or row["start"] is None or row["end"] is None:
            raise SourceError(path, "has a row without a rank or a time", "leave such rows out")
        if row["rank"] < 0:
            raise SourceError(path, f"has a negative rank: {row['rank']}", "ranks count from 0")
        kind = shortened(row["kind"])
        what = f"has a span that ends before it starts, or at an impossible time: {kind} of rank {row['rank']}"
        raise SourceError(
            path, f"{what} from {row['start']:.9g} to {row['end']:.9g} ns", "check the units in `columns`"
        )
    for field in (name for name in ("stage", "dp") if name in rows.columns):
        several = (
            rows.filter(pl.col(field) >= 0).group_by("rank").agg(pl.col(field).n_unique()).filter(pl.col(field) > 1)
        )
        if several.height:
            what = f"gives rank {several['rank'].sort()[0]} more than one {field}"
            raise SourceError(path, what, "a rank has one place in the pipeline; its parts of the model are chunks")
    return rows


def _placed(rows: pl.DataFrame, path: Path) -> pl.DataFrame:
    """`rows` with start_ns, end_ns, kind, op and marker. Times that may count from 0 are moved off it."""
    moved = ZERO_NS if rows.select((pl.col("start").min() < ZERO_NS).fill_null(False)).item() else 0
    communication = [*TRANSFERS, *COLLECTIVE]
    placed = rows.with_columns(
        marker="kind", op=pl.when(pl.col("kind").is_in(communication)).then("kind"), kind=kind_of("kind"),
        **{f"{end}_ns": pl.col(end).round().cast(pl.Int64) + moved for end in ("start", "end")},
    )  # fmt: skip
    placed = one_after_another(placed)
    if placed["kind"].drop_nulls().is_empty():
        kinds = placed["marker"].drop_nulls().unique(maintain_order=True).head(5)
        names = ", ".join(f'"{shortened(name)}"' for name in kinds) or "empty"
        raise SourceError(
            path, f"names no forward or backward: its kinds are {names}", "give the column with the kinds"
        )
    _refuse_units(placed, path)
    return placed


def _refuse_units(placed: pl.DataFrame, path: Path) -> None:
    """Raises SourceError if the forwards of two ranks seem to be timed in different units."""
    length = pl.col("end_ns") - pl.col("start_ns")
    usual = placed.filter(pl.col("kind") == "F").group_by("rank").agg(length.median().alias("ns"))
    usual = usual.filter(pl.col("ns") > 0).sort("ns", "rank")
    if usual.height > 1 and usual["ns"][-1] >= ANOTHER_UNIT * usual["ns"][0]:
        (short, least), (long, most) = usual.row(0), usual.row(-1)
        what = f"has forwards that take {most / least:,.0f} × as long on rank {long} as on rank {short}"
        raise SourceError(path, f"{what}, as if their times were in different units", "give all in one unit")
