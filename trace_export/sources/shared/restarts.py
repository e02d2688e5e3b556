"""Starts of a job that one source holds without saying so: the same process counts its steps anew."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from trace_export.model import INT, TIME, Profile
from trace_export.ordering import packed
from trace_export.schedules.passes import FORWARDS

AGAIN_NS = 60 * 10**9
"""A job takes longer to be started again; within a step there is no such gap."""
MOST_RUNS = 1000
"""A table in which passes are there more often has no runs, but numbers that say something else."""


def with_runs(profile: Profile) -> Profile:
    """`profile` of one source with the run of each block, where its process was started again with the same number:
    because its steps go back, or are more than were announced for one start."""
    spans, announced = profile.spans, profile.declared.steps
    step = spans["step"]  # of the usual source of one rank it is seen at once that nothing is to be done
    if step.is_sorted() if announced is None else int(step.max() or 0) < announced[1]:  # type: ignore[arg-type]
        return profile
    if spans["run"].n_unique() > 1:
        return profile
    if announced is not None:
        return replace(profile, spans=_at_pauses(spans, *announced))
    starts = _where_steps_go_back(spans)
    if starts.is_empty():
        return profile
    run = starts.search_sorted(spans["start_ns"], side="right").cast(INT)
    return replace(profile, spans=spans.with_columns(run.alias("run")))


def _where_steps_go_back(spans: pl.DataFrame) -> pl.Series:
    """When a rank runs a forward of an earlier step than its last one, and that step not for the first time, while no
    other block of the source runs. A step that is new was only moved, by a clock that was set back."""
    back = pl.col("step") < pl.col("step").shift().over("rank")
    if not spans.filter(FORWARDS).select(back.any()).item():  # nearly always; they are in order
        return pl.Series("start_ns", [], TIME)
    in_order = spans.drop_nulls("step").sort("start_ns", "end_ns")
    free = pl.col("start_ns") >= pl.col("end_ns").cum_max().shift()
    starts = in_order.with_columns(free=free).filter(FORWARDS).filter("free", back)
    before = in_order.filter(FORWARDS).group_by("rank", "step").agg(first_ns=pl.col("start_ns").min())
    seen = starts.join(before, on=["rank", "step"], maintain_order="left")
    return seen.filter(pl.col("first_ns") < pl.col("start_ns"))["start_ns"]


def _at_pauses(spans: pl.DataFrame, first: int, end: int) -> pl.DataFrame:
    """`spans`, whose steps were counted on from `first`, with a run for at most `end` - `first` of them each, cut at
    the longest pauses. Each counts from `first`.

    Example: steps 1 and 2 are announced, and the log has three, a minute between the first and the others. Then these
    are 1 and 2 of the second run, and the first died in its first step.
    """
    steps = spans.drop_nulls("step").group_by("step").agg(pl.col("start_ns").min(), pl.col("end_ns").max()).sort("step")
    if not steps["start_ns"].is_sorted():  # blocks that were written twice
        return spans
    begins, pause = [0], (steps["start_ns"] - steps["end_ns"].shift()).to_list()
    while parts := [(a, b) for a, b in zip(begins, [*begins[1:], steps.height], strict=True) if b - a > end - first]:
        begins = sorted([*begins, *(max(range(a + 1, b), key=lambda n: pause[n] or 0) for a, b in parts)])
    if len(begins) == 1:
        return spans
    starts = steps[begins].select(since="start_ns", run=pl.int_range(len(begins), dtype=INT), counted="step")
    run = starts["since"][1:].search_sorted(spans["start_ns"], side="right").cast(INT)
    before = starts["counted"].gather(run)
    step = pl.when(run > 0).then(pl.col("step") - before + first).otherwise("step")
    return spans.with_columns(run.alias("run"), step.cast(INT).alias("step"))


def runs_of(rows: pl.DataFrame) -> pl.Series:
    """The run of each row (rank, kind, start_ns, end_ns, step, microbatch, chunk) of a table that does not say it.

    A job that is started again counts its steps anew: where a pass is there once more, after later steps, after
    AGAIN_NS or with all passes of its step, and no other is under way, a run begins.

    Example: each rank has its forward 0 of step 1 at 0 and at 600 s, and at 600 s all have had step 2 and are idle.
    """
    key = ["rank", "kind", "step", "microbatch", *(["chunk"] if "chunk" in rows.columns else [])]
    alone = pl.zeros(rows.height, INT, eager=True)
    if not {"step", "microbatch"} <= set(rows.columns):
        return alone
    passes = rows.filter(pl.col("kind").is_in(["F", "B"]), *(pl.col(c).is_not_null() for c in ("step", "microbatch")))
    numbers = (passes[name].cast(pl.Int64).fill_null(-1).to_numpy() for name in key if name != "kind")
    if np.bincount(packed((passes["kind"] == "F").to_numpy(), *numbers), minlength=1).max() <= 1:
        return alone
    turns = passes.sort("start_ns").with_columns(turn=pl.int_range(pl.len(), dtype=INT).over(key))
    again = turns.filter(pl.col("turn") > 0).group_by("turn").first().sort("turn").select("start_ns", "step")
    if again.height > MOST_RUNS or not all(_begins_run(passes, key, *row) for row in again.iter_rows()):
        return alone
    return again["start_ns"].search_sorted(rows["start_ns"], side="right").cast(INT)


def _begins_run(passes: pl.DataFrame, key: list[str], at: int, step: int) -> bool:
    """Whether a run begins `at` a time, with this step. `key`: what names a pass."""
    before = passes.filter(pl.col("start_ns") < at)
    last_step, last_end = before.select(pl.col("step").max(), pl.col("end_ns").max()).row(0)
    if last_end is None or last_end > at:
        return False
    if step < last_step or at - last_end > AGAIN_NS:
        return True
    after = passes.filter(pl.col("start_ns") >= at)
    first, second = (set(part.filter(step=step).select(key).unique().iter_rows()) for part in (before, after))
    return first == second
