"""What is said of one step of a job that runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import orjson
import polars as pl

from trace_export.analysis.stragglers import slow_links
from trace_export.analysis.what_if import what_if
from trace_export.files import GENERATOR
from trace_export.model import STEP_KEY, Profile
from trace_export.pipeline.step_operations import step_operations
from trace_export.selection import Numbers, Selection, select
from trace_export.workflow.run import Run


@dataclass(frozen=True)
class StepFigures:
    """The figures of one step that all ranks have finished; times in nanoseconds.

    `start_ns`: of its first block, on the common clock; `since_previous_ns`: from the start of the step before, as a
    training log counts (None where that was not read); `pipeline_ns` from start_ns to the end of its last forward,
    backward or weight block; `bubble` and `bubble_own`: the idle share of that, by both definitions of
    `analysis.bubbles`. `slowest_stage` is the one that is busy for longest (mean of its ranks), `slowest_rank` the rank
    that is. `slowdown`: the metric S of the step, None where it was not asked for or cannot be said. `worst_link`: the
    link (source rank, target rank) with the largest ratio of its transfer time to that of its peers, in the steps that
    were kept, and `worst_link_ratio`. `clock_error_ns`: the largest standard deviation of a host's clock (None: one
    host, or unknown). `blocks` counts them; `lag_s`: from the last change on the disk to the reading of it.
    """

    step: int | None
    start_ns: int
    since_previous_ns: int | None
    pipeline_ns: int
    bubble: float | None
    bubble_own: float | None
    slowest_stage: int | None
    slowest_rank: int
    slowdown: float | None
    worst_link: tuple[int, int] | None
    worst_link_ratio: float | None
    clock_error_ns: float | None
    blocks: int
    lag_s: float

    def json(self) -> bytes:
        """One line of JSON, with the mark of this program."""
        return orjson.dumps({"generator": GENERATOR} | asdict(self))


def step_figures(run: Run, after_ns: int, lag_s: float, *, slowdown: bool) -> list[StepFigures]:
    """The figures of the whole steps of an aligned run that start after `after_ns`, in their order; with the metric S
    where it is asked for, which takes longer than all the others."""
    steps = run._bubbles.steps.sort("start_ns").with_columns(since=pl.col("start_ns").diff())
    new = steps.filter(pl.col("whole") & (pl.col("start_ns") > after_ns))
    if new.is_empty():
        return []
    busy = run._bubbles.ranks.sort("busy_ns", "rank", descending=[True, False]).group_by(STEP_KEY, maintain_order=True)
    stages = (
        run._bubbles.ranks.group_by(*STEP_KEY, "stage").agg(pl.col("busy_ns").mean()).sort("busy_ns", descending=True)
    ).group_by(STEP_KEY, maintain_order=True)  # fmt: skip
    counted = run.profile.spans.group_by(STEP_KEY).len()
    rows = new
    for table in (busy.agg(rank=pl.col("rank").first()), stages.agg(stage=pl.col("stage").first()), counted):
        rows = rows.join(table, on=STEP_KEY, how="left", nulls_equal=True, maintain_order="left")
    link = _worst_link(run)
    by_step = _slowdown(run.profile, Numbers.of(new["step"].drop_nulls())) if slowdown else {}
    error = run.clocks["sd_ns"].max()
    return [
        StepFigures(
            step=row["step"],
            start_ns=row["start_ns"],
            since_previous_ns=row["since"],
            pipeline_ns=row["pipeline_ns"],
            bubble=row["bubble"],
            bubble_own=row["bubble_own"],
            slowest_stage=row["stage"],
            slowest_rank=row["rank"],
            slowdown=by_step.get((row["run"], row["step"])),
            worst_link=link and link[0],
            worst_link_ratio=link and link[1],
            clock_error_ns=float(error) if isinstance(error, float) else None,
            blocks=row["len"],
            lag_s=lag_s,
        )
        for row in rows.iter_rows(named=True)
    ]


def _slowdown(profile: Profile, steps: Numbers) -> dict[tuple[int | None, int | None], float]:
    """(run, step) → the metric S, where it can be said, of some steps."""
    usual = step_operations(select(profile, Selection(steps=steps))).usual
    if usual is None:
        return {}
    found = what_if(usual)
    return {key: s for key, s in zip(found.steps, found.by_step.tolist(), strict=True) if s == s}  # not NaN


def _worst_link(run: Run) -> tuple[tuple[int, int], float] | None:
    links = slow_links(run.profile, run._bubbles.waits).drop_nulls("ratio")
    if links.is_empty():
        return None
    source, target, ratio = links.select("src_rank", "dst_rank", "ratio").row(0)
    return (source, target), ratio
