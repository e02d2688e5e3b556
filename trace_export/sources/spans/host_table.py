"""A span table of some ranks, `NAME.spans.parquet`: one of several in a folder, one for each host, say.

Its columns are those of `--format parquet`, but its times are in the clock of its host, and are aligned with the
others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from trace_export.errors import SourceError, in_column
from trace_export.files import open_file
from trace_export.model import INT, NO_HOST, Profile, conform
from trace_export.sources import span_table
from trace_export.sources.shared.batch import Result, each
from trace_export.sources.shared.parquet_pages import checked
from trace_export.sources.source import ReadOptions, Source
from trace_export.sources.spans.blocks import of_ranks

SUFFIX = ".spans.parquet"
PLACES = ("rank", "stage", "dp", "tp", "cp")


def read(sources: Sequence[Source], options: ReadOptions) -> list[Result]:
    """The result of `read_one` for each of the sources."""
    return each(read_one, sources, options)


def read_one(source: Source, options: ReadOptions) -> Profile:
    """Blocks and collectives of the table. Raises SourceError."""
    profile = span_table.read(source.path)
    ranks = profile.ranks.with_columns(kind=pl.lit(source.kind))
    hosts = profile.hosts.with_columns(machine=pl.lit(source.machine, INT))
    if (ranks["host"] == NO_HOST).any():
        name = pl.lit(source.host)
        ranks, hosts = ranks.with_columns(host=name), hosts.head(1).with_columns(host=name, label=name)
    return of_ranks(replace(profile, hosts=hosts, ranks=ranks), options.ranks)


def places(path: Path) -> pl.DataFrame:
    """rank, stage, dp, tp, cp of the ranks in the table, null where it does not say. Raises SourceError."""
    try:
        with open_file(path) as file:
            there = [name for name in pl.read_parquet_schema(file) if name in PLACES]
            if "rank" not in there:
                raise SourceError(path, "is not a span table: it has no column rank", span_table.REMEDY)
            places = (
                pl.read_parquet(checked(file), columns=there)
                .drop_nulls("rank")
                .unique("rank", keep="first")
                .sort("rank")
            )
            return conform(places, dict.fromkeys(PLACES, INT))
    except OSError as error:
        raise SourceError(path, f"cannot be read ({error.strerror or 'damaged'})", span_table.REMEDY) from error
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise SourceError(path, f"cannot be read as a span table{in_column(error)}", span_table.REMEDY) from error
