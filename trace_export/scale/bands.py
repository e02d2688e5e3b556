"""The figures of an overview: of every rank in every step, and of the ranks of a stage."""

from __future__ import annotations

import polars as pl

from trace_export.analysis.counted_steps import counted
from trace_export.model import INT, REAL, SEGMENT, STEP_KEY, TIME, Schema, conform
from trace_export.scale.summary import Summary
from trace_export.steps.idle import INNER

CELLS: Schema = {
    "replica": INT, "stage": INT, "tp": INT, "rank": INT, "run": INT, "step": INT, "whole": pl.Boolean(),
    "counts": pl.Boolean(), "busy_ns": TIME, "pipeline_ns": TIME, "step_ns": TIME, "busy": REAL, "idle": REAL,
    "waiting": REAL, "behind_ns": TIME,
}  # fmt: skip
"""A rank in a step, sorted by replica, stage, tp, rank, run and step. `pipeline_ns`: from its replica's first block to
the last; `step_ns`: to the first block of the next step (null where that is absent); `busy`: its busy time by the
median of its stage in that step; `idle`: its bubble, as a share of the pipeline time; `waiting`: the part of it between
its first block and its last; `behind_ns`: how much later than the first replica its replica begins the step."""
BANDS: Schema = {
    "stage": INT, "ranks": INT, "p5_ns": REAL, "p50_ns": REAL, "p95_ns": REAL, "max_ns": REAL, "max_rank": INT,
    "idle": REAL,
}  # fmt: skip
"""For each stage: quantiles over its ranks of their mean busy time in a step, the rank with the longest, and the share
of the pipeline time in which its ranks are idle, as in a report."""
STEP_FIGURES: Schema = {
    "run": INT, "step": INT, "ranks": INT, "whole": pl.Boolean(), "counts": pl.Boolean(), "pipeline_ns": REAL,
    "longest_ns": REAL, "step_ns": REAL, "bubble": REAL,
}  # fmt: skip
"""The pipeline time as a mean over the ranks, and the longest; `step_ns` from the first block of the step to that of
the next, of replicas without a common axis as a mean over their axes; `bubble` as the ratio of sums over the ranks."""


def cells(summary: Summary) -> pl.DataFrame:
    """The table `CELLS`. Times of several replicas must be on one axis for `behind_ns`."""
    places = summary.ranks.select("rank", "replica", "stage", "tp")
    rows = summary.rank_steps.join(places, on="rank", maintain_order="left")
    in_step, length = ["replica", "run", "step"], pl.col("step_end_ns") - pl.col("step_start_ns")
    begins = rows.group_by(in_step).agg(pl.col("step_start_ns").first())
    behind = pl.col("step_start_ns") - pl.col("step_start_ns").min().over("run", "step")
    waits = [f"{cause}_ns" for cause in INNER]
    usual = pl.col("busy_ns").median().over("stage", "run", "step")
    figures = rows.join(
        begins.select(*in_step, behind_ns=behind), on=in_step, nulls_equal=True, maintain_order="left"
    ).with_columns(
        pipeline_ns=length,
        busy=pl.when(usual > 0).then(pl.col("busy_ns") / usual),
        idle=pl.when(length > 0).then(1 - pl.col("busy_ns") / length),
        waiting=pl.when(length > 0).then(pl.sum_horizontal(waits) / length),
    )
    return conform(figures.sort("replica", "stage", "tp", "rank", "run", "step"), CELLS)


def bands(cells: pl.DataFrame) -> pl.DataFrame:
    """The table `BANDS` of the steps that count, or, if there are none, of all steps."""
    ranks = counted(cells).group_by("stage", "rank").agg(pl.col("busy_ns", "pipeline_ns").mean()).sort("stage", "rank")
    busy, length = pl.col("busy_ns"), pl.col("pipeline_ns").sum()
    figures = ranks.group_by("stage", maintain_order=True).agg(
        ranks=pl.len(), p5_ns=busy.quantile(0.05, "linear"), p50_ns=busy.median(), p95_ns=busy.quantile(0.95, "linear"),
        max_ns=busy.max(), max_rank=pl.col("rank").get(busy.arg_max()),
        idle=pl.when(length > 0).then(1 - busy.sum() / length),
    )  # fmt: skip
    return conform(figures.sort("stage"), BANDS)


def steps(summary: Summary) -> pl.DataFrame:
    """The table `STEP_FIGURES`, added up over the ranks of all parts."""
    length = pl.col("step_end_ns") - pl.col("step_start_ns")
    sums = summary.rank_steps.group_by(STEP_KEY).agg(
        ranks=pl.len(), whole=pl.col("whole").all(), counts=pl.col("counts").all(),
        pipeline_ns=length.mean(), longest_ns=length.max(),
        bubble=pl.when(length.sum() > 0).then(1 - pl.col("busy_ns").sum() / length.sum()),
    )  # fmt: skip
    figures = sums.join(_step_times(summary), on=STEP_KEY, how="left", nulls_equal=True)
    return conform(figures.sort(STEP_KEY), STEP_FIGURES)


def _step_times(summary: Summary) -> pl.DataFrame:
    """run, step, step_ns."""
    segment = ["axis", *SEGMENT]
    axes = summary.ranks.select("rank", "axis")
    begun = summary.rank_steps.join(axes, on="rank", how="left").group_by(*segment, "step").agg(
        pl.col("step_start_ns").min(), of_parts=pl.col("step_ns").mean()
    ).sort(*segment, "step")  # fmt: skip
    following = pl.col("step").shift(-1).over(segment) == pl.col("step") + 1
    time = (pl.col("step_start_ns").shift(-1) - pl.col("step_start_ns")).over(segment)
    in_parts = pl.col("of_parts").is_not_null()
    each = begun.with_columns(step_ns=pl.when(following & in_parts).then(time).otherwise("of_parts"))
    return each.group_by(STEP_KEY).agg(pl.col("step_ns").mean())


def mean_of(steps: pl.DataFrame, column: str) -> float | None:
    """The mean of a column of `STEP_FIGURES` over the steps that count, else over all; None if there is no value."""
    mean = counted(steps)[column].mean()
    return float(mean) if isinstance(mean, float | int) else None


def bubble_of(summary: Summary, steps: pl.DataFrame) -> float | None:
    """The bubble of the run: of its steps that count, else of all."""
    rows = summary.rank_steps.join(counted(steps), on=STEP_KEY, how="semi", nulls_equal=True)
    length = int((rows["step_end_ns"] - rows["step_start_ns"]).sum())
    return 1 - int(rows["busy_ns"].sum()) / length if length else None
