"""The track of steps, and the counter tracks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trace_export.chart.builder import Builder
from trace_export.chart.running_counts import running_count
from trace_export.model import STEP_KEY, WORK_KINDS
from trace_export.ordering import ordered


def add_steps(builder: Builder, blocks: pl.DataFrame, extra: pl.DataFrame | None, order: int) -> None:
    """A slice per (run, step) from its first block's start to its last block's end, and a mark where it ends.

    `extra` has the keys run and step; its other columns become arguments.
    """
    steps = (
        blocks.drop_nulls("step")
        .group_by(STEP_KEY)
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max(), blocks=pl.len(), ranks=pl.col("rank").n_unique())
        .with_columns(pl.format("step {}", "step").alias("name"), pl.lit("step").alias("category"))
        .with_columns(pl.col("start_ns").alias("start_unix_ns"))
        .sort("start_ns", *STEP_KEY)
    )  # fmt: skip
    if steps.is_empty():
        return
    if extra is not None:
        steps = steps.join(
            extra.with_columns(pl.col(STEP_KEY).cast(pl.Int32)), on=STEP_KEY, how="left", nulls_equal=True
        )
    if steps["run"].n_unique() == 1:
        steps = steps.drop("run")
    track = builder.track("Steps", order, description="Each step, from its first block's start to its last block's end")
    builder.slices(steps, track)
    builder.instants(
        steps.select(pl.col("end_ns").alias("ts_ns"), pl.format("end of step {}", "step").alias("name")), track
    )


def add_stages_busy(builder: Builder, blocks: pl.DataFrame, order: int) -> None:
    """How many of the stages are busy with a micro-batch (`WORK_KINDS`), from `blocks` of one rank per stage."""
    work = blocks.select("stage", "kind", "start_ns", "end_ns").filter(
        pl.col("stage").is_not_null(), pl.col("kind").is_in(WORK_KINDS), pl.col("end_ns") > pl.col("start_ns")
    )
    if work.is_empty():
        return
    stages = ordered(work, "stage", "start_ns").partition_by("stage", maintain_order=True)
    times = [_busy(stage["start_ns"].to_numpy(), stage["end_ns"].to_numpy()) for stage in stages]
    begun, ended = (np.concatenate(ends) for ends in zip(*times, strict=True))
    what = "Stages with a forward, backward or weight block running, one rank of each; the optimizer does not count"
    track = builder.track("stages busy", order, kind="counter", unit="stages", description=what)
    builder.samples(running_count(begun, ended), track)


def _busy(start: NDArray[np.int64], end: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """When a stage with blocks at these times, by start, begins and ceases to be busy."""
    until = np.maximum.accumulate(end)
    begins = np.append(True, start[1:] > until[:-1])
    return start[begins], until[np.append(begins[1:], True)]


def add_counters(builder: Builder, counters: pl.DataFrame, ranks: Mapping[int, str], order: int) -> None:
    """A group with a track per name and rank of `counters`, for the `ranks` that are drawn and what they are called."""
    drawn = pl.col("rank").is_in(list(ranks)) & pl.col("value").is_finite() & pl.col("ts_ns").is_not_null()
    rows = counters.filter(drawn).sort("name", "rank", "ts_ns")
    if rows.is_empty():
        return
    group = builder.track("Counters", order, kind="group", description="What the source counted on each rank")
    tracks = rows.group_by("name", "rank", "unit", maintain_order=True)
    for number, ((name, rank, unit), samples) in enumerate(tracks):
        called = f"{name} · {ranks[int(str(rank))]}"
        track = builder.track(called, number, group, kind="counter", unit=str(unit or ""))
        builder.samples(samples, track)
