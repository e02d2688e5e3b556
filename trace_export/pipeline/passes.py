"""The passes of a run: a row for each forward, backward and weight gradient that its blocks ran."""

from __future__ import annotations

import polars as pl

from trace_export.model import INT, PASS_ID, PASSES, RANK_STEP_KEY, WORK_KINDS, Profile
from trace_export.ordering import only, repeated, stretches
from trace_export.schedules.passes import split_pairs

_COLUMNS = [*RANK_STEP_KEY, "kind", "microbatch", "chunk", "microbatch_b", "chunk_b", "start_ns", "end_ns"]


def passes_of(profile: Profile) -> pl.DataFrame:
    """The passes (`PASSES`) of the profile's blocks, in their order.

    Needs `spans.id`; stage and replica are those of `ranks`. O(n) in the blocks.
    """
    ranks = profile.ranks
    work = only(profile.spans.select(pl.col("id").alias("span"), *_COLUMNS), pl.col("kind").is_in(WORK_KINDS))
    halves = split_pairs(work.with_columns(pl.col("chunk", "chunk_b").fill_null(0)))
    lanes = stretches(halves, "rank")  # rows of a rank mostly stand together
    places = ranks.select("rank", "stage", "replica").unique("rank", keep="first")
    lanes = lanes.join(places, on="rank", how="left", maintain_order="left")
    return halves.with_columns(
        *(_repeated(lanes[name], lanes["len"]) for name in ("stage", "replica")),
        id=pl.int_range(pl.len(), dtype=PASS_ID),
    ).select(pl.col(name).cast(dtype) for name, dtype in PASSES.items())


def _repeated(numbers: pl.Series, lengths: pl.Series) -> pl.Series:
    """For each row the number of its stretch, which may be null."""
    filled = repeated(numbers.fill_null(-1), lengths)
    return filled.set(filled < 0, None).cast(INT) if numbers.has_nulls() else filled
