"""Which step of the training run a block belongs to, where the source does not say.

In order of belief: an optimizer block ends a step; so does a collective in which several stages take part; the first
micro-batch's forward begins one; and a first stage that has done as many backwards as forwards has ended one.
"""

from __future__ import annotations

import polars as pl

from trace_export.model import INT, Profile

WORK = ("F", "B", "W", "FB")
FORWARDS = pl.col("kind").is_in(["F", "FB"])
BACKWARDS = pl.col("kind").is_in(["B", "FB"])

REPLICA = ("dp", "tp", "cp")
"""What tells the pipelines of a run apart: ranks that agree in these are the stages of one pipeline."""


def number(profile: Profile) -> pl.DataFrame:
    """`profile.spans` in the same order, with `step` filled (from 0) for the ranks none of whose blocks has one."""
    spans = profile.spans.with_row_index("row")
    blocks = spans.filter(pl.col("kind").is_in([*WORK, "OPT"]))
    known = blocks.filter(pl.col("step").is_not_null())
    blocks = blocks.join(known, on="rank", how="anti").sort("rank", "start_ns", "end_ns").drop("step")
    if blocks.is_empty():
        return profile.spans
    steps = _by_optimizer(blocks)
    for rule in (_by_collectives, _by_first_forward, _by_balance):
        steps = rule(profile, blocks) if steps is None else steps
    whole = pl.lit(0) if steps is None else steps
    found = blocks.select("row", "rank", step=whole).with_columns(
        pl.col("step").forward_fill().backward_fill().over("rank").cast(INT)
    )
    filled = spans.join(found.select("row", found="step"), on="row", how="left", maintain_order="left")
    return filled.with_columns(pl.coalesce("step", "found").alias("step")).drop("row", "found")


def _by_optimizer(blocks: pl.DataFrame) -> pl.Series | None:
    """A block after an optimizer block begins the next step. None unless every rank has optimizer blocks."""
    optimizer = pl.col("kind") == "OPT"
    if not blocks.group_by("rank").agg(optimizer.any())["kind"].all():
        return None
    begins = (optimizer.shift(1).over("rank") & ~optimizer).fill_null(False)
    return blocks.select(begins.cum_sum().over("rank"))[:, 0]


def _by_collectives(profile: Profile, blocks: pl.DataFrame) -> pl.Series | None:
    """The collective of several stages that comes next names the step, by its ordinal: so a rank whose capture lacks a
    step still gets the others' numbers. None unless some group's collectives lie between steps only."""
    placed = profile.collectives.join(profile.ranks.select("rank", "stage"), on="rank")
    groups = (
        placed.group_by("group")
        .agg(stages=pl.col("stage").n_unique(), ranks=pl.col("rank").n_unique())
        .filter(pl.col("stages") > 1)
        .sort("ranks", "group", descending=[True, False])
    )
    for group in groups["group"].head(8):
        steps = _between(blocks, profile.collectives.filter(pl.col("group") == group))
        ends = blocks.with_columns(step=steps).filter(pl.col("step") < pl.col("step").max().over("rank"))
        open_ends = ends.group_by("rank", "step").agg(forwards=FORWARDS.sum(), backwards=BACKWARDS.sum())
        if not (open_ends["forwards"] > open_ends["backwards"]).any():
            return steps
    return None


def _between(blocks: pl.DataFrame, collectives: pl.DataFrame) -> pl.Series:
    """The number of the gap between `collectives` (of one group) that each block lies in, the same on all ranks."""
    ordinals = collectives.select("rank", "ordinal", start_ns="start_ns").sort("start_ns")
    rows = blocks.select("row", "rank", "start_ns").sort("start_ns")
    after = rows.join_asof(
        ordinals.rename({"ordinal": "next"}), on="start_ns", by="rank", strategy="forward", check_sortedness=False
    )
    both = after.join_asof(
        ordinals.rename({"ordinal": "last"}), on="start_ns", by="rank", strategy="backward", check_sortedness=False
    )
    keys = both.select("next").drop_nulls().unique().sort("next").with_columns(key="next")
    # A capture that ends before its step's collective: the step is the one whose collective the others have next.
    cut = both.with_columns(next=pl.coalesce("next", pl.col("last") + 1, pl.lit(0, pl.Int64))).sort("next")
    keyed = cut.join_asof(keys, on="next", strategy="forward").sort("row")
    named = blocks.select("row").join(
        keyed.select("row", key=pl.coalesce("key", "next")), on="row", maintain_order="left"
    )
    return named["key"].rank("dense").cast(INT) - 1


def _by_first_forward(profile: Profile, blocks: pl.DataFrame) -> pl.Series | None:
    """The forward of micro-batch 0 comes first in a step. None unless every forward has its number."""
    if blocks.filter(FORWARDS)["microbatch"].null_count() or blocks.filter(FORWARDS).is_empty():
        return None
    begins = (pl.col("kind") == "F") & (pl.col("microbatch") == 0) & (pl.col("chunk").fill_null(0) == 0)
    count = begins.fill_null(False).cum_sum().over("rank")
    return blocks.select((count - count.first().over("rank").clip(0, 1)).cast(INT))[:, 0]


def _by_balance(profile: Profile, blocks: pl.DataFrame) -> pl.Series | None:
    """By counts: a stage that is not the last has as many backwards as forwards only when its step is over.

    The first stage of each pipeline gives the number of blocks of a kind per step; the others count theirs, from the
    end where the start of the capture is missing (forwards lack, backwards do not).
    """
    last = profile.ranks["stage"].max()
    placed = blocks.join(profile.ranks.select("rank", "stage", *REPLICA), on="rank", how="left", maintain_order="left")
    first = placed.filter((pl.col("stage") == pl.col("stage").min().over(REPLICA)) & (pl.col("stage") != last))
    balance = first.with_columns(
        forwards=FORWARDS.cum_sum().over("rank"), open=(FORWARDS.cast(INT) - BACKWARDS.cast(INT)).cum_sum().over("rank")
    ).filter(pl.col("open") == 0)
    per_step = balance.group_by(REPLICA).agg(size=pl.col("forwards").first())
    sized = placed.join(per_step, on=REPLICA, how="left", nulls_equal=True, maintain_order="left")
    size, count = pl.col("size"), pl.len().over("rank", "kind")
    forwards, backwards = FORWARDS.sum().over("rank"), BACKWARDS.sum().over("rank")
    shift = pl.when((forwards % size != 0) & (backwards % size == 0)).then(-count % size).otherwise(0)
    index = pl.int_range(pl.len()).over("rank", "kind")
    numbered = pl.when(pl.col("kind").is_in(["F", "B"])).then((index + shift) // size)
    return sized.select(numbered.fill_null(pl.when(size.is_null()).then(0)).cast(INT))[:, 0]
