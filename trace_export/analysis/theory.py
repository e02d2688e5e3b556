"""The recognised schedule beside the measurement: its published idle time, and what another schedule would save.

The model is that of `schedules.simulate` with the measured durations, transfers and ordinary delays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import polars as pl

from trace_export.analysis import counted_steps
from trace_export.analysis.durations import Measured, measure
from trace_export.analysis.formulas import ClosedForm, closed_form
from trace_export.analysis.typical import Overhead
from trace_export.errors import UsageError
from trace_export.model import INT, STEP_KEY, TEXT, TIME, WORK_KINDS, Plan, Profile, Recognition, Schema, conform, empty
from trace_export.pipeline.block_order import sequences
from trace_export.pipeline.deviations import deviations
from trace_export.pipeline.schedule_match import of_steps
from trace_export.schedules.catalogue import CATALOGUE, TITLES
from trace_export.schedules.schedule import Schedule, of_plan, schedule
from trace_export.schedules.simulate import Times, start_and_end
from trace_export.schedules.step_graph import CircleError

CHANGES: dict[str, pl.DataType] = {
    "change": pl.String(), "pipeline_ns": pl.Float64(), "saved": pl.Float64(), "bubble": pl.Float64(),
    "in_flight": pl.Float64(), "band": pl.Float64(),
}  # fmt: skip
"""What the model's pipeline time would be with another schedule; the first row is the run as it is. `saved` is the
share of the time that is saved, `band` how far from it the truth may be: `SURE`, and twice the error of the model of
the run as it is, if that error is above `NEAR`; `in_flight` the micro-batches whose activations the worst stage holds
at once."""


SURE = 0.035
"""The prediction for another schedule is right within this share of the pipeline time in 9 of 10 pairs of simulated
jobs with unequal stages and varying blocks, and in the one published pair: 14.3 % predicted, 11.2 % measured."""
NEAR = 0.06
"""In these pairs the model of the run as it is differs from the measured time by at most this share. If it differs
more, because blocks come late by chance, 9 of 10 pairs are within `SURE` plus twice that error."""


@dataclass(frozen=True)
class Theory:
    """What `explain` found. Few reports need more than the `recognition`: the rest is worked out when it is first asked
    for."""

    recognition: Recognition
    _plan: Plan | None
    _passes: pl.DataFrame
    _orders: pl.DataFrame
    _overhead: Overhead
    _pipeline_ns: float | None

    @cached_property
    def deviations(self) -> pl.DataFrame:
        """Where ranks leave the order of the schedule, see `pipeline.deviations`; empty where none is named."""
        return deviations(self._orders, replace(self.recognition, plan=self._plan))

    @cached_property
    def closed_form(self) -> ClosedForm | None:
        """None where none is published."""
        if self._model is None:
            return None
        measured, work = self._model
        mean = [float(w.mean()) for w in (work.forward, work.backward, work.inputs, work.weights)]
        return closed_form(measured.schedule, *mean)

    @cached_property
    def changes(self) -> pl.DataFrame:
        """The table `CHANGES`; empty where there is no model."""
        twins = self.recognition.twins
        rows = () if self._model is None else _changes(*self._model, self._overhead, twins, self._pipeline_ns)
        return pl.DataFrame(list(rows), schema=CHANGES, orient="row")

    @cached_property
    def _model(self) -> tuple[Measured, _StageWork] | None:
        """None where the order fits no schedule, or a stage was not read."""
        if self._plan is None:
            return None
        measured = measure(self._passes, of_plan(self._plan), self._orders)
        if measured.blocks.is_empty() or not _all_stages(measured):
            return None
        return measured, _stage_work(measured)


@dataclass(frozen=True)
class _StageWork:
    """Mean durations per micro-batch, an array over stages: forward, backward, and its halves. `split`: whether the
    halves were measured; else each is taken as half of the backward."""

    forward: Times
    backward: Times
    inputs: Times
    weights: Times
    split: bool


def explain(profile: Profile, overhead: Overhead, pipeline_ns: float | None = None) -> Theory:
    """The theory of the profile's schedule. `pipeline_ns`: how long the pipeline of a step takes, as measured. Needs
    `Profile.interpretation`."""
    recognition = profile.interpreted.recognition
    passes = counted_steps.only(profile, "counts").passes()
    orders = sequences(passes)
    plan = None if recognition.named is None else of_steps(recognition.named, orders)
    return Theory(replace(recognition, plan=plan or recognition.plan), plan, passes, orders, overhead, pipeline_ns)


def _all_stages(measured: Measured) -> bool:
    """Whether blocks of every stage were measured."""
    stages = measured.schedule.ops["stage"].gather(measured.blocks["op"]).n_unique()
    return bool(stages == measured.schedule.stages)


def why_unknown(recognition: Recognition, stages: int) -> str:
    """Why no schedule is named, as a clause; this many `stages` of the run have blocks."""
    if recognition.named is not None:
        return "no step has all its blocks"
    if recognition.plan is not None and not recognition.distance:
        *first, last = (TITLES[name] for name in (recognition.plan.name, *recognition.twins))
        alike = f"{', '.join(first)} and {last}" if first else last
        return f"the blocks that were read follow {alike}"
    if recognition.of_runs:
        return f"the runs follow different ones: {', '.join(TITLES[name] for name in recognition.of_runs)}"
    if stages == 1:
        return "a single stage shows no schedule"
    why = "the blocks follow no known schedule"
    if recognition.plan is None:
        return why
    return f"{why}; {TITLES[recognition.plan.name]} is closest, {recognition.distance:.1%} differ"


HALVES = ", W = B/2"
"""Follows the name of a change that splits backwards if the run does not split them."""
MODEL: Schema = {
    "run": INT, "step": INT, "stage": INT, "kind": TEXT, "microbatch": INT, "chunk": INT, "microbatch_b": INT,
    "chunk_b": INT, "phase": TEXT, "start_ns": TIME, "end_ns": TIME, "origin": TEXT,
}  # fmt: skip


def modelled_blocks(profile: Profile) -> pl.DataFrame:
    """The blocks as the recognised schedule would have run them with the median measured durations, without transfers.

    Each step's model starts when the step does; a step that is not whole has none. Columns `MODEL`: origin is `model`.
    Empty when the order of the run is that of no schedule. Needs `Profile.interpretation`.
    """
    schedule = profile.interpreted.recognition.named
    passes = counted_steps.only(profile, "whole").passes()
    orders = sequences(passes)
    plan = None if schedule is None else of_steps(schedule, orders)
    if plan is None:
        return empty(MODEL)
    s = of_plan(plan)
    measured = measure(passes, s, orders)
    start, end = start_and_end(s, measured.typical())
    ops = s.ops.with_columns(
        origin=pl.lit("model"),
        start_ns=pl.Series(np.round(start).astype(np.int64)),
        end_ns=pl.Series(np.round(end).astype(np.int64)),
    ).filter(pl.col("end_ns") > pl.col("start_ns"))
    work = profile.spans.filter(pl.col("kind").is_in(WORK_KINDS))
    starts = work.group_by(STEP_KEY).agg(at=pl.col("start_ns").min())
    steps = starts.join(measured.cases, on=STEP_KEY, how="semi", nulls_equal=True).sort(STEP_KEY)
    moved = steps.join(ops, how="cross").with_columns(pl.col("start_ns", "end_ns") + pl.col("at"))
    return conform(moved, MODEL)


def _simulated(s: Schedule, durations: Times, overhead: Overhead) -> tuple[float, float]:
    """Step time and share of idle time of the model."""
    transfers = np.full(len(s.with_transfers) - len(s.ops), overhead.transfer_ns)
    lengths = np.concatenate([durations + overhead.block_ns, transfers])
    end = float(s.with_transfers.start_and_end(lengths)[1].max())
    return end, 1 - float(durations.sum()) / (end * s.stages) if end else 0.0


def _stage_work(measured: Measured) -> _StageWork:
    """The durations of a stage per micro-batch from those of its blocks."""
    s = measured.schedule
    mean = pl.Series(measured.means)
    per_chunk = s.ops.with_columns(mean=mean).group_by("stage", "kind", "full", "chunk").agg(pl.col("mean").mean())
    # In DualPipe a micro-batch passes one of a rank's two chunks, elsewhere all of them.
    whole = pl.col("mean").mean() if s.placement == "both" else pl.col("mean").sum()

    def stages(kind: str, full: bool | None) -> Times | None:
        rows = per_chunk.filter((pl.col("kind") == kind) & pl.col("full").eq_missing(full))
        each = rows.group_by("stage").agg(whole.alias("mean"), chunks=pl.len()).sort("stage")
        complete = len(each) == s.stages and (each["chunks"] == each["chunks"].max()).all()
        return each["mean"].to_numpy() if complete else None

    forward = stages("F", None)
    forward = np.zeros(s.stages) if forward is None else forward
    inputs, weights, backward = stages("B", False), stages("W", None), stages("B", True)
    if inputs is not None and weights is not None and weights.any():
        return _StageWork(forward, inputs + weights, inputs, weights, split=True)
    backward = backward if backward is not None else inputs if inputs is not None else np.zeros(s.stages)
    return _StageWork(forward, backward, backward / 2, backward / 2, split=False)


def in_flight(s: Schedule) -> float:
    """The micro-batches whose activations the worst stage holds at once; part of a micro-batch's chunks is a part."""
    chunks = s.in_flight()["chunks"].to_numpy().max()
    return float(chunks) / (1 if s.placement == "both" else s.chunks)


def _changes(
    measured: Measured, work: _StageWork, overhead: Overhead, twins: Sequence[str], pipeline_ns: float | None
) -> Iterator[tuple[str, float, float, float, float, float]]:
    """The rows of `CHANGES`; schedules that the run may follow as well as its own are no change."""
    s = measured.schedule
    now, bubble = _simulated(s, measured.means, overhead)
    if now <= 0:
        return
    off = abs(now / pipeline_ns - 1) if pipeline_ns else 0.0
    band = SURE + (2 * off if off > NEAR else 0.0)
    yield "as it is, in the model", now, 0.0, bubble, in_flight(s), 0.0
    for name, row in CATALOGUE.items():
        no_change = name == s.name or name in twins or row.variant
        other = None if no_change else _fitting(name, s.stages, s.microbatches)
        if other is None:
            continue
        try:
            step, share = _simulated(other, _spread(work, other), overhead)
        except CircleError:  # its ranks would wait for each other for ever
            continue
        chunks = f", {other.chunks} chunks" if other.chunks > 1 else ""
        assumed = "" if work.split or not other.splits else HALVES
        yield f"{other.title}{chunks}{assumed}", step, 1 - step / now, share, in_flight(other), band


def _fitting(name: str, stages: int, microbatches: int) -> Schedule | None:
    try:
        return schedule(name, stages, microbatches)
    except UsageError:  # its rules do not allow these numbers
        return None


def _spread(work: _StageWork, other: Schedule) -> Times:
    """The work of each stage spread evenly over the chunks of another schedule; its pairs gain nothing by overlap."""
    share = 1 if other.placement == "both" else other.chunks
    stage, kind = other.ops["stage"].to_numpy(), other.ops["kind"].to_numpy()
    full = other.ops["full"].fill_null(False).to_numpy()
    rules = [kind == "F", kind == "W", kind == "FB", (kind == "B") & full, (kind == "B") & ~full]
    times = [work.forward, work.weights, work.forward + work.backward, work.backward, work.inputs]
    return np.asarray(np.select(rules, [each[stage] for each in times]) / share, np.float64)
