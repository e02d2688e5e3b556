"""Which micro-batches a rank ran in one direction only: where every rank lost as many blocks, nothing else shows it."""

from __future__ import annotations

import polars as pl

from trace_export.model import RANK_STEP_KEY


def against_counterparts(parts: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """`parts` (rank, run, step, F, B, want, missing, excess) in which, where the numbers alone are right, each block is
    missing whose counterpart is there. `work`: the F, B and FB blocks, perhaps others."""
    right = (pl.col("missing") == 0) & (pl.col("excess") == 0) & (pl.col("F") == pl.col("B"))
    parts = parts.join(unpaired(work), on=RANK_STEP_KEY, how="left", nulls_equal=True, maintain_order="left")
    lacking = pl.when(right).then("unpaired").otherwise(0).fill_null(0)
    return parts.with_columns(pl.col("missing", "want") + lacking)


def unpaired(work: pl.DataFrame) -> pl.DataFrame:
    """rank, run, step, unpaired: of how many micro-batches and chunks there is a forward and no backward, or the
    reverse. Only where there are some, and all forwards and backwards of the rank's step have a micro-batch. O(n log n)
    in the blocks.
    """
    kind = pl.col("kind")
    work = work.with_columns(pl.col("chunk", "chunk_b").fill_null(0))
    forward = work.filter(kind.is_in(["F", "FB"])).select(*RANK_STEP_KEY, "microbatch", "chunk", side=pl.lit(1))
    backward = pl.concat([
        work.filter(kind == "B").select(*RANK_STEP_KEY, "microbatch", "chunk", side=pl.lit(-1)),
        work.filter(kind == "FB").select(
            *RANK_STEP_KEY, microbatch="microbatch_b", chunk="chunk_b", side=pl.lit(-1)
        ),
    ])  # fmt: skip
    content = pl.struct(pl.exclude("side")).hash().sum()  # equal where both have the same rows, in any order
    if forward.height == backward.height and forward.select(content).equals(backward.select(content)):
        return work.select(*RANK_STEP_KEY, unpaired=pl.lit(0, pl.Int64)).clear()
    passes = pl.concat([forward, backward])
    if passes["microbatch"].null_count():
        passes = passes.filter(pl.col("microbatch").is_not_null().all().over(RANK_STEP_KEY))
    side = pl.col("side")
    sides = passes.group_by(*RANK_STEP_KEY, "microbatch", "chunk").agg(alone=side.min() == side.max())
    return sides.filter("alone").group_by(RANK_STEP_KEY).agg(unpaired=pl.len().cast(pl.Int64))
