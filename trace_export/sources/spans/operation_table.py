"""The operation tables of the straggler study (arXiv 2505.05713, its artifact's `data/trace-*.parquet`).

One row per operation: dp_rank, stage, rank, step, optype, start_ts and duration (seconds as Float32, from the start of
the step), seq_id (its place among the operations of the type in the step on the rank), mc (the model chunk).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from trace_export.errors import SourceError, in_column, path_text
from trace_export.files import open_file, read_file
from trace_export.model import COLLECTIVES, HOSTS, INT, P2P, RANKS, SPANS, TIME, Declared, Note, Profile, conform
from trace_export.ordering import packed
from trace_export.schedules.operation_types import BLOCKS, COLLECTIVE, GC, TRANSFERS
from trace_export.sources.shared.batch import each
from trace_export.sources.shared.parquet_pages import checked
from trace_export.sources.source import ReadOptions, Source
from trace_export.sources.spans.blocks import group_of, step_zeros

TYPES = (*BLOCKS, GC, *TRANSFERS, *COLLECTIVE)
COLUMNS = {
    "dp_rank": pl.Int32, "stage": pl.Int32, "rank": pl.Int32, "step": pl.Int32, "optype": pl.Enum(TYPES),
    "start_ts": pl.Float32, "duration": pl.Float32, "seq_id": pl.Int64, "mc": pl.Int32,
}  # fmt: skip
REMEDY = "give a table as the straggler study's artifact writes it"
NUMBERED = ["forward-compute", "backward-compute"]
"""The operations of a micro-batch and chunk that are blocks."""
SIZE = re.compile(r"^(pp_size|dp_size): *(\d{1,4})\s*$", re.MULTILINE)
"""The numbers of stages and replicas in the description of the job."""
LONGEST_DESCRIPTION = 1 << 16
LONGEST_S = 1e6
"""A step that would take longer holds wrong times."""


def read_one(source: Source, options: ReadOptions) -> Profile:
    """All ranks of the table, on one clock; its steps lie one after the other, in the order of their numbers.

    Raises SourceError when a column is missing, or a value in it is missing, negative or impossible.
    """
    table = _checked(_columns(source.path), source.path)
    if options.ranks is not None:
        table = table.filter(options.ranks.holds("rank"))
    if table.is_empty():
        return Profile()
    notes = _gaps(table, source.path)
    return _profile(table, source).with_notes(notes)


read = partial(each, read_one)


def _gaps(table: pl.DataFrame, path: Path) -> list[Note]:
    """A note where operations are missing: those of a type, rank and step are numbered from 0 without gaps."""
    number = packed(*(table[name].to_physical().to_numpy() for name in ("step", "rank", "optype")))
    missing = np.zeros(int(number.max()) + 1, np.int64)
    np.maximum.at(missing, number, table["seq_id"].to_numpy() + 1)
    missing -= np.bincount(number)
    if (missing <= 0).all():
        return []
    row = int((number == np.flatnonzero(missing > 0)[0]).argmax())
    step, rank, name = table.select("step", "rank", pl.col("optype").cast(pl.String)).row(row)
    count = int(missing.clip(0).sum())
    text = f"{count} operations are missing, the first of them {name} of rank {rank} in step {step}"
    return [Note("operations-missing", "warning", text, path_text(path), count)]


def has_columns(path: Path) -> bool:
    """Whether a Parquet file has the columns that make an operation table."""
    try:
        with open_file(path) as file:
            return {"optype", "start_ts", "duration", "dp_rank"} <= set(pl.read_parquet_schema(file))
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return False  # who reads it says why


def _columns(path: Path) -> pl.DataFrame:
    try:
        with open_file(path) as file:
            there = pl.read_parquet_schema(file)
            missing = [name for name in COLUMNS if name not in there]
            if missing:
                raise SourceError(path, f"is not an operation table: it has no column {missing[0]}", REMEDY)
            table = pl.read_parquet(checked(file), columns=list(COLUMNS))
        names = table["optype"].unique().cast(pl.String).drop_nulls()
        unknown = names.filter(~names.is_in(TYPES))
        if len(unknown):
            raise SourceError(path, f'has operations of an unknown type "{unknown[0][:60]}"', REMEDY)
        return table.cast(COLUMNS)  # type: ignore[arg-type]
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise SourceError(path, f"cannot be read as an operation table{in_column(error)}", REMEDY) from error


def _checked(table: pl.DataFrame, path: Path) -> pl.DataFrame:
    lacking = [name for name, count in table.null_count().row(0, named=True).items() if count]
    if lacking:
        raise SourceError(path, f"lacks values in the column {lacking[0]}", REMEDY)
    for name in ("rank", "stage", "dp_rank", "seq_id", "mc"):
        of_all = name != "mc"  # which is -1 where an operation belongs to no chunk
        numbered = pl.col("optype").is_in(NUMBERED) | of_all
        if table.select(((pl.col(name) < 0) & numbered).any()).item():
            raise SourceError(path, f"has a negative number in the column {name}", REMEDY)
    wrong = ~pl.col("duration").is_between(0, LONGEST_S) | ~pl.col("start_ts").is_between(-LONGEST_S, LONGEST_S)
    bad = table.filter(wrong)
    if bad.height:
        row = bad.row(0, named=True)
        operation = f"{row['optype'][:60]} {row['seq_id']} of rank {row['rank']}"
        what = f"has an operation with an impossible time: {operation} in step {row['step']}"
        what = f"{what} starts at {row['start_ts']:.9g} s and takes {row['duration']:.9g} s"
        raise SourceError(path, what, "times are seconds from the start of the step")
    return table


START, DURATION = ((pl.col(name).cast(pl.Float64) * 1e9).round().cast(TIME) for name in ("start_ts", "duration"))
"""In nanoseconds from the zero of the step."""


def _steps(table: pl.DataFrame) -> pl.DataFrame:
    """step, zero_ns: where the zero of each step lies, as `step_zeros`; and `first`, which is added to a number in a
    step so that numbers of different steps differ."""
    is_block = pl.col("optype").is_in([*BLOCKS, GC])
    times = table.lazy().select("step", start_ns=START, end_ns=START + DURATION, block=is_block)
    bounds = times.group_by("step", "block").agg(pl.col("start_ns").min(), pl.col("end_ns").max()).collect()
    width = table.select(pl.col("seq_id").max() + 1).item() or 0
    zeros = step_zeros(bounds, bounds.filter("block"))
    return zeros.with_columns(first=pl.int_range(pl.len(), dtype=pl.Int64) * width)


def _placed(table: pl.DataFrame, steps: pl.DataFrame, types: Collection[str]) -> pl.DataFrame:
    """The operations of these types with start_ns and end_ns, each step some time after the one before, and `nth`, the
    number of an operation among those of its type on its rank. Of a part at a time: the whole is large."""
    zero, first = (
        pl.col("step").replace_strict(steps["step"], steps[name], return_dtype=TIME) for name in ("zero_ns", "first")
    )
    return table.filter(pl.col("optype").is_in(list(types))).select(
        "dp_rank", "stage", "rank", "step", "optype", "mc", start_ns=START + zero, end_ns=START + DURATION + zero,
        nth=first + pl.col("seq_id"),
    )  # fmt: skip


def _profile(table: pl.DataFrame, source: Source) -> Profile:
    workers = table.select("rank", "stage", dp="dp_rank").unique().sort("rank")
    several = workers.filter(pl.col("rank").is_duplicated())["rank"]
    if len(several):
        raise SourceError(source.path, f"has rank {several[0]} on several stages or in several replicas", REMEDY)
    ranks = workers.with_columns(
        host=pl.lit(source.host), tp=0, cp=0, source=pl.lit(path_text(source.path)), kind=pl.lit(source.kind),
        rank_origin=pl.lit("recorded"), stage_origin=pl.lit("recorded"),
    )  # fmt: skip
    host = pl.DataFrame({"host": [source.host], "machine": source.machine, "label": source.host, "epoch": "start"})
    declared = _declared(source.path, int(workers["stage"].to_numpy().max()) + 1)
    steps = _steps(table)
    return Profile(
        hosts=conform(host, HOSTS),
        ranks=conform(ranks, RANKS),
        spans=conform(_blocks(_placed(table, steps, [*BLOCKS, GC])), SPANS),
        p2p=conform(_transfers(_placed(table, steps, TRANSFERS), workers), P2P),
        collectives=conform(_collectives(_placed(table, steps, COLLECTIVE)), COLLECTIVES),
        declared=replace(declared, step_zeros=tuple(steps.select("step", "zero_ns").rows())),
    )


def _declared(path: Path, stages: int) -> Declared:
    """The size of the job by its description, `meta-JOB.yaml` beside the table, where there is one; at least `stages`
    stages."""
    try:
        description = path.with_name(f"meta-{path.stem.removeprefix('trace-')}.yaml")
        text = read_file(description, LONGEST_DESCRIPTION).decode(errors="replace")
    except OSError:
        text = ""
    sizes = {name: int(number) for name, number in SIZE.findall(text)}
    return Declared(pp=max(sizes.get("pp_size", 0), stages), dp=sizes.get("dp_size"), every_operation=True)


def _blocks(rows: pl.DataFrame) -> pl.DataFrame:
    """The blocks of the pipeline, and the garbage collection as named work; micro-batches by order."""
    numbered = pl.col("optype").is_in(NUMBERED)
    group = packed(*(rows[name].to_physical().to_numpy() for name in ("rank", "step", "optype", "mc")))
    order = np.lexsort((rows["nth"].to_numpy(), group))  # a window of Polars with an order takes four times as long
    size, count = np.bincount(group), np.empty(len(rows), np.int32)
    count[order] = np.arange(len(rows)) - (np.cumsum(size) - size)[group[order]]
    return rows.with_columns(
        run=pl.lit(0, INT), kind=pl.col("optype").replace_strict(BLOCKS, default=None, return_dtype=pl.String),
        marker="optype", origin=pl.lit("device"), microbatch=pl.when(numbered).then(pl.Series(count)),
        chunk=pl.when(numbered).then("mc"), labels=pl.when(numbered).then(pl.lit("inferred")),
    )  # fmt: skip


def _transfers(rows: pl.DataFrame, workers: pl.DataFrame) -> pl.DataFrame:
    """Each rank's sends and receives; activations go to the next stage, gradients to the one before, in a ring."""
    depth = int(workers["stage"].n_unique())
    onward = {name: 1 if (role == "send") == (way == "F") else -1 for name, (role, way) in TRANSFERS.items()}
    types = pl.DataFrame(
        [(name, name, *TRANSFERS[name], onward[name]) for name in TRANSFERS],
        schema={"optype": pl.Enum(TYPES), **{c: P2P[c] for c in ("op", "role", "direction")}, "onward": INT},
        orient="row",
    )
    there = workers.select("dp", "stage", peer="rank")
    ends = (
        workers.join(types, how="cross")
        .with_columns(stage=(pl.col("stage") + pl.col("onward")) % depth)
        .join(there, on=["dp", "stage"], how="left")
        .drop("dp", "stage", "onward")
    )
    times = rows.select("rank", "optype", "start_ns", "end_ns", sequence="nth")
    return times.join(ends, on=["rank", "optype"], how="left", maintain_order="left").drop("optype")


def _collectives(rows: pl.DataFrame) -> pl.DataFrame:
    scope = pl.col("optype").replace_strict(COLLECTIVE, return_dtype=pl.String)
    named = rows.rename({"dp_rank": "dp", "mc": "chunk"})
    return named.with_columns(group=group_of(scope, named.columns), sequence="nth", op="optype")
