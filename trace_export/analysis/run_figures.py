"""A run in a few small tables: all that a comparison needs and a baseline keeps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

from trace_export.analysis.bubbles import Bubbles
from trace_export.analysis.counted_steps import counted, of_counted_steps
from trace_export.analysis.explanation import Explanation
from trace_export.analysis.summary import host_share
from trace_export.model import STEP_KEY, WORK_KINDS, Profile, Schema, empty
from trace_export.schedules.catalogue import TITLES
from trace_export.steps.idle import CAUSES

if TYPE_CHECKING:
    from trace_export.analysis.slowdown import Slowdown

WHOLE: Schema = {"what": pl.String(), "value": pl.Float64()}
BLOCKS: Schema = {
    "stage": pl.Int32(), "kind": pl.String(), "chunk": pl.Int32(), "blocks": pl.Int64(), "mean_ns": pl.Float64(),
    "slowest": pl.Int32(), "slowest_ns": pl.Float64(),
}  # fmt: skip
STEPS: Schema = {
    "run": pl.Int32(), "step": pl.Int32(), "step_ns": pl.Int64(), "pipeline_ns": pl.Int64(), "bubble": pl.Float64(),
    "slowdown": pl.Float64(),
}  # fmt: skip
DEVICE, HOST, BOTH = "of the device", "of the host", "of the device and of the host"
PREDICTIONS: Schema = {"change": pl.String(), "saved": pl.Float64(), "band": pl.Float64()}
STAGES: Schema = {"run": pl.Int32(), "step": pl.Int32(), "stage": pl.Int32(), "busy_ns": pl.Float64()}


@dataclass(frozen=True)
class RunFigures:
    """A run in a few tables, all of its whole steps.

    `traits`: values that two runs must share to be compared: schedule, stages, ranks, micro-batches, chunks, backwards
    (whole, or split into B and W), times (of the device, or of the host which issued the work). `whole`: what, value:
    times in nanoseconds, means over the steps, and both bubbles. `levels` and `causes` as in `Explanation`, of these
    steps; `gains`: whether the gains of causes can be given. `blocks`: stage, kind, chunk, blocks, mean_ns, and the
    rank that is `slowest` with its mean, slowest_ns. `steps`: run, step, step_ns (from its start to that of the next),
    pipeline_ns (to the end of its last block), bubble, slowdown (the metric S, null where it is unknown). `stages`:
    run, step, stage, busy_ns (mean over its ranks). `predictions`: change, saved, band: which share of the pipeline
    time other schedules save by `theory.CHANGES`; empty if nobody asked for it.
    """

    traits: dict[str, str | int]
    gains: bool
    whole: pl.DataFrame
    levels: pl.DataFrame
    causes: pl.DataFrame
    blocks: pl.DataFrame
    steps: pl.DataFrame
    stages: pl.DataFrame
    predictions: pl.DataFrame = field(default_factory=lambda: empty(PREDICTIONS))


def run_figures(measured: Bubbles, explanation: Explanation, slowdown: Slowdown | None = None) -> RunFigures:
    """The figures of a profile that has been interpreted and aligned; `explanation` is that of its steps;
    `slowdown` where it is known."""
    profile = of_counted_steps(measured.profile)
    measured = measured.of(profile)
    steps = counted(measured.steps).select(*STEP_KEY, "step_ns", "pipeline_ns", "bubble")
    busy = measured.ranks.group_by(*STEP_KEY, "stage").agg(pl.col("busy_ns").mean())
    return RunFigures(
        _traits(profile),
        explanation.trust.gains,
        _whole(measured),
        explanation.levels,
        explanation.causes,
        _blocks(profile),
        steps.join(_slowdown(slowdown), on=STEP_KEY, how="left", nulls_equal=True, maintain_order="left"),
        busy.sort(*STEP_KEY, "stage"),
    )


def _traits(profile: Profile) -> dict[str, str | int]:
    spans, plan = profile.spans, profile.interpreted.recognition.named
    ranks = profile.ranks_with_blocks
    work = spans.select("kind", "microbatch", "chunk").filter(pl.col("kind").is_in(WORK_KINDS))
    return {
        "schedule": "unknown" if plan is None else TITLES[plan.name],
        "stages": ranks["stage"].n_unique(),
        "ranks": ranks.height,
        "micro-batches": work["microbatch"].drop_nulls().n_unique(),
        "chunks": work["chunk"].drop_nulls().n_unique() or 1,
        "backwards": "split into B and W" if (work["kind"] == "W").any() else "whole",
        "times": DEVICE if not (share := host_share(profile)) else HOST if share == 1 else BOTH,
    }


def _whole(measured: Bubbles) -> pl.DataFrame:
    parts = measured.ranks.select(pl.col("busy_ns", *(f"{c}_ns" for c in CAUSES)).mean())
    rows = [("step time", measured.step_ns), ("pipeline time", measured.pipeline_ns), ("busy", parts["busy_ns"][0])]
    rows += [("bubble (global)", measured.bubble), ("bubble (own window)", measured.bubble_own)]
    rows += [(name, parts[f"{cause}_ns"][0]) for cause, name in CAUSES.items()]
    return pl.DataFrame(rows, schema=WHOLE, orient="row")


def _blocks(profile: Profile) -> pl.DataFrame:
    length = pl.col("end_ns") - pl.col("start_ns")
    blocks = profile.spans.select("rank", "kind", "chunk", length=length)
    blocks = blocks.filter(pl.col("kind").is_in([*WORK_KINDS, "OPT"]))
    placed = blocks.join(profile.ranks.select("rank", "stage"), on="rank", maintain_order="left")
    key, length = ["stage", "kind", "chunk"], pl.col("length")
    ranks = placed.group_by(*key, "rank").agg(blocks=pl.len(), sum_ns=length.sum(), mean_ns=length.mean()).sort("rank")
    explanation = ranks.group_by(key).agg(
        blocks=pl.col("blocks").sum(),
        mean_ns=pl.col("sum_ns").sum() / pl.col("blocks").sum(),
        slowest=pl.col("rank").get(pl.col("mean_ns").arg_max()),
        slowest_ns=pl.col("mean_ns").max(),
    )
    return explanation.cast(BLOCKS).sort(key)  # type: ignore[arg-type]


def _slowdown(slowdown: Slowdown | None) -> pl.DataFrame:
    """run, step, slowdown: the metric S of each step."""
    if slowdown is None:
        return pl.DataFrame(schema={"run": pl.Int32(), "step": pl.Int32(), "slowdown": pl.Float64()})
    return slowdown.steps.with_columns(pl.col("slowdown").fill_nan(None))
