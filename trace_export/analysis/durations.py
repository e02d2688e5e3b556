"""The length of each block of a schedule in a run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from trace_export.model import STEP_KEY
from trace_export.ordering import repeated, stretches
from trace_export.pipeline.block_order import KEY, expected_order
from trace_export.pipeline.step_groups import step_groups
from trace_export.schedules.schedule import Schedule
from trace_export.schedules.simulate import Times

ALIKE = ["stage", "kind", "full", "chunk", "chunk_b"]
"""Blocks of a schedule that do the same work."""


@dataclass(frozen=True)
class Measured:
    """`cases`: run, step, replica, case (0, 1, …) of every pipeline and step with the schedule's number of
    micro-batches. `blocks`: op (row of the schedule's `ops`), case, length_ns."""

    schedule: Schedule
    cases: pl.DataFrame
    blocks: pl.DataFrame

    @cached_property
    def means(self) -> Times:
        """The mean duration of each op."""
        return self.typical(how="mean")

    def typical(self, by: list[str] | None = None, how: str = "median") -> Times:
        """A duration for each op: the median (or mean) of the measured blocks that are alike in the columns `by` (of
        `ops`; None: `ALIKE`). A block that was never measured takes no time."""
        by = ALIKE if by is None else by
        alike = self.schedule.ops.select(pl.struct(by).rank("dense").alias("alike")).to_series()
        length = getattr(pl.col("length_ns"), how)()
        blocks = self.blocks.select("length_ns", alike=alike.gather(self.blocks["op"]))
        lengths = blocks.group_by("alike").agg(length)
        filled = alike.to_frame().join(lengths, on="alike", how="left", maintain_order="left")["length_ns"]
        return filled.fill_null(0).cast(pl.Float64).to_numpy()

    def all(self) -> Times:
        """The duration of each op (rows) in each case (columns); the typical one where it was not measured."""
        matrix = np.repeat(self.typical()[:, None], len(self.cases), axis=1)
        columns = self.blocks.select("op", "case", "length_ns").to_numpy()
        matrix[columns[:, 0], columns[:, 1]] = columns[:, 2]
        return matrix


def measure(passes: pl.DataFrame, schedule: Schedule, orders: pl.DataFrame) -> Measured:
    """The durations of `passes` (`PASSES`) in the order of `schedule`; `orders` are their `block_order.sequences`.

    An overlapped pair that was recorded as two blocks takes as long as their union, or as both where they do not
    overlap.
    """
    sizes = orders.filter(pl.col("kind") == "F").group_by(STEP_KEY).agg(m=pl.col("microbatch").max() + 1)
    per_chunk = schedule.microbatches // 2 if schedule.placement == "both" else schedule.microbatches
    places = passes.select("rank", "replica").unique().drop_nulls()
    ran = stretches(orders, *STEP_KEY, "rank").join(places, on="rank", how="left", maintain_order="left")
    fitting = ran.join(sizes.filter(pl.col("m") == per_chunk), on=STEP_KEY, how="semi", nulls_equal=True)
    cases = fitting.select(*STEP_KEY, "replica").drop_nulls("replica").unique().sort(*STEP_KEY, "replica")
    cases = cases.with_row_index("case")
    ran = ran.join(cases, on=[*STEP_KEY, "replica"], how="left", nulls_equal=True, maintain_order="left")
    case = repeated(ran["case"].cast(pl.Int64).fill_null(-1), ran["len"])
    parts = [_lengths(part, passes, schedule) for part in step_groups(orders.with_columns(case))]
    return Measured(schedule, cases, pl.concat(parts))


def _lengths(orders: pl.DataFrame, passes: pl.DataFrame, schedule: Schedule) -> pl.DataFrame:
    """`Measured.blocks` of some steps; `orders` have the case, -1 for none."""
    halves = _with_op(orders, schedule).filter(pl.col("case") >= 0)
    start, end = (passes[c].gather(halves["row"]) for c in ("start_ns", "end_ns"))
    timed = halves.select("op", "case", start, end)
    length = pl.col("end_ns") - pl.col("start_ns")
    again = (KEY.shift(1) == KEY) & (pl.col("position") > 0)
    if (schedule.ops["kind"] == "FB").any() or orders.select(again.any()).item():
        union = pl.col("end_ns").max() - pl.col("start_ns").min()
        return timed.group_by("op", "case").agg(length_ns=pl.min_horizontal(length.sum(), union))
    return timed.select("op", "case", length_ns=length)


def _with_op(orders: pl.DataFrame, schedule: Schedule) -> pl.DataFrame:
    """`orders` with op, the row of the schedule's `ops`; without the blocks that it does not have."""
    expected = expected_order(schedule.ops, weights=True)
    key = [pl.col("stage").cast(pl.Int64), KEY]
    sides = [frame.select(key).to_numpy() for frame in (orders, expected)]
    span = 1 + max(int(side[:, 1].max()) for side in sides if len(side))
    measured, wanted = (side[:, 0] * span + side[:, 1] for side in sides)
    order = np.argsort(wanted)
    at = np.minimum(np.searchsorted(wanted, measured, sorter=order), len(wanted) - 1)
    here = order[at]
    op = pl.Series("op", expected["op"].to_numpy()[here].astype(np.int64))
    return orders.with_columns(op).filter(pl.Series(wanted[here] == measured))
