"""How much bubble, where, and why: all of a run's analysis as frames, as tables to read, and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import orjson
import polars as pl

from trace_export.analysis import bubbles, stragglers
from trace_export.analysis.bubbles import CAUSES
from trace_export.analysis.theory import Theory, explain
from trace_export.analysis.whole_steps import counted, of_whole_steps
from trace_export.model import STEP_KEY, Note, Profile
from trace_export.schedules.catalogue import TITLES

DEFINITIONS = (
    "bubble: idle share of the step, from the first start to the last end over all stages (global); own: the same from"
    " each stage's own first start to its own last end, as the zero-bubble papers count"
)
WHAT_IF = (
    "in the model, without transfers; saved: time per micro-batch; in flight: the most micro-batches whose activations"
    " one stage holds at once"
)
PARTS = [f"{cause}_ns" for cause in CAUSES]
HEADINGS = {"next": "to next step", "microbatch": "per micro-batch", **CAUSES}
ODD = 2
"""A step of this many times the median length is one that compiles, warms up or was disturbed."""

SHOWN = 20
"""Rows of a table that may have thousands."""


@dataclass(frozen=True)
class ReportTable:
    """A table to be read: `frame` has few rows, with times in ms and shares in %; `note` says what they mean."""

    title: str
    frame: pl.DataFrame
    note: str = ""


@dataclass(frozen=True)
class Report:
    """A run's analysis; times in nanoseconds, shares from 0 to 1.

    `steps`: run, step, start_ns, end_ns, ranks, whole, bubble, bubble_own, next_ns (from the end to the next step's
    start). All that is a mean over steps is one over whole steps, where there are any.
    `ranks` as `bubbles.rank_bubbles` (not in the JSON document: it has a row for each rank and step).
    `stages`: run, step, stage, ranks and, as means over the ranks, busy_ns, global_ns, own_ns and a column per cause.
    `causes`: cause, idle_ns (mean per rank and step), share (of the step). `slow_stages`, `slow_ranks`, `slow_links`
    as in `stragglers`. `theory` as in `theory.explain`. `clocks` says how sure waits across hosts are.
    """

    steps: pl.DataFrame
    ranks: pl.DataFrame
    stages: pl.DataFrame
    causes: pl.DataFrame
    slow_stages: pl.DataFrame
    slow_ranks: pl.DataFrame
    slow_links: pl.DataFrame
    theory: Theory
    clocks: str
    notes: tuple[Note, ...]

    def json(self) -> str:
        """Everything, as one JSON document."""
        t = self.theory
        found = t.recognition
        plan = found.plan
        document = {
            "definitions": DEFINITIONS,
            **{name: getattr(self, name).to_dicts() for name in ("steps", "stages", "causes")},
            **{name: getattr(self, name).to_dicts() for name in ("slow_stages", "slow_ranks", "slow_links")},
            "schedule": {
                "name": plan.name if plan else None,
                "certainty": found.certainty,
                "stages": plan.stages if plan else None,
                "microbatches": plan.microbatches if plan else None,
                "chunks": plan.chunks if plan else None,
                "distance": found.distance,
                "runner_up": found.runner_up,
                "twins": found.twins,
                "deviations": t.deviations.to_dicts(),
            },
            "theory": t.levels.to_dicts(),
            "closed_form": asdict(t.closed_form) if t.closed_form else None,
            "what_if": t.changes.to_dicts(),
            "clocks": self.clocks.removeprefix("; "),
            "notes": [asdict(note) for note in self.notes],
        }
        return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()

    def tables(self) -> list[ReportTable]:
        """The report as people read it; empty tables are left out."""
        steps = "whole steps" if self.steps["whole"].any() and not self.steps["whole"].all() else "steps"
        made = [
            ReportTable("Steps", _readable(self._step_rows()), "; ".join([DEFINITIONS, *self._odd_steps()])),
            ReportTable("Stages", _readable(self._stage_rows()), f"means over the {steps} and ranks of a stage"),
            ReportTable("Idle time by cause", _readable(self.causes), f"means per rank over the {steps}{self.clocks}"),
            ReportTable(
                "Slow stages", _readable(self.slow_stages), f"slow: above {stragglers.SLOW} × the median stage"
            ),
            ReportTable(
                "Slow ranks",
                _readable(self.slow_ranks.filter("slow").drop("slow")),
                "compared with the other ranks of the stage",
            ),
            ReportTable(
                "Slow links",
                _readable(self.slow_links.filter("slow").drop("slow")),
                "compared with links between the same stages, else of the same direction",
            ),
            ReportTable("Schedule", self._schedule(), self._deviating()),
            ReportTable(
                "Deviations from the schedule", self.theory.deviations, "first deviation of each rank and step"
            ),
            ReportTable("Theory and measurement", _readable(self.theory.levels), self._formula()),
            ReportTable("What if", _readable(self.theory.changes), WHAT_IF),
        ]
        return [_short(table) for table in made if not table.frame.is_empty()]

    def _odd_steps(self) -> list[str]:
        """Steps that took far longer than the others, and so shift all means."""
        length = pl.col("end_ns") - pl.col("start_ns")
        odd = self.steps.filter(length > ODD * length.median())["step"].drop_nulls()
        if odd.is_empty():
            return []
        return [f"step {odd[0]} took more than {ODD} times as long as the median; leave it out with --steps"]

    def _step_rows(self) -> pl.DataFrame:
        parts = self.stages.group_by(STEP_KEY).agg(pl.col(PARTS).mean())
        return (
            self.steps.with_columns(step_ns=pl.col("end_ns") - pl.col("start_ns"))
            .join(parts, on=STEP_KEY, how="left", nulls_equal=True, maintain_order="left")
            .select(
                *(["run"] if self.steps["run"].n_unique() > 1 else []), "step",
                *([] if self.steps["whole"].all() else ["whole"]), "step_ns", "next_ns",
                "bubble", pl.col("bubble_own").alias("own"), *PARTS,
            )
        )  # fmt: skip

    def _stage_rows(self) -> pl.DataFrame:
        window = (pl.col("busy_ns") + pl.col("global_ns")).mean()
        own_window = (pl.col("busy_ns") + pl.col("own_ns")).mean()
        whole = counted(self.stages.join(self.steps.select(*STEP_KEY, "whole"), on=STEP_KEY, nulls_equal=True))
        return (
            whole.group_by("stage")
            .agg(
                pl.col("ranks").max(), pl.col("busy_ns").mean(), bubble=pl.col("global_ns").mean() / window,
                own=pl.col("own_ns").mean() / own_window, **{p: pl.col(p).mean() for p in PARTS},
            )
            .sort("stage")
        )  # fmt: skip

    def _schedule(self) -> pl.DataFrame:
        found = self.theory.recognition
        if found.plan is None:
            return pl.DataFrame()
        plan = found.plan
        apart = f"{found.distance:.1%} of the blocks differ" if found.distance else "the recording is truncated"
        certain = {
            "exact": "exactly",
            "likely": f"likely; {apart}",
            "unknown": f"no; the closest known schedule, {apart}",
        }
        numbers = f"{plan.stages} stages, {plan.microbatches} micro-batches, {plan.chunks} chunk(s)"
        same = ", ".join(TITLES[name] for name in found.twins)
        return pl.DataFrame(
            {
                "schedule": [TITLES[plan.name]],
                "recognised": [certain[found.certainty]],
                "numbers": [numbers],
                "indistinguishable from": [same],
            }
        )

    def _deviating(self) -> str:
        ranks = self.theory.deviations
        return f"{ranks['rank'].n_unique()} ranks deviate from it" if len(ranks) else ""

    def _formula(self) -> str:
        form = self.theory.closed_form
        if form is None:
            return "no published formula for the idle time of this schedule"
        idle = f"{form.idle_ns / 1e6:.3f} ms with the mean durations"
        return f"idle time per rank by the published formula {form.formula}: {idle}"


def report(profile: Profile) -> Report:
    """The whole analysis of a profile that has been interpreted and aligned."""
    measured = bubbles.measure(profile)
    whole = of_whole_steps(profile)
    usual = measured if whole is profile else bubbles.measure(whole)
    steps = bubbles.step_shares(measured.ranks)
    following = pl.col("start_ns").shift(-1).over("run", order_by="start_ns") - pl.col("end_ns")
    stages = (
        measured.ranks.group_by(*STEP_KEY, "stage")
        .agg(pl.len().alias("ranks"), pl.col("busy_ns", "global_ns", "own_ns", *PARTS).mean())
        .sort(*STEP_KEY, "stage")
    )
    length = (usual.ranks["step_end_ns"] - usual.ranks["step_start_ns"]).mean()
    causes = pl.DataFrame(
        [(name, usual.ranks[f"{cause}_ns"].mean()) for cause, name in CAUSES.items()],
        schema={"cause": pl.String, "idle_ns": pl.Float64},
        orient="row",
    ).with_columns(share=pl.col("idle_ns") / pl.lit(length, pl.Float64))
    return Report(
        steps=steps.with_columns(next_ns=following),
        ranks=measured.ranks,
        stages=stages,
        causes=causes.filter(pl.col("idle_ns") > 0),
        slow_stages=stragglers.slow_stages(whole),
        slow_ranks=stragglers.slow_ranks(whole),
        slow_links=stragglers.slow_links(whole, usual.waits),
        theory=explain(whole, counted(steps)),
        clocks=_clocks(profile),
        notes=profile.notes,
    )


def _clocks(profile: Profile) -> str:
    """What the clocks do to waits between hosts, as a part of a sentence."""
    if profile.ranks.join(profile.spans, on="rank", how="semi")["host"].n_unique() < 2:
        return ""
    errors = profile.clocks["sd_ns"].drop_nulls().to_numpy()
    if not len(errors):
        return "; how well the hosts' clocks agree is not known, so waits across hosts may be wrong"
    return f"; waits across hosts are known to about ±{errors.max() / 1000:.3g} µs"


def _readable(frame: pl.DataFrame) -> pl.DataFrame:
    """Nanoseconds as ms, shares as %, with the unit in the name of the column; without causes that never occur."""
    frame = frame.drop(p for p in PARTS if p in frame.columns and (frame[p] == 0).all())
    shares = [c for c in ("bubble", "own", "share", "saved") if c in frame.columns]
    times = [c for c in frame.columns if c.endswith("_ns")]
    return frame.select(
        (pl.col(c) * 100).round(2).alias(f"{c} %")
        if c in shares
        else (pl.col(c) / 1e6).round(3).alias(f"{_heading(c.removesuffix('_ns'))} ms")
        if c in times
        else pl.col(c).round(3).alias(c.replace("_", " "))
        if frame.schema[c].is_float()
        else pl.col(c)
        for c in frame.columns
    )


def _heading(stem: str) -> str:
    return HEADINGS.get(stem, stem.replace("_", " "))


def _short(table: ReportTable) -> ReportTable:
    more = len(table.frame) - SHOWN
    if more <= 0:
        return table
    note = "; ".join(n for n in (table.note, f"{more} more rows in --json") if n)
    return ReportTable(table.title, table.frame.head(SHOWN), note)
