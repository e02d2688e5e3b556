"""The counters of activations in flight: how many micro-batches each stage holds between forward and backward.

They are derived from the blocks and are no measurement of memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from trace_export.chart.builder import Builder
from trace_export.chart.running_counts import running_count
from trace_export.model import PASS_KINDS, RANK_STEP_KEY, Placement

PASS_KEY = [*RANK_STEP_KEY, "microbatch", "chunk"]
TEXT = (
    "Micro-batches whose activations the stage holds; one that is held by some of its chunks counts as that part."
    " From the blocks: from the start of a forward to the end of its backward, or of its weight gradient where that is"
    " a block of its own. Not a measurement of memory"
)
OPENS, _, WEIGHTS = (pl.col("kind") == kind for kind in PASS_KINDS)
NOT_HELD = pl.DataFrame(schema={"start_ns": pl.Int64, "end_ns": pl.Int64})


def add_in_flight(builder: Builder, passes: pl.DataFrame, placement: Placement, order: int) -> None:
    """A group with a counter for each rank of `passes` (`PASSES`), which are of one rank per stage. None for a rank
    that has no backward."""
    held = [each for each in in_flight(passes, placement) if not each[2].is_empty()]
    if not held:
        return
    group = builder.track("Activations in flight", order, kind="group", description=TEXT)
    for number, (stage, rank, samples) in enumerate(held):
        name = f"in flight · stage {stage} · rank {rank}"
        track = builder.track(name, number, group, kind="counter", unit="micro-batches", description=TEXT)
        builder.samples(samples, track)


def in_flight(passes: pl.DataFrame, placement: Placement) -> Iterator[tuple[int, int, pl.DataFrame]]:
    """For each rank of `passes` (`PASSES`), by stage: its stage, itself, and the micro-batches in flight from each
    moment on at which they change (ts_ns, value).

    A forward of a step that was recorded in part may lack its backward, and a backward its forward: these hold from
    the first block of the step, or to its last one.
    """
    work = passes.drop_nulls(["stage", "start_ns", "end_ns"])
    held = _held(work).partition_by("rank", as_dict=True)
    chunks = pl.lit(1) if placement == "both" else pl.col("chunk").max().fill_null(0) + 1
    ranks = work.group_by("rank").agg(pl.col("stage").first(), chunks=chunks.first()).sort("stage", "rank")
    for rank, stage, parts in ranks.iter_rows():
        of_rank = held.get((rank,), NOT_HELD)
        counts = running_count(of_rank["start_ns"].to_numpy(), of_rank["end_ns"].to_numpy())
        yield stage, rank, counts.with_columns(pl.col("value") / parts)


def _held(work: pl.DataFrame) -> pl.DataFrame:
    """rank, start_ns, end_ns: of each micro-batch and chunk, from the start of its forward to the end of its backward,
    or of its weight gradient. Nothing of a step without backwards."""
    held = work.group_by(PASS_KEY).agg(
        pl.col("start_ns").filter(OPENS).min(), pl.col("end_ns").filter(~OPENS).max(), weight=WEIGHTS.any()
    )
    # Weight gradients of no micro-batch are those of all that have none of their own.
    of_all = pl.col("end_ns").filter(WEIGHTS, pl.col("microbatch").is_null())
    steps = work.group_by(RANK_STEP_KEY).agg(
        first_ns=pl.col("start_ns").min(), last_ns=pl.col("end_ns").max(), cleared_ns=of_all.max(), freed=~OPENS.all()
    )
    return (
        held.filter(pl.col("microbatch").is_not_null())
        .join(steps.filter("freed"), on=RANK_STEP_KEY, nulls_equal=True)
        .with_columns(end_ns=pl.when("weight").then("end_ns").otherwise(pl.max_horizontal("end_ns", "cleared_ns")))
        .select("rank", start_ns=pl.coalesce("start_ns", "first_ns"), end_ns=pl.coalesce("end_ns", "last_ns"))
    )
