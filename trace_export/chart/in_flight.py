"""The counters of activations in flight: how many micro-batches each stage holds between forward and backward.

They are derived from the blocks and are no measurement of memory.
"""

from __future__ import annotations

import polars as pl

from trace_export.chart.builder import Builder
from trace_export.model import STEP_KEY, Placement

RANK_STEP = ["rank", *STEP_KEY]
KEY = [*RANK_STEP, "microbatch", "chunk"]
TEXT = (
    "Micro-batches whose activations the stage holds, of a part of its model chunks a part. Derived from the blocks:"
    " from the start of a forward to the end of its backward, or of its weight gradient where that is a block of its"
    " own. Not a measurement of memory"
)


def add_in_flight(builder: Builder, blocks: pl.DataFrame, placement: Placement, order: int) -> None:
    """A group with a counter for each rank of `blocks`, which are of one rank per stage. None for a rank whose blocks
    have no micro-batch or no backward."""
    held = in_flight(blocks, placement)
    if held.is_empty():
        return
    group = builder.track("Activations in flight", order, kind="group", description=TEXT)
    for place, (_, samples) in enumerate(held.group_by("stage", "rank", maintain_order=True)):
        stage, rank = samples.select("stage", "rank").row(0)
        name = f"in flight · stage {stage} · rank {rank}"
        track = builder.track(name, place, group, kind="counter", unit="micro-batches", description=TEXT)
        builder.samples(samples, track)


def in_flight(blocks: pl.DataFrame, placement: Placement) -> pl.DataFrame:
    """stage, rank, ts_ns, value: the micro-batches in flight from each moment on at which they change.

    A step that was recorded in part holds the others from its first block or to its last one.
    """
    times = _held(blocks)
    share = pl.lit(1.0) if placement == "both" else 1 / pl.col("chunk").n_unique().over("rank")
    times = times.with_columns(share=share)
    ends = [
        times.select("stage", "rank", ts_ns=column, change=sign * pl.col("share"))
        for column, sign in (("start_ns", 1), ("end_ns", -1))
    ]
    moment = ["stage", "rank", "ts_ns"]
    changes = pl.concat(ends).group_by(moment).agg(pl.col("change").sum()).sort(moment)
    samples = changes.select(*moment, value=pl.col("change").cum_sum().over("rank").round(6))
    return samples.filter(pl.col("value") != pl.col("value").shift(1).over("rank").fill_null(-1.0))


def _held(blocks: pl.DataFrame) -> pl.DataFrame:
    """stage, rank, chunk, start_ns, end_ns: of each forward, from its start to the end of its backward."""
    placed = blocks.filter(pl.col("stage").is_not_null()).with_columns(pl.col("chunk", "chunk_b").fill_null(0))
    forwards = placed.filter(pl.col("kind").is_in(["F", "FB"])).group_by(KEY).agg(pl.col("stage", "start_ns").min())
    pairs = placed.filter(pl.col("kind") == "FB").with_columns(microbatch="microbatch_b", chunk="chunk_b")
    back = pl.concat([placed.filter(pl.col("kind").is_in(["B", "W"])), pairs])
    backwards = back.group_by(KEY).agg(
        pl.col("stage").first(), pl.col("end_ns").max(), weight=(pl.col("kind") == "W").any()
    )
    within = placed.group_by(RANK_STEP).agg(first_ns=pl.col("start_ns").min(), last_ns=pl.col("end_ns").max())
    later = (  # weight gradients of no micro-batch, which are those of all that have none of their own
        back.filter(pl.col("kind") == "W", pl.col("microbatch").is_null())
        .group_by(RANK_STEP).agg(cleared_ns=pl.col("end_ns").max())
    )  # fmt: skip
    matched = forwards.join(backwards, on=KEY, how="full", coalesce=True, nulls_equal=True, suffix="_back")
    return (
        matched.filter(pl.col("microbatch").is_not_null())
        .join(backwards.select(RANK_STEP).unique(), on=RANK_STEP, how="semi", nulls_equal=True)
        .join(within, on=RANK_STEP, how="left", nulls_equal=True)
        .join(later, on=RANK_STEP, how="left", nulls_equal=True)
        .with_columns(end_ns=pl.when("weight").then("end_ns").otherwise(pl.max_horizontal("end_ns", "cleared_ns")))
        .select(
            pl.coalesce("stage", "stage_back").alias("stage"), "rank", "chunk",
            pl.coalesce("start_ns", "first_ns").alias("start_ns"), pl.coalesce("end_ns", "last_ns").alias("end_ns"),
        )
    )  # fmt: skip
