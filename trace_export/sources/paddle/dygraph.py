"""Paddle's dynamic-graph pipeline profiler: `profile_record_tmp_file_for_rank_R`, one JSON object per line.

A line is the begin ("ph": "B") or the end ("E") of a forward or backward, with times in whole milliseconds, the stage
in `tid` - 1, and the micro-batch and chunk in the name (`F3`, `B3_VP1`). Steps follow from names that come again.
Format: PaddlePaddle/Paddle, python/paddle/distributed/fleet/meta_parallel/pipeline_parallel.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from trace_export.errors import SourceError, path_text
from trace_export.files import open_file
from trace_export.model import HOSTS, RANKS, SPANS, Declared, Note, Profile, conform
from trace_export.sources.paddle.reader import RANK_ORDER
from trace_export.sources.source import ReadOptions, Source

READ_BYTES = 4 << 20
NAME = r'"name": *"([FB])(\d{1,6})(?:_VP(\d{1,4}))?"'
FIELDS = {"ph": r'"ph": *"([BE])"', "tid": r'"tid": *(\d{1,6})\b', "ts": r'"ts": *(\d{1,13})\b'}
MILLISECOND = 1_000_000
LATEST_MS = 2**63 // MILLISECOND


def read(source: Source, options: ReadOptions) -> Profile:
    """The blocks of one rank, in nanoseconds of its machine's clock; host times with a resolution of 1 ms.

    Raises SourceError when the file cannot be read or holds no event.
    """
    try:
        events = pl.concat(_events(source.path))
    except OSError as error:
        raise SourceError(
            source.path, f"cannot be read ({error.strerror})", "check that it is there and readable"
        ) from error
    good = events.drop_nulls(["kind", "microbatch", "ph", "ts"]).filter(pl.col("ts") < LATEST_MS)
    if good.is_empty():
        raise SourceError(source.path, "no pipeline event in this file", 'enable "profiling" in pp_configs')
    notes = [Note("times-in-milliseconds", "note", "dynamic-graph times have a resolution of 1 ms", str(source.path))]
    if events.height > good.height:
        notes.append(
            Note(
                "events-malformed",
                "warning",
                "lines that are not events, left out",
                str(source.path),
                events.height - good.height,
            )
        )
    name = ["kind", "microbatch", "chunk"]
    ended = ((pl.col("ph").shift(-1) == "E") & (pl.col("ts").shift(-1) >= pl.col("ts"))).over(name)
    spans = good.with_columns(end=pl.col("ts").shift(-1).over(name)).filter((pl.col("ph") == "B") & ended)
    lost = good.height - 2 * spans.height
    if lost:
        notes.append(
            Note(
                "events-unpaired",
                "warning",
                "begin events without an end, or end events without a begin, left out",
                str(source.path),
                lost,
            )
        )
    rank = source.rank or 0
    step = pl.int_range(pl.len()).over(name).cum_max() + 1  # the file has no number; the trainers count from 1
    threads = good["tid"].drop_nulls().unique()
    stage = threads[0] - 1 if len(threads) == 1 and threads[0] > 0 else None
    return Profile(
        hosts=conform(pl.DataFrame({"host": [source.host], "machine": source.machine, "label": source.host}), HOSTS),
        ranks=conform(
            pl.DataFrame(
                {
                    "rank": [rank],
                    "host": source.host,
                    "stage": stage,
                    "source": path_text(source.path),
                    "kind": source.kind,
                    "rank_origin": source.rank_origin,
                    "stage_origin": None if stage is None else "recorded",
                }
            ),
            RANKS,
        ),
        spans=conform(
            spans.select(
                *name,
                pl.lit(rank).alias("rank"),
                pl.lit(0).alias("run"),
                step.alias("step"),
                (pl.col("ts") * MILLISECOND).alias("start_ns"),
                (pl.col("end") * MILLISECOND).alias("end_ns"),
                pl.col("marker"),
                pl.lit("host").alias("origin"),
            ),
            SPANS,
        ),
        declared=Declared(rank_order=RANK_ORDER),
        notes=tuple(notes),
    )


def _events(path: Path) -> Iterator[pl.DataFrame]:
    """One row a line, in file order; null where a field is missing or truncated."""
    with open_file(path) as file:
        rest = b""
        while block := file.read(READ_BYTES):
            lines, _, rest = (rest + block).rpartition(b"\n")
            yield _parse(lines)
            rest = rest if len(rest) < READ_BYTES else b""  # a line of that length is no event
        yield _parse(rest)


def _parse(lines: bytes) -> pl.DataFrame:
    text = pl.Series("line", lines.decode("utf-8", "replace").split("\n"), pl.String)
    groups = pl.col("line").str.extract_groups(NAME)
    return (
        text.to_frame()
        .filter(pl.col("line").str.strip_chars() != "")
        .with_columns(groups=groups, **{key: pl.col("line").str.extract(pattern) for key, pattern in FIELDS.items()})
        .select(
            pl.col("groups").struct.field("1").alias("kind"),
            pl.col("groups").struct.field("2").cast(pl.Int32).alias("microbatch"),
            pl.col("groups").struct.field("3").cast(pl.Int32).fill_null(0).alias("chunk"),
            "ph",
            pl.col("tid").cast(pl.Int32),
            pl.col("ts").cast(pl.Int64),
            pl.col("line").str.extract(r'"name": *"([^"]*)"').alias("marker"),
        )
    )
