"""The report as tables to read: all of them, which `SECTIONS` lists in their order, or the three of one screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import polars as pl

from trace_export.analysis import cause_words
from trace_export.analysis.causes import WORTH
from trace_export.analysis.counted_steps import WARM_UP, counted, far_longer
from trace_export.analysis.explanation import SAID
from trace_export.analysis.theory import HALVES, why_unknown
from trace_export.analysis.verdict import LEVELS
from trace_export.answer import Place, ReportTable
from trace_export.model import SEGMENT, STEP_KEY
from trace_export.schedules.catalogue import TITLES
from trace_export.steps.idle import CAUSES

if TYPE_CHECKING:
    from trace_export.analysis.report import Report

DEFINITIONS = (
    "step: from its first block to that of the next step; pipeline: from the first block of a replica to the end of"
    " its last forward, backward or weight block, over its stages; bubble: idle share of the pipeline time (global);"
    " own: the same from each rank's first start to its last end, as the zero-bubble papers count"
)
WHAT_IF = (
    "in the model with the measured transfers and ordinary delays; in flight: the most micro-batches whose activations"
    " one stage holds at once; *: the halves of a backward are taken as equal (W = B/2); band: in 9 of 10 cases the"
    " saving is within this many points"
)
PARTS = [f"{cause}_ns" for cause in CAUSES]
HEADINGS = {"microbatch": "micro-batch", "median_wire": "median", **CAUSES}

SHARES = ("bubble", "own", "share", "saved", "gain", "band", "±")


def tables(report: Report) -> list[ReportTable]:
    """The sections of the report that have rows, or a reason why they have none."""
    if report.steps.is_empty():
        return []
    made = [section(report) for section in SECTIONS]
    return [table for table in made if table.frame.height or table.note]


def brief_tables(report: Report) -> list[ReportTable]:
    """The tables that fit on one screen with the answer: a few steps, the stages that matter, the causes that cost
    most."""
    if report.steps.is_empty():
        return []
    made = [_few_steps(report), _few_stages(report), _few_causes(report)]
    return [table for table in made if table.frame.height]


STEPS_BRIEF, STAGES_BRIEF, CAUSES_BRIEF = 5, 8, 8
"""Rows of the tables of one screen."""
PLACE_SAID = 32
"""Characters of a place in a table of one screen; the sentences have all of it."""


def few(steps: pl.DataFrame, explained: int, called: str) -> dict[int, list[str]]:
    """The rows of some of the steps (`Report.steps`), and why they are shown: the first, the last, the slowest and the
    fastest that are whole, and the row `explained`, for which `called` says why; and which of these are a warm-up."""
    length = pl.coalesce("step_ns", "pipeline_ns") if steps["step_ns"].null_count() == len(steps) else pl.col("step_ns")
    which = pl.col("whole") | ~pl.col("whole").any()
    sized = steps.with_row_index("row").filter(which).select("row", length=length).drop_nulls().sort("length")["row"]
    why: dict[int, list[str]] = {0: ["first"]}
    for words, row in (
        ("slowest", sized[-1] if len(sized) > 1 else None), ("fastest", sized[0] if len(sized) > 1 else None),
        ("last", len(steps) - 1 if len(steps) > 1 else None), (called, explained),
    ):  # fmt: skip
        if row is not None:
            why.setdefault(row, []).append(words)
    for row in why.keys() & set(steps.select(WARM_UP.arg_true()).to_series()):
        why[row].append("warm-up")
    return dict(sorted(why.items()))


def _few_steps(report: Report) -> ReportTable:
    steps = report.steps
    seen = report.causes.filter("sentence")["step"].is_not_null().any()
    why = few(steps, report.explained, "shows the cause best" if seen else "typical")
    several = [name for name in SEGMENT if steps[name].n_unique() > 1]
    several += [] if steps["whole"].all() else ["whole"]
    frame = steps[list(why)].select(*several, "step", "step_ns", "pipeline_ns", "bubble")
    frame = readable(frame).with_columns(pl.Series("which", [", ".join(words) for words in why.values()]))
    row = list(why).index(report.explained)
    flagged = {row: Place(step=steps.select(STEP_KEY).row(report.explained))}
    return ReportTable("Steps", frame, flagged=flagged, left_out=len(steps) - len(why))


def _few_stages(report: Report) -> ReportTable:
    means = report.stage_means
    named = set(_stages_of(report.causes))
    order = sorted(range(len(means)), key=lambda row: (means["stage"][row] not in named, row))
    rows = sorted(order[:STAGES_BRIEF])
    frame = means[rows].select("stage", "ranks", "busy_ns", "bubble", "mostly", "mostly_ns")
    flagged = _flagged(frame, pl.col("stage").is_in(list(named)))
    return ReportTable("Stages", _said(frame), flagged=flagged, left_out=len(means) - len(rows))


def _few_causes(report: Report) -> ReportTable:
    causes = report.causes.with_row_index("row").filter(pl.coalesce(pl.col("gain") >= SAID, "sentence"))
    shown = causes.head(CAUSES_BRIEF)
    rows = list(shown.iter_rows(named=True))
    frame = shown.select(
        *cause_and_place(rows),
        pl.col("gain").alias("share"), "gain_ns", pl.col("band").alias("±"),
    )  # fmt: skip
    return ReportTable("Causes", readable(frame), left_out=len(report.causes) - len(shown))


def cause_and_place(causes: Sequence[cause_words.Row]) -> tuple[pl.Series, pl.Series]:
    """The name and place of each cause, short enough for one screen."""
    cut = [
        place if len(place) <= PLACE_SAID else place[: PLACE_SAID - 1].rstrip(" ,") + "…"
        for place in map(cause_words.where, causes)
    ]
    return pl.Series("cause", list(map(cause_words.name, causes)), pl.String), pl.Series("place", cut, pl.String)


def _steps(report: Report) -> ReportTable:
    marks = [] if report.steps["whole"].all() else ["whole"]
    marks += [] if report.steps["counts"].equals(report.steps["whole"]) else ["counts"]
    frame = report.steps.select(
        *(name for name in SEGMENT if report.steps[name].n_unique() > 1), "step",
        *marks, "step_ns", "pipeline_ns", "bubble", pl.col("bubble_own").alias("own"),
    )  # fmt: skip
    odd = far_longer(report.steps["pipeline_ns"]) | ~report.steps["whole"]
    flagged = {row: Place(step=report.steps.select(STEP_KEY).row(row)) for row in odd.arg_true()}
    return ReportTable("Steps", readable(frame), DEFINITIONS, flagged)


def _stages(report: Report) -> ReportTable:
    frame = report.stage_means
    flagged = _flagged(frame, pl.col("stage").is_in(_stages_of(report.causes)))
    note = f"means over the {_steps_counted(report)} and the ranks of a stage; busiest first"
    named = _said(frame.rename({"bubble_own": "own"}))
    details = tuple(c for c in named.columns if c.removesuffix(" ms") in CAUSES.values())
    return ReportTable("Stages", named, note, flagged, details)


def stage_means(report: Report) -> pl.DataFrame:
    """See `Report.stage_means`."""
    window = (pl.col("busy_ns") + pl.col("global_ns")).mean()
    own_window = (pl.col("busy_ns") + pl.col("own_ns")).mean()
    stages = counted(report.stages.join(report.steps.select(*STEP_KEY, "counts"), on=STEP_KEY, nulls_equal=True))
    frame = (
        stages.group_by("stage")
        .agg(
            pl.col("ranks").max(), pl.col("busy_ns").mean(), bubble=pl.col("global_ns").mean() / window,
            bubble_own=pl.col("own_ns").mean() / own_window, **{p: pl.col(p).mean() for p in PARTS},
        )
        .sort("busy_ns", "stage", descending=[True, False], nulls_last=True)
    )  # fmt: skip
    most = pl.max_horizontal(PARTS)
    waits = pl.coalesce(pl.when((pl.col(p) == most) & (most > 0)).then(pl.lit(CAUSES[p[:-3]])) for p in PARTS)
    return frame.with_columns(mostly=waits, mostly_ns=most)


def _said(stages: pl.DataFrame) -> pl.DataFrame:
    """`stage_means` as a table to read."""
    return readable(stages.rename({"mostly": "mostly idle for", "mostly_ns": "that_ns"}))


def path_means(report: Report) -> pl.DataFrame:
    """See `Report.path_means`."""
    parts = report.path
    steps, total = max(parts.select(STEP_KEY).n_unique(), 1), max(int(parts["ns"].sum()), 1)
    key = ["part", "kind", "stage", "from_stage"]
    sums = parts.group_by(key).agg(pl.col("ns").sum()).sort("ns", *key, descending=[True, *[False] * 4])
    return sums.select(*key, step_ns=pl.col("ns") / steps, share=pl.col("ns") / total)


def _causes(report: Report) -> ReportTable:
    """Each cause with its gain."""
    causes, trust = report.causes, report.explanation.trust
    if causes.is_empty():
        text = f"Nothing that is slow or late costs {WORTH:.1%} of a step."
        if not trust.gains or report.explanation.incomplete:
            text = "cannot be given: what slow or late parts cost is not known"
        return ReportTable("Causes", pl.DataFrame(), text)
    frame = causes.select(
        pl.Series("cause", [cause_words.title(row) for row in causes.iter_rows(named=True)]),
        "ratio", "late_ns", "gain_ns", "gain", "band", "even_ns",
    )  # fmt: skip
    note = (
        "gain: how much shorter a step is without the cause, in a replay of the measured steps, within the band;"
        " gains do not add up; even: the same with the surplus of a slow stage spread over all stages"
    )
    if trust.doubts:
        note += f"; gains are {'rough' if trust.gains else 'not given'}: {', and '.join(trust.doubts)}"
    empty = [name for name in ("ratio", "late_ns", "even_ns") if frame[name].null_count() == len(frame)]
    flagged = {row: Place(stage) for row, (stage, said) in enumerate(causes.select("stage", "sentence").rows()) if said}
    return ReportTable("Causes", readable(frame.drop(empty)), note, flagged, ("ratio", "late start ms", "band %"))


def _stages_of(causes: pl.DataFrame) -> list[int]:
    """The stages that a cause names."""
    return causes.filter("sentence")["stage"].drop_nulls().unique().to_list()


def _levels(report: Report) -> ReportTable:
    levels = report.explanation.levels
    if levels.is_empty():
        return ReportTable("What a step is made of", pl.DataFrame(), f"cannot be said: {_why_no_levels(report)}")
    frame = levels.select(
        level=pl.col("level").replace_strict(LEVELS), adds_ns="adds_ns", step_ns="step_ns", share="share"
    )
    note = (
        "replays of the measured steps, each with one thing more as measured: first all blocks of a kind alike, without"
        " transfers and delays; the last is the measured step. Parts may be negative, and depend on their order"
    )
    whole = pl.col("step_ns").last()
    bars = levels.select(
        (pl.col("step_ns") - pl.col("adds_ns")) / whole, pl.col("step_ns").alias("until") / whole
    ).rows()
    return ReportTable("What a step is made of", readable(frame), note, bars=bars)


def _why_no_levels(report: Report) -> str:
    if report.explanation.trust.lacking:
        return "some ranks lack blocks that others have"
    return "the ranks wait for what was not read" if report.explanation.incomplete else "no step is whole"


def _path(report: Report) -> ReportTable:
    frame = report.path_means
    if frame.is_empty():
        return ReportTable("Critical path", frame)
    note = (
        "the chain of operations that makes a step as long as it is, from its first block to that of the next; means of"
        " a step. delay: an operation starts although nothing is missing; pause: the same before the first block"
    )
    return ReportTable("Critical path", readable(frame), note)


def _links(report: Report) -> ReportTable:
    if report.links.is_empty():
        return ReportTable("Transfers", report.links)
    frame = report.links.drop("src_stage", "dst_stage").rename({"src_rank": "from", "dst_rank": "to"})
    slow = {tuple(row) for row in report.causes.select("src_rank", "dst_rank").drop_nulls().rows()}
    ends = report.links.select("src_rank", "dst_rank").rows()
    flagged = {row: Place() for row, (src, dst) in enumerate(ends) if {(src, dst), (dst, src)} & slow}
    note = (
        "means of a transfer: in sender late only the receiver was there, in receiver late only the sender, in wire"
        " both"
    )
    return ReportTable("Transfers", readable(frame), note, flagged, ("transfers",))


def _idle(report: Report) -> ReportTable:
    idle = readable(report.idle.sort("idle_ns", descending=True))
    return ReportTable("Idle time by cause", idle, f"means per rank over the {_steps_counted(report)}{report.clocks}")


def _schedule(report: Report) -> ReportTable:
    recognition = report.theory.recognition
    if recognition.plan is None:
        why = why_unknown(recognition, report.stages["stage"].n_unique())
        return ReportTable("Schedule", pl.DataFrame(), f"{why}, so what-if cannot be given")
    plan = recognition.plan
    whole = "others have the same order here" if recognition.twins else "not all of it was recorded"
    apart = f"{recognition.distance:.1%} of the blocks differ" if recognition.distance else whole
    certain = {"exact": "exactly", "likely": "likely", "unknown": "no, the closest"}
    frame = pl.DataFrame(
        {
            "schedule": [TITLES[plan.name]], "recognised": [certain[recognition.certainty]], "stages": [plan.stages],
            "micro-batches": [plan.microbatches], "chunks": [plan.chunks],
        }
    )  # fmt: skip
    same = ", ".join(TITLES[name] for name in recognition.twins)
    ranks = report.theory.deviations
    form = report.theory.closed_form
    notes = [
        "" if recognition.certainty == "exact" else apart,
        f"indistinguishable here from {same}" if same else "",
        f"published idle time of a rank: {form.formula}, {form.idle_ns / 1e6:.3f} ms with the mean durations"
        if form
        else "",
        f"{ranks['rank'].n_unique()} ranks deviate from it" if len(ranks) else "",
    ]
    return ReportTable("Schedule", frame, "; ".join(filter(None, notes)))


def _deviations(report: Report) -> ReportTable:
    deviations = report.theory.deviations
    if deviations.is_empty():
        return ReportTable("Deviations from the schedule", deviations)
    return ReportTable("Deviations from the schedule", deviations, "first deviation of each rank and step")


def _what_if(report: Report) -> ReportTable:
    changes = report.theory.changes
    if changes.is_empty():
        return ReportTable("What if", changes, _no_theory(report))
    now, others = changes.head(1), changes.slice(1).sort("saved", descending=True, maintain_order=True)
    frame = pl.concat([now, others]).with_columns(pl.col("change").str.replace(HALVES, " *", literal=True))
    return ReportTable("What if", readable(frame), f"{WHAT_IF}; largest saving first")


def _no_theory(report: Report) -> str:
    recognition = report.theory.recognition
    if recognition.named is None:
        return f"cannot be given: {why_unknown(recognition, report.stages['stage'].n_unique())}"
    return (
        "cannot be given: blocks of a stage are missing, the steps differ in their micro-batches, or none is complete"
    )


SECTIONS: tuple[Callable[[Report], ReportTable], ...] = (
    _steps, _causes, _levels, _stages, _idle, _path, _links, _schedule, _deviations, _what_if,
)  # fmt: skip


def _steps_counted(report: Report) -> str:
    """Over which steps means are."""
    every, whole = report.steps["counts"], report.steps["whole"]
    if not every.any() or every.all():
        return "steps"
    return "whole steps" if whole.equals(every, null_equal=True) else "steps that count"


def _flagged(frame: pl.DataFrame, which: pl.Expr) -> dict[int, Place]:
    """The rows of a frame with the column `stage` for which `which` is true."""
    rows = frame.with_row_index("row").filter(which)
    return {row: Place(stage) for row, stage in rows.select("row", "stage").iter_rows()}


def readable(frame: pl.DataFrame) -> pl.DataFrame:
    """Nanoseconds as ms, shares as %, with the unit in the name of the column; without causes that never occur."""
    frame = frame.drop(p for p in PARTS if p in frame.columns and (frame[p] == 0).all())
    return frame.select(
        (pl.col(c) * 100).alias(f"{c} %")
        if c in SHARES
        else (pl.col(c) / 1e6).alias(f"{_heading(c.removesuffix('_ns'))} ms")
        if c.endswith("_ns")
        else pl.col(c).alias(c.replace("_", " "))
        for c in frame.columns
    )


def _heading(stem: str) -> str:
    return HEADINGS.get(stem, stem.replace("_", " "))
