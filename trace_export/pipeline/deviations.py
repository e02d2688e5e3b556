"""The places at which a run leaves the order of the recognised schedule."""

from __future__ import annotations

import numpy as np
import polars as pl

from trace_export.model import STEP_KEY, Plan, Recognition
from trace_export.ordering import run_number, stretches
from trace_export.pipeline.block_order import CHUNKS, KEY, LETTERS, expected_order, without_pieces, without_weights
from trace_export.pipeline.schedule_match import with_microbatches
from trace_export.pipeline.step_groups import step_groups
from trace_export.schedules.words import profile_blocks

DEVIATIONS = {
    "run": pl.Int32(), "step": pl.Int32(), "rank": pl.Int32(), "stage": pl.Int32(), "position": pl.Int32(),
    "expected": pl.String(), "found": pl.String(),
}  # fmt: skip
STEP_RANK_KEY = [*STEP_KEY, "rank"]


def deviations(orders: pl.DataFrame, recognition: Recognition) -> pl.DataFrame:
    """Where ranks leave the recognised order in `orders` (as `block_order.sequences` gives them).

    Columns `DEVIATIONS`: a row per rank and step that differs, with the first position where it does, the block
    expected there and the one found (null: none). Steps with other numbers of micro-batches are compared with the
    order for theirs.
    """
    if recognition.plan is None:
        return pl.DataFrame(schema=DEVIATIONS)
    return pl.concat([_deviations(part, recognition.plan, weights=recognition.weights) for part in step_groups(orders)])


def _deviations(orders: pl.DataFrame, usual: Plan, *, weights: bool) -> pl.DataFrame:
    """`deviations` of some steps."""
    orders = without_pieces(orders)
    if not weights:
        orders = without_weights(orders)
    forwards = _forwards(orders)
    parts = [pl.DataFrame(schema=DEVIATIONS)]
    for m in forwards.filter(forwards > 0).unique().to_list():
        plan = with_microbatches(usual, m)
        if plan is not None:
            here = forwards == m
            part = orders if here.all() else orders.filter(here)
            present = tuple(part["stage"].unique().sort())
            parts.append(_first_differences(part, expected_order(profile_blocks(plan, present), weights)))
    return pl.concat(parts).sort(*STEP_KEY, "rank")


def _forwards(orders: pl.DataFrame) -> pl.Series:
    """For each row the number of forwards of chunk 0 on the rank that has the most in the step."""
    numbered = orders.select(
        step=run_number(*STEP_KEY),
        lane=run_number(*STEP_RANK_KEY),
        counted=(pl.col("kind") == "F") & (pl.col("chunk") == 0),
    )
    lanes = numbered.group_by("lane").agg(pl.col("step").first(), pl.col("counted").sum())
    return lanes.group_by("step").agg(pl.col("counted").max()).sort("step")["counted"].gather(numbered["step"])


def _first_differences(orders: pl.DataFrame, expected: pl.DataFrame) -> pl.DataFrame:
    """`DEVIATIONS` of `orders` of one plan. Example: F0 B0 F1 B1 was expected. F0 F1 B0 B1 differs in position 1, where
    it has F1 and not B0; F0 B0 F1 in position 3, where it has nothing."""
    # A row per stage, long enough for all, so that expected blocks are looked up and not joined.
    present = orders["stage"].unique().sort().to_numpy()
    row = np.searchsorted(present, orders["stage"].to_numpy())
    position = orders["position"].to_numpy()
    longest = max(int(positions.max(initial=-1)) for positions in (position, expected["position"].to_numpy()))
    table = np.full((len(present), longest + 2), -1, np.int64)
    expected_row = np.searchsorted(present, expected["stage"].to_numpy())
    table[expected_row, expected["position"].to_numpy()] = expected.select(KEY).to_series().to_numpy()
    columns = [*STEP_RANK_KEY, "stage", "position", "found", "expected"]
    keyed = orders.select(*columns[:-2], found=KEY, expected=pl.Series(table[row, position]))
    last = stretches(orders, *STEP_RANK_KEY)["len"].cum_sum() - 1
    ends = keyed[last].with_columns(
        pl.col("position") + 1, found=pl.lit(-1, pl.Int64), expected=pl.Series(table[row, position + 1]).gather(last)
    )
    wrong = pl.concat([part.filter(pl.col("found") != pl.col("expected")) for part in (keyed, ends)])
    first = wrong.sort("position").group_by(*STEP_RANK_KEY, "stage", maintain_order=True).first()
    return first.with_columns(_name("found"), _name("expected")).select(
        pl.col(name).cast(dtype) for name, dtype in DEVIATIONS.items()
    )


def _name(column: str) -> pl.Expr:
    """`B3.1` for the key of the backward of micro-batch 3 in chunk 1."""
    key = pl.col(column)
    letter = (key % 4).replace_strict(dict(enumerate(LETTERS)), default=None, return_dtype=pl.String)
    return pl.when(key >= 0).then(pl.format("{}{}.{}", letter, key // 4 // CHUNKS, key // 4 % CHUNKS)).alias(column)
