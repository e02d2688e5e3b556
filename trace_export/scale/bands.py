"""The figures of an overview: every rank in every step, and what the ranks of a stage have in common."""

from __future__ import annotations

import polars as pl

from trace_export.model import INT, REAL, TIME, Schema, conform
from trace_export.scale.summary import Summary

CELLS: Schema = {
    "replica": INT, "stage": INT, "tp": INT, "rank": INT, "run": INT, "step": INT, "whole": pl.Boolean(),
    "busy_ns": TIME, "pipeline_ns": TIME, "step_ns": TIME, "busy": REAL, "idle": REAL, "waiting": REAL,
    "behind_ns": TIME,
}  # fmt: skip
"""A rank in a step, sorted by replica, stage, tp, rank, run and step. `pipeline_ns`: from its replica's first block to
the last; `step_ns`: to the first block of the next step (null where that is absent); `busy`: its busy time by the
median of its stage in that step; `idle`: its bubble, as a share of the pipeline time, of which `waiting` is what lies
between its first block and its last; `behind_ns`: how much later than the first replica its own begins the step."""
BANDS: Schema = {
    "stage": INT, "ranks": INT, "p5_ns": REAL, "p50_ns": REAL, "p95_ns": REAL, "max_ns": REAL, "max_rank": INT,
    "idle": REAL,
}  # fmt: skip
"""Of each stage: quantiles over its ranks of their mean busy time in a step, the rank with the longest, and the mean
idle share."""
STEPS: Schema = {
    "run": INT, "step": INT, "ranks": INT, "whole": pl.Boolean(), "pipeline_ns": REAL, "longest_ns": REAL,
    "step_ns": REAL, "bubble": REAL,
}  # fmt: skip
"""Medians over the replicas, the longest pipeline time, and the mean idle share."""


def cells(summary: Summary) -> pl.DataFrame:
    """The table `CELLS`. Times of several replicas must be on one axis for `behind_ns`."""
    places = summary.ranks.select("rank", "replica", "stage", "tp")
    rows = summary.rank_steps.join(places, on="rank", maintain_order="left")
    in_step, length = ["replica", "run", "step"], pl.col("step_end_ns") - pl.col("step_start_ns")
    begins = rows.group_by(in_step).agg(pl.col("step_start_ns").first())
    behind = pl.col("step_start_ns") - pl.col("step_start_ns").min().over("run", "step")
    waits = ["forward_ns", "backward_ns", "transfer_ns", "late_ns", "unknown_ns"]
    usual = pl.col("busy_ns").median().over("stage", "run", "step")
    found = rows.join(
        begins.select(*in_step, behind_ns=behind), on=in_step, nulls_equal=True, maintain_order="left"
    ).with_columns(
        pipeline_ns=length,
        busy=pl.when(usual > 0).then(pl.col("busy_ns") / usual),
        idle=pl.when(length > 0).then(1 - pl.col("busy_ns") / length),
        waiting=pl.when(length > 0).then(pl.sum_horizontal(waits) / length),
    )
    return conform(found.sort("replica", "stage", "tp", "rank", "run", "step"), CELLS)


def bands(cells: pl.DataFrame) -> pl.DataFrame:
    """The table `BANDS` of whole steps, or where there are none, of all."""
    chosen = cells.filter("whole") if cells["whole"].any() else cells
    ranks = chosen.group_by("stage", "rank").agg(pl.col("busy_ns").mean(), pl.col("idle").mean()).sort("stage", "rank")
    busy = pl.col("busy_ns")
    found = ranks.group_by("stage", maintain_order=True).agg(
        ranks=pl.len(), p5_ns=busy.quantile(0.05, "linear"), p50_ns=busy.median(), p95_ns=busy.quantile(0.95, "linear"),
        max_ns=busy.max(), max_rank=pl.col("rank").get(busy.arg_max()), idle=pl.col("idle").mean(),
    )  # fmt: skip
    return conform(found.sort("stage"), BANDS)


def steps(cells: pl.DataFrame) -> pl.DataFrame:
    """The table `STEPS`."""
    of_replica = cells.group_by("run", "step", "replica").agg(
        pl.col("pipeline_ns", "step_ns").first(), pl.col("whole").first(), ranks=pl.len(), bubble=pl.col("idle").mean()
    )
    found = of_replica.group_by("run", "step").agg(
        pl.col("ranks").sum(), pl.col("whole").all(), pl.col("step_ns").median(), pl.col("bubble").mean(),
        longest_ns=pl.col("pipeline_ns").max(), pipeline_ns=pl.col("pipeline_ns").median(),
    )  # fmt: skip
    return conform(found.sort("run", "step"), STEPS)
