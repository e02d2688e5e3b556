"""Which micro-batches a rank ran in one direction only: where every rank lost as many blocks, nothing else shows it."""

from __future__ import annotations

import polars as pl

from trace_export.model import RANK_STEP_KEY


def against_counterparts(parts: pl.DataFrame, passes: pl.DataFrame) -> pl.DataFrame:
    """`parts` (rank, run, step, F, B, want, missing, excess) in which, where the numbers alone are right, each pass is
    missing whose counterpart is there. `passes` has the schema `PASSES`."""
    right = (pl.col("missing") == 0) & (pl.col("excess") == 0) & (pl.col("F") == pl.col("B"))
    parts = parts.join(unpaired(passes), on=RANK_STEP_KEY, how="left", nulls_equal=True, maintain_order="left")
    lacking = pl.when(right).then("unpaired").otherwise(0).fill_null(0)
    return parts.with_columns(pl.col("missing", "want") + lacking)


def unpaired(passes: pl.DataFrame) -> pl.DataFrame:
    """rank, run, step, unpaired: of how many micro-batches and chunks there is a forward and no backward, or the
    reverse. Only where there are some, and all forwards and backwards of the rank's step have a micro-batch. O(n log n)
    in the passes.
    """
    columns = [*RANK_STEP_KEY, "microbatch", "chunk"]
    forward, backward = (
        passes.filter(pl.col("kind") == kind).select(*columns, side=pl.lit(side))
        for kind, side in (("F", 1), ("B", -1))
    )
    content = pl.struct(columns).hash().sum()  # equal where both have the same rows, in any order
    if forward.height == backward.height and forward.select(content).equals(backward.select(content)):
        return passes.select(*RANK_STEP_KEY, unpaired=pl.lit(0, pl.Int64)).clear()
    both = pl.concat([forward, backward])
    if both["microbatch"].null_count():
        both = both.filter(pl.col("microbatch").is_not_null().all().over(RANK_STEP_KEY))
    side = pl.col("side")
    sides = both.group_by(columns).agg(alone=side.min() == side.max())
    return sides.filter("alone").group_by(RANK_STEP_KEY).agg(unpaired=pl.len().cast(pl.Int64))
