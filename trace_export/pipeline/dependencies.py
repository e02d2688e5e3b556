"""Which block feeds which: the way of each micro-batch through the stages, forward and back."""

from __future__ import annotations

import polars as pl

from trace_export.model import Profile
from trace_export.pipeline.schedules import Placement, virtual_stage
from trace_export.pipeline.topology import chunk_placement

EDGES = {"src": pl.UInt32(), "dst": pl.UInt32(), "direction": pl.String()}


def block_edges(profile: Profile) -> pl.DataFrame:
    """src, dst (rows of `spans`), direction (F or B): the producing and the consuming block of each micro-batch.

    A forward feeds the forward of the next virtual stage, a backward the backward of the one before, within one
    replica and step. Blocks without a micro-batch have no edges; where a stage was not read, the chain has a gap.
    Needs ranks.stage (`topology.resolve`). O(n log n) in the number of blocks.
    """
    placement = chunk_placement(profile)
    halves = _halves(profile.spans).join(replicas(profile.ranks), on="rank", how="inner")
    stages = profile.ranks["stage"].n_unique()
    if halves.is_empty():
        return pl.DataFrame(schema=EDGES)
    keyed = _keyed(halves, placement, max(stages, _above(profile.ranks["stage"])))
    # Blocks one virtual stage apart have keys one apart, so neighbours in order of the key are the edges.
    ordered = keyed.sort("forward", "key", descending=[True, False])
    linked = ordered.select(
        "forward", here="row", next=pl.col("row").shift(-1),
        joined=(pl.col("key").shift(-1) == pl.col("key") + 1) & (pl.col("forward").shift(-1) == pl.col("forward")),
    ).filter("joined")  # fmt: skip
    return linked.select(
        src=pl.when("forward").then("here").otherwise("next"),
        dst=pl.when("forward").then("next").otherwise("here"),
        direction=pl.when("forward").then(pl.lit("F")).otherwise(pl.lit("B")),
    )


def _above(numbers: pl.Series) -> int:
    known = numbers.drop_nulls().to_numpy()
    return int(known.max()) + 1 if len(known) else 0


def _halves(spans: pl.DataFrame) -> pl.DataFrame:
    """A row per forward and per backward (an overlapped pair has both) with its row in `spans`."""
    rows = spans.with_row_index("row").with_columns(pl.col("run", "step", "chunk", "chunk_b").fill_null(0))
    common = ["row", "rank", "run", "step"]
    forward = rows.filter(pl.col("kind").is_in(["F", "FB"])).select(*common, "microbatch", "chunk", forward=True)
    back = rows.filter(pl.col("kind") == "B").select(*common, "microbatch", "chunk", forward=False)
    pair = rows.filter(pl.col("kind") == "FB").select(
        *common, pl.col("microbatch_b").alias("microbatch"), pl.col("chunk_b").alias("chunk"), forward=False
    )
    return pl.concat([forward, back, pair]).drop_nulls("microbatch")


def replicas(ranks: pl.DataFrame) -> pl.DataFrame:
    """rank, stage, replica: ranks with the same number form one pipeline, one rank per stage."""
    places = ranks.drop_nulls("stage").with_columns(pl.col("dp", "tp", "cp").fill_null(0)).sort("rank")
    # Where the data do not tell replicas apart, the ranks of a stage are numbered in order.
    numbered = places.with_columns(same=pl.int_range(pl.len()).over("stage", "dp", "tp", "cp"))
    return numbered.select("rank", "stage", replica=pl.struct("dp", "tp", "cp", "same").rank("dense").cast(pl.Int64))


def _keyed(halves: pl.DataFrame, placement: Placement, stages: int) -> pl.DataFrame:
    """row, forward, key: one number for (step, replica, direction of DualPipe, micro-batch, virtual stage)."""
    steps = halves.select("run", "step").unique().sort("run", "step").with_row_index("at")
    virtual = virtual_stage(placement, stages, pl.col("chunk").cast(pl.Int64), pl.col("stage").cast(pl.Int64))
    copy = pl.col("chunk") if placement == "both" else pl.lit(0)
    columns = halves.join(steps, on=["run", "step"], how="left", maintain_order="left").select(
        "row", "forward", "replica", "microbatch", at=pl.col("at").cast(pl.Int64), copy=copy, virtual=virtual
    )
    key = pl.col("at")
    for part in ("replica", "copy", "microbatch", "virtual"):
        # One number is left free, so that the last virtual stage and the first of the next micro-batch are apart.
        key = key * (_above(columns[part]) + 1) + pl.col(part)
    return columns.select("row", "forward", key=key)
