"""The span table that `--format parquet` or `csv` wrote, read back: one file with all ranks, on one clock; or several,
`NAME.spans.parquet` in a folder, each of some ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import polars as pl

from trace_export.errors import SourceError, in_column, path_text
from trace_export.files import is_file, open_file
from trace_export.model import COLLECTIVES, HOSTS, INT, NO_HOST, RANKS, SPANS, WORK_KINDS, Profile, conform
from trace_export.sources.folders import ALONE
from trace_export.sources.not_here import FETCH, POINTER, is_pointer
from trace_export.sources.ranges.dialects import run_facts
from trace_export.sources.shared import csv_table
from trace_export.sources.shared.batch import each
from trace_export.sources.shared.parquet_pages import checked
from trace_export.sources.source import ReadOptions, Source
from trace_export.sources.spans.columns import Columns

SUFFIXES = (".parquet", *csv_table.SUFFIXES)
NEEDED = ("rank", "kind", "start_ns", "end_ns")
PLACES = ("rank", "stage", "dp", "tp", "cp")
NUMBERED = {"id", "replica"}
"""The program numbers these itself and ignores columns of these names."""
SIDE = "side"
"""The column that tells apart the two runs of a comparison."""
_OF_A_PROFILER = {
    "Start Time(us)", "Task Start Time(us)", "Duration(us)", "Task Duration(us)", "Total Time(us)", "Time(us)",
    "Communication(Not Overlapped)", "Start_Timestamp",
}  # fmt: skip
"""Columns of tables that are a part of a profile."""
REMEDY = "give a table that trace-export wrote with `formats` parquet or csv"
FOREIGN = f"{REMEDY}, or say what the columns of another one mean with `columns`"


def is_table(path: Path, columns: Columns | None = None) -> bool:
    """Whether `path` is a table to be read by itself; with `columns` also Chrome JSON."""
    return is_file(path) and (path.suffix in SUFFIXES or columns is not None)


def read_foreign(path: Path, columns: Columns | None, options: ReadOptions) -> Profile | None:
    """The profile of a table of another tool, of the meaning that `columns` say or its own columns; None for a table of
    trace-export. Raises SourceError."""
    from trace_export.sources.spans import mapped, operation_table  # which few runs need

    if columns is not None:
        return mapped.read_columns(Source("table", path, ALONE), columns)
    if path.suffix == ".parquet" and operation_table.has_columns(path):
        return operation_table.read_one(Source("operation_table", path, ALONE), options)
    return None


def read_table(path: Path) -> Profile:
    """The blocks, ranks and hosts in the table, and where it has a column `group`, its collectives, the rows that name
    one. Without a column `run`, passes that come again belong to a further run (see restarts.runs_of).

    Raises SourceError when the file is no such table, or one of two runs.
    """
    from trace_export.sources.shared.restarts import runs_of

    if is_pointer(path):
        raise SourceError(path, f"is {POINTER}", FETCH)
    with _reading(path):
        table = _columns(path)
        missing = [name for name in NEEDED if name not in table.columns]
        if missing:
            raise SourceError(path, f"is not a span table: it has no column {missing[0]}", _remedy(path))
        if SIDE in table.columns and table[SIDE].n_unique() > 1:
            raise SourceError(path, f"holds the blocks of two runs (column {SIDE})", "keep the rows of one of them")
        collective = (
            table["group"].is_not_null() if "group" in table.columns else pl.repeat(False, len(table), eager=True)
        )
        collectives = conform(table.filter(collective), COLLECTIVES)
        spans = conform(table.filter(~collective), SPANS)
        numbered = spans["run"].count() > 0
        spans = spans.with_columns(pl.col("run").fill_null(0) if numbered else runs_of(spans).alias("run"))
        ranks = conform(table, RANKS).unique("rank", keep="first", maintain_order=True).sort("rank")
    if table.select(pl.any_horizontal(pl.col("rank", "start_ns", "end_ns").is_null()).any()).item():
        raise SourceError(path, "is not a span table: a row has no rank or no time", REMEDY)
    kinds = spans["kind"].drop_nulls().unique().cast(pl.String)
    if len(kinds) and not kinds.is_in([*WORK_KINDS, "OPT"]).any():
        raise SourceError(path, "is not a span table: no row is of the kind F, B, W, FB or OPT", FOREIGN)
    stage_origin = pl.when(pl.col("stage").is_not_null()).then(pl.lit("recorded"))
    ranks = ranks.with_columns(
        pl.col("host").fill_null(NO_HOST), kind=pl.lit("table"), source=pl.lit(path_text(path)),
        rank_origin=pl.lit("recorded"), stage_origin=stage_origin,
    )  # fmt: skip
    hosts = ranks.select("host", label="host").unique(maintain_order=True).with_row_index("machine")
    profile = Profile(
        hosts=conform(hosts, HOSTS), ranks=ranks, spans=spans, collectives=collectives,
        declared=run_facts(spans["marker"]),
    )  # fmt: skip
    return csv_table.with_doubts_of_rounding(profile, path)


def read_one(source: Source, options: ReadOptions) -> Profile:
    """The table of some ranks, `NAME.spans.parquet`: one of several in a folder, one for each host, say, in whose clock
    its times are. Raises SourceError."""
    from trace_export.sources.spans.blocks import of_ranks

    profile = read_table(source.path)
    ranks = profile.ranks.with_columns(kind=pl.lit(source.kind))
    hosts = profile.hosts.with_columns(machine=pl.lit(source.machine, INT))
    if (ranks["host"] == NO_HOST).any():
        name = pl.lit(source.host)
        ranks, hosts = ranks.with_columns(host=name), hosts.head(1).with_columns(host=name, label=name)
    return of_ranks(replace(profile, hosts=hosts, ranks=ranks), options.ranks)


read = partial(each, read_one)


def places(path: Path) -> pl.DataFrame:
    """rank, stage, dp, tp, cp of the ranks in the table, null where it does not say. Raises SourceError."""
    with _reading(path), open_file(path) as file:
        there = [name for name in pl.read_parquet_schema(file) if name in PLACES]
        if "rank" not in there:
            raise SourceError(path, "is not a span table: it has no column rank", REMEDY)
        places = (
            pl.read_parquet(checked(file), columns=there).drop_nulls("rank").unique("rank", keep="first").sort("rank")
        )
        return conform(places, dict.fromkeys(PLACES, INT))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Errors of the system and of Polars as SourceError."""
    try:
        yield
    except OSError as error:
        raise SourceError(path, f"cannot be read ({error.strerror or 'damaged'})", REMEDY) from error
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise SourceError(path, f"cannot be read as a span table{in_column(error)}", REMEDY) from error


def _remedy(path: Path) -> str:
    """What to give instead of a foreign table."""
    if path.suffix not in csv_table.SUFFIXES or not _OF_A_PROFILER & {*csv_table.scan(path).collect_schema().names()}:
        return FOREIGN
    folder = f"{path.absolute().parent} or above"
    return f"it is a table of a profiler's export: give the folder that the profiler wrote, {folder}"


def _columns(path: Path) -> pl.DataFrame:
    """The columns of the file that a span table has."""
    wanted = {*SPANS, *RANKS, *COLLECTIVES, SIDE} - NUMBERED
    if path.suffix in csv_table.SUFFIXES:
        lazy = csv_table.scan(path)
        table = lazy.select(name for name in lazy.collect_schema().names() if name in wanted).collect()
        for name in (name for name in ("start_ns", "end_ns") if name in table.columns):
            csv_table.refuse_rounded(table[name], path)
        return table
    with open_file(path) as file:
        rows = pl.scan_parquet(checked(file)).select(pl.len()).collect().item()
        if rows > path.stat().st_size:  # even packed, a row has a time of its own
            raise SourceError(path, f"is not a span table: so small a file cannot hold {rows:,} blocks", REMEDY)
        file.seek(0)
        names = [name for name in pl.read_parquet_schema(file) if name in wanted]
        file.seek(0)
        return pl.read_parquet(file, columns=names)
