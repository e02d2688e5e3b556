"""Paddle's dynamic-graph pipeline profiler: `profile_record_tmp_file_for_rank_R`, one JSON object per line.

A line is the begin ("ph": "B") or the end ("E") of a forward or backward, with times in whole milliseconds, the stage
in `tid` - 1, and the micro-batch and chunk in the name (`F3`, `B3_VP1`). Steps follow from names that come again, runs
from pauses.
Format: PaddlePaddle/Paddle, python/paddle/distributed/fleet/meta_parallel/pipeline_parallel.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import polars as pl

from trace_export.errors import SourceError
from trace_export.files import EMPTY, is_empty, open_text
from trace_export.model import HOSTS, RANKS, SPANS, Declared, Note, Profile, conform
from trace_export.sources.paddle.reader import RANK_ORDER
from trace_export.sources.shared.batch import each
from trace_export.sources.shared.growing import lines
from trace_export.sources.source import ReadOptions, Source

READ_BYTES = 4 << 20
NAME = r'"name": *"([FB])(\d{1,6})(?:_VP(\d{1,4}))?"'
FIELDS = {"ph": r'"ph": *"([BE])"', "tid": r'"tid": *(\d{1,6})\b', "ts": r'"ts": *(\d{1,13})\b'}
BLOCK = ["kind", "microbatch", "chunk"]
"""The columns that name a block; it comes again in every step."""
MILLISECOND = 1_000_000
LATEST_MS = 2**63 // MILLISECOND
RESTART_GAPS = 10
"""A pause between two steps that is this many times as long as the longest inside a step is a restart of the job."""
RESTART_MS = 10_000
"""No job is started again within this."""


def read_one(source: Source, options: ReadOptions) -> Profile:
    """The blocks of one rank, in nanoseconds of its machine's clock; host times with a resolution of 1 ms.

    Raises SourceError when the file holds no event, OSError.
    """
    events = pl.concat([_parse(b""), *_events(source.path)])
    good = events.drop_nulls(["ph", "ts", *BLOCK[:2]]).filter(pl.col("ts") < LATEST_MS)
    if events.is_empty() and is_empty(source.path):
        raise SourceError(source.path, EMPTY, "copy it again")
    if good.is_empty():
        raise SourceError(source.path, "no pipeline event in this file", 'enable "profiling" in pp_configs')
    spans = _spans(good, source.rank or 0)
    threads = good["tid"].drop_nulls().unique()
    stage = threads[0] - 1 if len(threads) == 1 and threads[0] > 0 else None
    return Profile(
        hosts=conform(pl.DataFrame({"host": [source.host], "machine": source.machine, "label": source.host}), HOSTS),
        ranks=conform(pl.DataFrame([source.rank_row(rank=source.rank or 0, stage=stage)]), RANKS),
        spans=spans,
        declared=Declared(rank_order=RANK_ORDER),
        notes=_notes(str(source.path), events.height - good.height, good.height - 2 * spans.height),
    )


read = partial(each, read_one)


def _spans(events: pl.DataFrame, rank: int) -> pl.DataFrame:
    """The events of a rank that begin a block which ends, as SPANS."""
    following = pl.col("ts").shift(-1).over(BLOCK)
    ended = ((pl.col("ph").shift(-1) == "E") & (pl.col("ts").shift(-1) >= pl.col("ts"))).over(BLOCK)
    blocks = events.with_columns(end=following).filter((pl.col("ph") == "B") & ended)
    step = pl.int_range(pl.len()).over(BLOCK).cum_max()
    numbered = _runs(blocks.with_columns(step=step))
    counted = pl.col("step") - pl.col("step").min().over("run") + 1  # the trainers count from 1
    times = {"start_ns": pl.col("ts") * MILLISECOND, "end_ns": pl.col("end") * MILLISECOND}
    who = {"rank": pl.lit(rank), "origin": pl.lit("host")}
    return conform(numbered.select(*BLOCK, "run", "marker", step=counted, **times, **who), SPANS)


def _runs(blocks: pl.DataFrame) -> pl.DataFrame:
    """`blocks` in the order of the file, with a `step` that counts on, and their `run`. The file is appended to and
    does not tell a restart, but that takes far longer than anything inside a step, or sets the time back."""
    gap = pl.col("ts") - pl.col("end").shift()
    begins = pl.col("step") != pl.col("step").shift()
    inside = blocks.select(gap.filter(~begins).max()).item() or 0
    limit = max(RESTART_GAPS * inside, RESTART_MS)
    paused = (begins & ((gap > limit) | (pl.col("ts") < pl.col("ts").shift()))).fill_null(False)
    if not blocks.select(paused.any()).item():
        return blocks.with_columns(run=0)
    new = pl.struct(*BLOCK, "ts", "end").is_first_distinct()  # else the file was copied to its end
    return blocks.with_columns(run=(paused & new).cum_sum())


def _notes(path: str, malformed: int, unpaired: int) -> tuple[Note, ...]:
    """`malformed` lines are no events; `unpaired` events have no other end."""
    resolution = Note("times-in-milliseconds", "note", "dynamic-graph times have a resolution of 1 ms", path)
    broken = Note("events-malformed", "warning", "lines that are not events, left out", path, malformed)
    what = "begin events without an end, or end events without a begin, left out"
    ends = Note("events-unpaired", "warning", what, path, unpaired)
    return (resolution, *(note for note in (broken, ends) if note.count))


def _events(path: Path) -> Iterator[pl.DataFrame]:
    """One row a line, in file order; null where a field is missing or truncated."""
    with open_text(path) as file:
        yield from map(_parse, lines(file, READ_BYTES, READ_BYTES, len))


def _parse(text: bytes) -> pl.DataFrame:
    line = pl.Series("line", text.decode("utf-8", "replace").split("\n"), pl.String)
    groups = pl.col("line").str.extract_groups(NAME)
    return (
        line.to_frame()
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
