"""Where a run leaves the order of the schedule that was recognised."""

from __future__ import annotations

import numpy as np
import polars as pl

from trace_export.model import STEP_KEY, Plan, Recognition
from trace_export.pipeline.block_order import CHUNKS, KEY, LETTERS, expected_order, without_pieces, without_weights
from trace_export.pipeline.schedule_match import with_microbatches
from trace_export.pipeline.step_groups import step_groups
from trace_export.schedules.words import profile_blocks

DEVIATIONS = {
    "run": pl.Int32(), "step": pl.Int32(), "rank": pl.Int32(), "stage": pl.Int32(), "position": pl.Int32(),
    "expected": pl.String(), "found": pl.String(),
}  # fmt: skip


def deviations(orders: pl.DataFrame, found: Recognition) -> pl.DataFrame:
    """Where ranks leave the recognised order in `orders` (as `block_order.sequences` gives them).

    Columns `DEVIATIONS`: a row per rank and step that differs, with the first position where it does, the block
    expected there and the one found (null: none). Steps with other numbers of micro-batches are compared with the
    order for theirs.
    """
    if found.plan is None:
        return pl.DataFrame(schema=DEVIATIONS)
    return pl.concat([_deviations(part, found.plan, weights=found.weights) for part in step_groups(orders)])


def _deviations(orders: pl.DataFrame, usual: Plan, *, weights: bool) -> pl.DataFrame:
    """`deviations` of some steps."""
    orders = without_pieces(orders)
    if not weights:
        orders = without_weights(orders)
    counts = (
        orders.filter((pl.col("kind") == "F") & (pl.col("chunk") == 0))
        .group_by(*STEP_KEY, "rank").len().group_by(STEP_KEY).agg(m=pl.col("len").max())
    )  # fmt: skip
    parts = [pl.DataFrame(schema=DEVIATIONS)]
    for m in counts["m"].unique():
        plan = with_microbatches(usual, m)
        if plan is not None:
            steps = counts.filter(pl.col("m") == m)
            part = orders.join(steps, on=STEP_KEY, how="semi", nulls_equal=True, maintain_order="left")
            present = tuple(part["stage"].unique().sort())
            parts.append(_first_differences(part, expected_order(profile_blocks(plan, present), weights)))
    return pl.concat(parts).sort(*STEP_KEY, "rank")


def _first_differences(orders: pl.DataFrame, expected: pl.DataFrame) -> pl.DataFrame:
    # A row per stage, long enough for all, so that expected blocks are looked up and not joined.
    present, row = np.unique(orders["stage"].to_numpy(), return_inverse=True)
    longest = max(frame["position"].to_numpy().max(initial=-1) for frame in (orders, expected))
    table = np.full((len(present), longest + 2), -1, np.int64)
    expected_row = np.searchsorted(present, expected["stage"].to_numpy())
    table[expected_row, expected["position"].to_numpy()] = expected.select(KEY).to_series().to_numpy()
    group = [*STEP_KEY, "rank", "stage"]
    keyed = orders.select(*group, "position", found=KEY, expected=pl.Series(table[row, orders["position"].to_numpy()]))
    ends = keyed.group_by(group).agg(pl.col("position").max() + 1)
    after = pl.Series(table[np.searchsorted(present, ends["stage"].to_numpy()), ends["position"].to_numpy()])
    short = ends.with_columns(found=pl.lit(-1, pl.Int64), expected=after)
    wrong = pl.concat([keyed, short.select(keyed.columns)]).filter(pl.col("found") != pl.col("expected"))
    first = wrong.sort("position").group_by(group, maintain_order=True).first()
    return first.with_columns(_name("found"), _name("expected")).select(
        pl.col(name).cast(dtype) for name, dtype in DEVIATIONS.items()
    )


def _name(column: str) -> pl.Expr:
    """`B3.1` for the key of the backward of micro-batch 3 in chunk 1."""
    key = pl.col(column)
    letter = (key % 4).replace_strict(dict(enumerate(LETTERS)), default=None, return_dtype=pl.String)
    return pl.when(key >= 0).then(pl.format("{}{}.{}", letter, key // 4 // CHUNKS, key // 4 % CHUNKS)).alias(column)
