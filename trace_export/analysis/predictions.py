"""Whether a later run does what the report of a run predicted for another schedule, or without a cause."""

from __future__ import annotations

import polars as pl

from trace_export.analysis import cause_words
from trace_export.analysis.explanation import SAID
from trace_export.analysis.run_figures import PREDICTIONS, RunFigures
from trace_export.analysis.theory import HALVES
from trace_export.analysis.verdict import LEVELS
from trace_export.answer import Sentence
from trace_export.units import duration, times

ALIKE = ("stages", "ranks", "micro-batches", "times")
"""Two runs must share these if one predicts the other."""
GREW = 1.05
"""A stage that works this many times as long has grown."""


def of_changes(changes: pl.DataFrame) -> pl.DataFrame:
    """The predictions in the rows of `theory.CHANGES`; the first is the run as it is."""
    return changes.slice(1).select(*PREDICTIONS)


def came_true(
    a: RunFigures, b: RunFigures, names: tuple[str, str], causes: pl.DataFrame, levels: pl.DataFrame
) -> Sentence | None:
    """Whether B is as A's report predicted: where B has another schedule that A's what-if list has, or lacks a cause
    that A names, and of others only the parts of that. `causes`, `levels`: as those of `Comparison`. None where A
    predicted nothing."""
    if any(a.traits[trait] != b.traits[trait] for trait in ALIKE):
        return None
    if any(a.traits[trait] != b.traits[trait] for trait in ("schedule", "chunks")):
        chunks = b.traits["chunks"]
        change = f"{b.traits['schedule']}{f', {chunks} chunks' if chunks != 1 else ''}"
        predicted = a.predictions.filter(pl.col("change").str.replace(HALVES, "", literal=True) == change)
        if predicted.is_empty():
            return None
        _, saved, band = predicted.row(0)
        return _held(a, b, names, f"with {change}", (saved, band, "pipeline time"), levels, [])
    gone = causes.filter(pl.col("a_gain") >= SAID, ~pl.col("in_b")).sort("a_gain", descending=True)
    if gone.is_empty():
        return None
    row = gone.row(0, named=True)
    ranks = set(row["ranks"])
    some_left = any(there and ranks.issuperset(there) for there in causes.filter("in_b")["ranks"].to_list())
    others = any(not there or not ranks.issuperset(there) for there in gone["ranks"][1:].to_list())
    if some_left or others:
        return None
    what = f"without the {cause_words.name(row)} ({cause_words.where(row)})"
    stages = [row["stage"]] if row["stage"] is not None else []
    return _held(a, b, names, what, (row["a_gain"], row["a_band"] * row["a_gain"], "step time"), levels, stages)


def _held(
    a: RunFigures, b: RunFigures, names: tuple[str, str], what: str, said: tuple[float, float, str],
    levels: pl.DataFrame, stages: list[int],
) -> Sentence | None:  # fmt: skip
    """The prediction of a share that is saved of a time, ± a band, beside what was measured. The prediction is about
    the work of `stages`."""
    saved, band, of = said
    before, after = (dict(run.whole.rows()).get(of) for run in (a, b))
    if not before or after is None:
        return None
    measured = after / before - 1
    within = abs(measured + saved) <= band
    facts = {
        "change": what, "predicted": -saved, "band": band, "measured": measured, "within": within, "of": of,
    }  # fmt: skip
    text = f"{names[0]} predicted {-saved:+.1%} of the {of} {what}, ± {100 * band:.1f} points; measured {measured:+.1%}"
    stage, ratio = _grown(a, b, stages)
    if stage is not None:
        facts |= {"stage": stage, "ratio": ratio}
        text += f": stage {stage} grew to {times(ratio)} its work"
    elif not within:
        text += f": {_level(levels, measured + saved > 0)}"
    return Sentence("prediction", facts, f"{text}{', as predicted' if within and stage is None else ''}.")


def _grown(a: RunFigures, b: RunFigures, stages: list[int]) -> tuple[int | None, float]:
    """The stage whose work has grown most, and to how many times its length; None where none has."""
    sides = [run.stages.group_by("stage").agg(pl.col("busy_ns").mean()) for run in (a, b)]
    both = sides[0].join(sides[1], on="stage", suffix="_b")
    both = both.filter(~pl.col("stage").is_in(stages), pl.col("busy_ns") > 0)
    grown = both.select("stage", ratio=pl.col("busy_ns_b") / pl.col("busy_ns")).filter(pl.col("ratio") >= GREW)
    most = grown.sort("ratio", descending=True).head(1).rows()
    return most[0] if most else (None, 1.0)


def _level(levels: pl.DataFrame, longer: bool) -> str:
    """The level of a step that differs most in the direction in which the prediction was wrong."""
    others = levels.filter(~pl.col("level").is_in(["work", "schedule"])).sort("difference", descending=longer)
    if others.is_empty() or (others["difference"][0] > 0) != longer:
        return "off by more than the band"
    level, more = others.select("level", "difference").row(0)
    return f"{duration(abs(more))} {'more' if longer else 'less'} of a step from {LEVELS[level]}"
