"""Positions in an expected order, known from the blocks that carry a number."""

from __future__ import annotations

import polars as pl

from trace_export.model import INT, RANK_STEP_KEY
from trace_export.schedules.passes import FORWARDS


def positions(work: pl.DataFrame, expected: pl.DataFrame, microbatches: int) -> pl.DataFrame:
    """rank, run, step, row, position of all blocks of `work` whose position in `expected` is certain.

    A forward with number n is chunk n // `microbatches`, micro-batch n % `microbatches`: that is one place in the
    sequence of its stage. A block without a number has the place that its distance from a numbered one gives it, if
    from there on every block is of the kind expected; where the numbered blocks before and after it disagree (a block
    between them is missing), it has none.
    """
    numbered = FORWARDS & pl.col("microbatch").is_not_null()
    table = expected.select(
        "stage",
        "position",
        "letter",
        number=pl.when(FORWARDS).then(pl.col("microbatch") + pl.col("chunk") * microbatches),
    )
    anchors = table.filter(pl.col("number").is_not_null()).select("stage", "letter", "number", place="position")
    rows = (
        work.with_columns(number=pl.when(numbered).then("microbatch"))
        .join(anchors, on=["stage", "letter", "number"], how="left", maintain_order="left")
        .with_columns(distance=pl.col("place") - pl.col("position"))
    )
    for name, fill in (("before", pl.col("distance").forward_fill()), ("after", pl.col("distance").backward_fill())):
        rows = rows.with_columns((fill.over(RANK_STEP_KEY) + pl.col("position")).cast(INT).alias(name))
        letters = table.select("stage", pl.col("position").alias(name), pl.col("letter").alias(f"{name}_letter"))
        rows = rows.join(letters, on=["stage", name], how="left", maintain_order="left")
        rows = rows.with_columns((pl.col(f"{name}_letter") == pl.col("letter")).fill_null(False).alias(f"{name}_fits"))
    is_anchor = pl.col("place").is_not_null()
    rows = rows.with_columns(
        gap_before=is_anchor.cum_sum().over(RANK_STEP_KEY),
        gap_after=is_anchor.cum_sum(reverse=True).over(RANK_STEP_KEY),
    ).with_columns(
        before=pl.when(pl.col("before_fits").cast(INT).cum_min().over([*RANK_STEP_KEY, "gap_before"]) == 1).then(
            "before"
        ),
        after=pl.when(
            pl.col("after_fits").cast(INT).cum_min(reverse=True).over([*RANK_STEP_KEY, "gap_after"]) == 1
        ).then("after"),
    )
    agree = (pl.col("before") == pl.col("after")).fill_null(True)
    position = pl.when(agree).then(pl.coalesce("before", "after"))
    return rows.select(*RANK_STEP_KEY, "row", position=position).filter(pl.col("position").is_not_null())
