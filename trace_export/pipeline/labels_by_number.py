"""Positions in an expected order, known from the blocks that carry a number."""

from __future__ import annotations

import polars as pl

from trace_export.model import INT, RANK_STEP_KEY
from trace_export.schedules.passes import FORWARDS


def positions(work: pl.DataFrame, ends: pl.DataFrame, expected: pl.DataFrame, microbatches: int) -> pl.DataFrame:
    """rank, run, step, row, position of all blocks of `work` whose position in `expected` is certain; `ends` as
    `labels_by_position.whole_ends` gives it.

    A forward with number n is chunk n // `microbatches`, micro-batch n % `microbatches`: that is one position in the
    sequence of its stage. A block without a number gets its position from the distance to a numbered one, if every
    block from there on has the kind expected; if the numbered blocks before and after it disagree (a block between them
    is missing), it has none. The end of a step that is surely there counts as a number after its last block.

    Example: a stage runs F0 F1 F2 B0 F3 B1, two micro-batches in two chunks, and of F B F B the first forward has the
    number 2. So it stands in position 2, and the others in 3, 4 and 5.
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
    ended = ends.filter("ends").select(RANK_STEP_KEY, ended=True)
    sizes = table.group_by("stage").agg(size=pl.len())
    rows = rows.join(ended, on=RANK_STEP_KEY, how="left", nulls_equal=True, maintain_order="left").join(
        sizes, on="stage", how="left", maintain_order="left"
    )
    is_last = pl.col("ended") & (pl.col("position") == pl.col("position").max().over(RANK_STEP_KEY))
    to_end = pl.col("size").cast(INT) - 1 - pl.col("position")
    rows = rows.with_columns(to_end=pl.when(is_last & pl.col("place").is_null()).then(to_end))
    for name, reverse in (("before", False), ("after", True)):
        rows = _beside_numbered(rows, table, name, reverse=reverse)
    agree = (pl.col("before") == pl.col("after")).fill_null(True)
    position = pl.when(agree).then(pl.coalesce("before", "after"))
    return rows.select(*RANK_STEP_KEY, "row", position=position).filter(pl.col("position").is_not_null())


def _beside_numbered(rows: pl.DataFrame, table: pl.DataFrame, name: str, *, reverse: bool) -> pl.DataFrame:
    """`rows` with the position `name` that the last numbered block gives each block, or with `reverse` the next one or
    the end; null from the first block on, as seen from there, that is not of the kind expected in its position."""
    distance = pl.coalesce("distance", "to_end").backward_fill() if reverse else pl.col("distance").forward_fill()
    expected = table.select("stage", pl.col("position").alias(name), expected="letter")
    rows = (
        rows.with_columns(
            (distance.over(RANK_STEP_KEY) + pl.col("position")).cast(INT).alias(name),
            stretch=pl.col("place").is_not_null().cum_sum(reverse=reverse).over(RANK_STEP_KEY),
        )
        .join(expected, on=["stage", name], how="left", maintain_order="left")
        .with_columns(fits=(pl.col("expected") == pl.col("letter")).fill_null(False).cast(INT))
    )
    unbroken = pl.col("fits").cum_min(reverse=reverse).over([*RANK_STEP_KEY, "stretch"]) == 1
    return rows.with_columns(pl.when(unbroken).then(name).alias(name)).drop("expected", "stretch", "fits")
