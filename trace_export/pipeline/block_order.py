"""The order in which ranks ran their blocks, and that of a schedule, in one form, so that they can be compared.

An order has a row for each forward, backward and weight gradient. Micro-batches are numbered from 0 per chunk, also in
runs that count on from step to step.
"""

from __future__ import annotations

import polars as pl

from trace_export.model import RANK_STEP_KEY, STEP_KEY
from trace_export.ordering import run_number
from trace_export.pipeline.step_groups import step_groups
from trace_export.schedules.passes import split_pairs

LETTERS = "FBW"
CHUNKS = 4096
_LETTER = pl.when(pl.col("kind") == "F").then(0).when(pl.col("kind") == "B").then(1).otherwise(2)
KEY = (pl.col("microbatch").cast(pl.Int64) * CHUNKS + pl.col("chunk")) * 4 + _LETTER
"""The identity of a block as one number; -1 stands for no block."""
_KEYS = 1 << 46
"""Above all numbers of blocks."""


def sequences(passes: pl.DataFrame) -> pl.DataFrame:
    """The measured orders of `passes` (`PASSES`), of those whose stage is known.

    Columns run, step, rank, stage, position, kind (F, B, W), chunk, microbatch (from 0 per chunk, by occurrence where
    null), row (of `passes`); sorted by (run, step, rank, position).
    """
    columns = ["rank", *STEP_KEY, "stage", "start_ns", "end_ns", "kind", "chunk", "microbatch"]
    work = passes.select(columns).with_row_index("row").filter(pl.col("stage").is_not_null())
    return pl.concat([_sequences(part) for part in step_groups(work)])


def _sequences(rows: pl.DataFrame) -> pl.DataFrame:
    """`sequences` of some steps."""
    ordered = rows.sort(*STEP_KEY, "rank", "start_ns", "end_ns", "row").with_row_index("at")
    first = pl.any_horizontal(pl.col(c).ne_missing(pl.col(c).shift(1)) for c in [*STEP_KEY, "rank"]) | (
        pl.col("at") == 0
    )
    position = pl.col("at") - pl.when(first).then("at").forward_fill()
    # Of two blocks that overlap by more than half of the shorter, the forward counts as the first.
    after = {c: pl.col(c).shift(-1) for c in ("kind", "start_ns", "end_ns")}
    both = pl.min_horizontal("end_ns", after["end_ns"]) - after["start_ns"]
    shorter = pl.min_horizontal(pl.col("end_ns") - pl.col("start_ns"), after["end_ns"] - after["start_ns"])
    turned = (pl.col("kind") == "B") & (after["kind"] == "F") & ~first.shift(-1, fill_value=True)
    swap = (turned & (2 * both > shorter)).fill_null(False)
    placed = ordered.with_columns(position=position.cast(pl.Int32), swap=swap).with_columns(
        position=pl.col("position") + pl.col("swap").cast(pl.Int32)
        - pl.col("swap").shift(1, fill_value=False).cast(pl.Int32)
    )  # fmt: skip
    columns = [*STEP_KEY, "rank", "stage", "position", "kind", "chunk", "microbatch", "row"]
    if placed["swap"].any():
        placed = placed.sort(*STEP_KEY, "rank", "position")
    return _numbered_from_zero(placed.select(columns))


def _numbered_from_zero(orders: pl.DataFrame) -> pl.DataFrame:
    """`orders` with micro-batches from 0 in each step and chunk; by occurrence where they are null."""
    if orders["microbatch"].null_count():
        occurrence = pl.int_range(pl.len(), dtype=pl.Int32).over("rank", *STEP_KEY, "kind", "chunk")
        orders = orders.with_columns(pl.coalesce("microbatch", occurrence))
    least = orders.filter(pl.col("kind") == "F").group_by(*STEP_KEY, "chunk").agg(least=pl.col("microbatch").min())
    if not (least["least"] != 0).any():
        return orders
    return (
        orders.join(least, on=[*STEP_KEY, "chunk"], how="left", nulls_equal=True, maintain_order="left")
        .with_columns(pl.col("microbatch") - pl.col("least").fill_null(0))
        .drop("least")
    )


def expected_order(ops: pl.DataFrame, weights: bool) -> pl.DataFrame:
    """A schedule's blocks (`schedule.OPS`) in the form of `sequences`: stage, position, kind, chunk, microbatch, op
    (the row); without W where `weights` is false, as in a run that does not record them."""
    columns = ["op", "stage", "position", "kind", "chunk", "microbatch"]
    halves = split_pairs(ops.with_row_index("op"))
    kept = halves.select(columns) if weights else halves.select(columns).filter(pl.col("kind") != "W")
    first = pl.col("microbatch").min().over("chunk")
    return (
        kept.sort("stage", "position", maintain_order=True)
        .with_columns(
            position=pl.int_range(pl.len(), dtype=pl.Int32).over("stage"), microbatch=pl.col("microbatch") - first
        )
    )  # fmt: skip


def without_weights(orders: pl.DataFrame) -> pl.DataFrame:
    """`orders` without weight gradients, as if they had not been recorded."""
    if not (orders["kind"] == "W").any():
        return orders
    position = pl.int_range(pl.len(), dtype=pl.Int32).over(RANK_STEP_KEY)
    return orders.filter(pl.col("kind") != "W").with_columns(position=position)


def without_pieces(orders: pl.DataFrame) -> pl.DataFrame:
    """`orders` where a block that was recorded in several pieces (MindSpeed's loss head) counts once, as the last."""
    lane = run_number(*STEP_KEY, "rank").cast(pl.Int64)
    if orders.select((lane * _KEYS + KEY).n_unique()).item() == len(orders):  # equal for equal blocks, if it overflows
        return orders
    block = pl.struct("rank", *STEP_KEY, KEY)
    position = pl.int_range(pl.len(), dtype=pl.Int32).over("rank", *STEP_KEY)
    return orders.filter(block.is_last_distinct()).with_columns(position=position)
