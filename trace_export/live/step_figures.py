"""What is said of one step of a job that runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import orjson
import polars as pl
from msgspec import Meta

from trace_export.analysis import cause_words
from trace_export.analysis.slowdown import slowdown as slowdown_of
from trace_export.analysis.summary import host_share
from trace_export.documents import VERSION, MeanNs, Ns, Ratio, Share, Time, Version
from trace_export.files import GENERATOR
from trace_export.live.window import Step

OF_CAUSE = ("gain_ns", "gain", "band", "ratio", "late_ns")
"""The figures of a cause that its sentence has."""


@dataclass(frozen=True)
class StepFigures:
    """The figures of one step that all ranks have finished; times in nanoseconds.

    `start_ns`: of its first block, on the common clock; `since_previous_ns`: from the start of the step before, as a
    training log counts (None where that was not read); `pipeline_ns` from start_ns to the end of its last forward,
    backward or weight block; `bubble` and `bubble_own`: the idle share of that, by both definitions of
    `analysis.bubbles`. `host_times`: blocks have the times at which the host issued them. `slowest_stage` is the one
    that is busy for longest (mean of its ranks), `slowest_rank` the rank that is. `slowdown`: the metric S of the step,
    None where it was not asked for or cannot be said. `cause`: the sentence of `report` on what costs the last steps
    most, and its figures: `cause_gain_ns` and `cause_gain`, what a step would take less without it and as a share of
    the step, `cause_band`, `cause_ratio` and `cause_late_ns`, as in `explanation.CAUSES`; `worst_link`: the slow link
    (source rank, target rank) that costs them most, and `worst_link_ratio` its transfer time by that of its peers; each
    None where there is none. `clock_error_ns`: the largest standard deviation of a host's clock (None: one host, or
    unknown). `blocks` counts them; `lag_s`: from the last change on the disk to the reading of it.
    """

    step: int | None
    start_ns: Time
    since_previous_ns: Ns | None
    pipeline_ns: Ns
    bubble: Share | None
    bubble_own: Share | None
    host_times: bool
    slowest_stage: int | None
    slowest_rank: int
    slowdown: Ratio | None
    cause: str | None
    cause_gain_ns: MeanNs | None
    cause_gain: Share | None
    cause_band: Share | None
    cause_ratio: Ratio | None
    cause_late_ns: MeanNs | None
    worst_link: tuple[int, int] | None
    worst_link_ratio: Ratio | None
    clock_error_ns: MeanNs | None
    blocks: int
    lag_s: Annotated[float, Meta(description="seconds")]

    def json(self) -> bytes:
        """One line of JSON, a `StepDocument`, with the mark of this program."""
        return orjson.dumps({"generator": GENERATOR, **asdict(self), "document": "step", "version": VERSION})


@dataclass(frozen=True)
class StepDocument(StepFigures):
    """A line of `trace-export watch --jsonl`: the figures of one step that all ranks have finished. docs/watch.md says
    what each of them is."""

    generator: Literal["trace-export"]
    document: Literal["step"]
    version: Version


def step_figures(
    step: Step, previous_ns: int | None, causes: pl.DataFrame, lag_s: float, *, slowdown: bool
) -> StepFigures:
    """The figures of a step: `previous_ns`, the start of the one before; `causes` of the last steps, as in
    `explanation.CAUSES`; with the metric S where it is asked for, which takes longer than all the others."""
    said = causes.filter("sentence").head(1).to_dicts()
    links = causes.filter(pl.col("code") == "slow-link").drop_nulls("src_rank").head(1).to_dicts()
    row = step.bubbles.steps.row(0, named=True)
    ranks = step.bubbles.windows.sort("busy_ns", "rank", descending=[True, False])
    stages = ranks.group_by("stage").agg(pl.col("busy_ns").mean()).sort("busy_ns", "stage", descending=[True, False])
    error = step.profile.clocks["sd_ns"].max()
    return StepFigures(
        step=step.number,
        start_ns=row["start_ns"],
        since_previous_ns=None if previous_ns is None else row["start_ns"] - previous_ns,
        pipeline_ns=row["pipeline_ns"],
        bubble=row["bubble"],
        bubble_own=row["bubble_own"],
        host_times=host_share(step.profile) > 0,
        slowest_stage=stages["stage"][0],
        slowest_rank=ranks["rank"][0],
        slowdown=_slowdown(step) if slowdown else None,
        cause=cause_words.sentence(said[0]) if said else None,
        **{f"cause_{name}": said[0][name] if said else None for name in OF_CAUSE},
        worst_link=(links[0]["src_rank"], links[0]["dst_rank"]) if links else None,
        worst_link_ratio=links[0]["ratio"] if links else None,
        clock_error_ns=float(error) if isinstance(error, float) else None,
        blocks=step.profile.spans.height,
        lag_s=lag_s,
    )


def _slowdown(step: Step) -> float | None:
    """The metric S of a step, where it can be said."""
    slowdown = slowdown_of(step.bubbles.graph)
    return None if slowdown is None else slowdown.total
