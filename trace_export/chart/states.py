"""State tracks: what each stage does at any moment, as one value that changes.

Perfetto 57 and later draws them as one row of labels, and its trace processor has them in the table `state`.
"""

from __future__ import annotations

import polars as pl

from trace_export.chart.block_names import KIND_LABELS
from trace_export.chart.builder import Builder

TEXT = "What the stage does: the kind of its block, or why it is idle. For Perfetto 57 and later"


def add_states(builder: Builder, blocks: pl.DataFrame, idle: pl.DataFrame, order: int) -> None:
    """A group with a state track for each rank of `blocks`, which are of one rank per stage. `idle`: the causes of idle
    time, as slices with rank, start_ns, end_ns and name."""
    group = builder.track("States", order, kind="group", description=TEXT)
    found = states(blocks, idle).join(blocks.select("rank", "stage").unique(), on="rank", maintain_order="left")
    ordered = found.sort("stage", "rank", maintain_order=True)
    for place, (_, of_rank) in enumerate(ordered.group_by("stage", "rank", maintain_order=True)):
        stage, rank = of_rank.select("stage", "rank").row(0)
        name = f"state · rank {rank}" if stage is None else f"state · stage {stage} · rank {rank}"
        builder.states(of_rank, builder.track(name, place, group, kind="state", description=TEXT))


def states(blocks: pl.DataFrame, idle: pl.DataFrame) -> pl.DataFrame:
    """rank, ts_ns, name: what each rank of `blocks` does from each moment on at which that changes; null: nothing that
    is known. Of blocks that overlap it is the one that began last."""
    columns = ["rank", "start_ns", "end_ns", "name"]
    does = (
        pl.col("kind").cast(pl.String).fill_null("").replace_strict(KIND_LABELS, return_dtype=pl.String).alias("name")
    )
    both = pl.concat([blocks.with_columns(does).select(columns), idle.select(columns)], how="vertical_relaxed")
    begun = both.filter(pl.col("rank").is_in(blocks["rank"].unique().implode())).sort("rank", "start_ns", "end_ns")
    until = pl.col("end_ns").cum_max().over("rank")
    following = pl.col("start_ns").shift(-1).over("rank")
    ended = begun.select("rank", ts_ns=until, name=pl.lit(None, pl.String), following=following)
    ended = ended.filter((pl.col("following") > pl.col("ts_ns")).fill_null(True)).drop("following")
    changes = pl.concat([begun.select("rank", pl.col("start_ns").alias("ts_ns"), "name"), ended])
    ordered = changes.sort("rank", "ts_ns", maintain_order=True)
    return ordered.filter(
        pl.col("name").ne_missing(pl.col("name").shift(1).over("rank")) | pl.col("rank").is_first_distinct()
    )
