"""The report as tables to read. `SECTIONS` lists them in their order; a further section is a further function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

from trace_export.analysis import stragglers
from trace_export.analysis.idle_causes import CAUSES
from trace_export.analysis.theory import why_unknown
from trace_export.analysis.whole_steps import counted
from trace_export.model import SEGMENT, STEP_KEY
from trace_export.schedules.catalogue import TITLES

if TYPE_CHECKING:
    from trace_export.analysis.report import Report

DEFINITIONS = (
    "step: from its first block to that of the next step; pipeline: from its first block to the end of its last"
    " forward, backward or weight block, over all stages; bubble: idle share of the pipeline time (global); own: the"
    " same from each stage's own first start to its own last end, as the zero-bubble papers count"
)
WHAT_IF = (
    "in the model, without transfers; saved: time per micro-batch; in flight: the most micro-batches whose activations"
    " one stage holds at once; W = B/2: the halves of a backward are taken as equal"
)
PARTS = [f"{cause}_ns" for cause in CAUSES]
HEADINGS = {"microbatch": "micro-batch", "median_wire": "median", **CAUSES}
ODD = 2
"""A step of this many times the median length is one that compiles, warms up or was disturbed."""

SHOWN = 12
"""Rows of a long table on a terminal, besides those that are flagged."""

SHARES = ("bubble", "own", "share", "saved", "gain")


@dataclass(frozen=True)
class Place:
    """Where a row of a table is in the chart: a stage, a step (run, step), or both."""

    stage: int | None = None
    step: tuple[int | None, int | None] | None = None


@dataclass(frozen=True)
class ReportTable:
    """A table to be read, with times in ms and shares in %; `note` says what they mean, or where `frame` is empty, why.

    `flagged`: the rows that are worth a look, by number, with their place in the chart; every output shows them.
    `details`: columns that are left out where there is little room. `heat`: the values of the least and the fullest
    colour of a heat map, whose first column names the rows.
    """

    title: str
    frame: pl.DataFrame
    note: str = ""
    flagged: Mapping[int, Place] = field(default_factory=dict)
    details: tuple[str, ...] = ()
    heat: tuple[float, float] | None = None

    def leading(self, count: int = SHOWN) -> list[int]:
        """The numbers of the first `count` rows and of those that are flagged."""
        return [row for row in range(self.frame.height) if row < count or row in self.flagged]


def tables(report: Report) -> list[ReportTable]:
    """The sections of the report that have rows, or a reason why they have none."""
    if report.steps.is_empty():
        return []
    made = [section(report) for section in SECTIONS]
    return [table for table in made if table.frame.height or table.note]


def _steps(report: Report) -> ReportTable:
    frame = report.steps.select(
        *(name for name in SEGMENT if report.steps[name].n_unique() > 1), "step",
        *([] if report.steps["whole"].all() else ["whole"]), "step_ns", "pipeline_ns",
        "bubble", pl.col("bubble_own").alias("own"),
    )  # fmt: skip
    length = report.steps["pipeline_ns"]
    odd = (length > ODD * (length.median() or 0)) | ~report.steps["whole"]  # type: ignore[operator]
    flagged = {row: Place(step=report.steps.select(STEP_KEY).row(row)) for row in odd.arg_true()}
    note = DEFINITIONS
    if (long := report.steps.filter(length > ODD * (length.median() or 0))["step"].drop_nulls()).len():  # type: ignore[operator]
        note += f"; step {long[0]} took more than {ODD} times as long as the median; leave it out with --steps"
    return ReportTable("Steps", readable(frame), note, flagged)


def _stages(report: Report) -> ReportTable:
    window = (pl.col("busy_ns") + pl.col("global_ns")).mean()
    own_window = (pl.col("busy_ns") + pl.col("own_ns")).mean()
    whole = counted(report.stages.join(report.steps.select(*STEP_KEY, "whole"), on=STEP_KEY, nulls_equal=True))
    frame = (
        whole.group_by("stage")
        .agg(
            pl.col("ranks").max(), pl.col("busy_ns").mean(), bubble=pl.col("global_ns").mean() / window,
            own=pl.col("own_ns").mean() / own_window, **{p: pl.col(p).mean() for p in PARTS},
        )
        .sort("busy_ns", "stage", descending=[True, False], nulls_last=True)
    )  # fmt: skip
    most = pl.max_horizontal(PARTS)
    waits = pl.coalesce(pl.when((pl.col(p) == most) & (most > 0)).then(pl.lit(CAUSES[p[:-3]])) for p in PARTS)
    frame = frame.with_columns(waits.alias("mostly idle for"), most.alias("of_it_ns"))
    slow = report.slow_stages.filter("slow")["stage"].implode()
    flagged = _flagged(frame, pl.col("stage").is_in(slow))
    note = f"means over the {_steps_counted(report)} and the ranks of a stage; busiest first"
    named = readable(frame)
    details = tuple(c for c in named.columns if c.removesuffix(" ms") in CAUSES.values())
    return ReportTable("Stages", named, note, flagged, details)


def _causes(report: Report) -> ReportTable:
    causes = readable(report.causes.sort("idle_ns", descending=True))
    return ReportTable("Idle time by cause", causes, f"means per rank over the {_steps_counted(report)}{report.clocks}")


def _slow_stages(report: Report) -> ReportTable:
    frame = report.slow_stages.sort("ratio", "stage", descending=[True, False], nulls_last=True)
    flagged = _flagged(frame, pl.col("slow"))
    note = f"time of a stage per micro-batch; slow: above {stragglers.SLOW} × the median stage; slowest first"
    return ReportTable("Slow stages", readable(frame), note, flagged)


def _slow_ranks(report: Report) -> ReportTable:
    frame = report.slow_ranks.filter("slow").drop("slow")
    if report.slow_ranks.is_empty():
        note = "cannot be found: no stage has two ranks here to compare"
    elif frame.is_empty():
        note = f"none: no rank takes more than {stragglers.SLOW} × as long as the other ranks of its stage"
    else:
        note = "compared with the other ranks of the stage; slowest first"
    return ReportTable("Slow ranks", readable(frame), note, _flagged(frame, pl.lit(True)))


def _slow_links(report: Report) -> ReportTable:
    frame = report.slow_links.filter("slow").drop("slow")
    if report.slow_links.is_empty():
        note = "cannot be found: no transfer between two ranks was recorded, and none could be seen from the blocks"
    elif frame.is_empty():
        note = f"none: no link takes more than {stragglers.SLOW_LINK} × as long as others like it"
    else:
        note = "compared with links between the same stages, else of the same direction; slowest first"
    stage_of = dict(report.ranks.select("rank", "stage").unique().iter_rows())
    flagged = {row: Place(stage_of.get(rank)) for row, rank in enumerate(frame["dst_rank"])}
    named = frame.rename({"src_rank": "from", "dst_rank": "to"})
    return ReportTable("Slow links", readable(named), note, flagged)


def _schedule(report: Report) -> ReportTable:
    found = report.theory.recognition
    if found.plan is None:
        why = why_unknown(found, report.stages["stage"].n_unique())
        return ReportTable("Schedule", pl.DataFrame(), f"{why}, so theory and what-if cannot be given")
    plan = found.plan
    whole = "others have the same order here" if found.twins else "not all of it was recorded"
    apart = f"{found.distance:.1%} of the blocks differ" if found.distance else whole
    certain = {
        "exact": "exactly",
        "likely": f"likely; {apart}",
        "unknown": f"not recognised; this is the closest, {apart}",
    }
    frame = pl.DataFrame(
        {
            "schedule": [TITLES[plan.name]], "recognised": [certain[found.certainty]], "stages": [plan.stages],
            "micro-batches": [plan.microbatches], "chunks": [plan.chunks],
        }
    )  # fmt: skip
    same = ", ".join(TITLES[name] for name in found.twins)
    ranks = report.theory.deviations
    notes = [
        f"indistinguishable here from {same}" if same else "",
        f"{ranks['rank'].n_unique()} ranks deviate from it" if len(ranks) else "",
    ]
    return ReportTable("Schedule", frame, "; ".join(filter(None, notes)))


def _deviations(report: Report) -> ReportTable:
    found = report.theory.deviations
    if found.is_empty():
        return ReportTable("Deviations from the schedule", found)
    return ReportTable("Deviations from the schedule", found, "first deviation of each rank and step")


def _theory(report: Report) -> ReportTable:
    if report.theory.levels.is_empty():
        return ReportTable("Theory and measurement", report.theory.levels, _no_theory(report))
    form = report.theory.closed_form
    note = "no published formula for the idle time of this schedule"
    if form is not None:
        idle = f"{form.idle_ns / 1e6:.3f} ms with the mean durations"
        note = f"idle time per rank by the published formula {form.formula}: {idle}"
    return ReportTable("Theory and measurement", readable(report.theory.levels), note)


def _what_if(report: Report) -> ReportTable:
    changes = report.theory.changes
    if changes.is_empty():
        return ReportTable("What if", changes, _no_theory(report))
    now, others = changes.head(1), changes.slice(1).sort("saved", descending=True, maintain_order=True)
    return ReportTable("What if", readable(pl.concat([now, others])), f"{WHAT_IF}; largest saving first")


def _no_theory(report: Report) -> str:
    found = report.theory.recognition
    if found.named is None:
        return f"cannot be given: {why_unknown(found, report.stages['stage'].n_unique())}"
    return "cannot be given: the steps differ in their number of micro-batches, or none is complete"


SECTIONS: tuple[Callable[[Report], ReportTable], ...] = (
    _steps, _stages, _causes, _slow_stages, _slow_ranks, _slow_links, _schedule, _deviations, _theory, _what_if,
)  # fmt: skip


def _steps_counted(report: Report) -> str:
    return "whole steps" if report.steps["whole"].any() and not report.steps["whole"].all() else "steps"


def _flagged(frame: pl.DataFrame, which: pl.Expr) -> dict[int, Place]:
    """The rows of a frame with the column `stage` for which `which` is true."""
    rows = frame.with_row_index("row").filter(which)
    return {row: Place(stage) for row, stage in rows.select("row", "stage").iter_rows()}


def readable(frame: pl.DataFrame) -> pl.DataFrame:
    """Nanoseconds as ms, shares as %, with the unit in the name of the column; without causes that never occur."""
    frame = frame.drop(p for p in PARTS if p in frame.columns and (frame[p] == 0).all())
    return frame.select(
        (pl.col(c) * 100).round(2).alias(f"{c} %")
        if c in SHARES
        else (pl.col(c) / 1e6).round(3).alias(f"{_heading(c.removesuffix('_ns'))} ms")
        if c.endswith("_ns")
        else pl.col(c).round(3).alias(c.replace("_", " "))
        if frame.schema[c].is_float()
        else pl.col(c).alias(c.replace("_", " "))
        for c in frame.columns
    )


def _heading(stem: str) -> str:
    return HEADINGS.get(stem, stem.replace("_", " "))
