"""A simulated schedule in a few facts."""

from __future__ import annotations

from dataclasses import dataclass

from trace_export.analysis.bubbles import Bubbles
from trace_export.analysis.formulas import closed_form
from trace_export.analysis.theory import in_flight
from trace_export.documents import MeanNs, Ns, Share
from trace_export.model import Profile
from trace_export.schedules.schedule import Schedule
from trace_export.schedules.simulate import Costs


@dataclass(frozen=True)
class ModelSummary:
    """A simulated schedule. `bubble` is the idle share of the step, `bubble_own` that of each stage's own window;
    `in_flight`: micro-batches whose activations the worst stage holds at once; `formula`: the published idle time per
    rank, without transfers and overlap, null where there is none."""

    schedule: str
    stages: int
    microbatches: int
    chunks: int
    blocks: int
    step_ns: Ns
    bubble: Share
    bubble_own: Share
    in_flight: float
    formula: str | None
    formula_idle_ns: MeanNs | None


def summarise(schedule: Schedule, profile: Profile, costs: Costs) -> ModelSummary:
    """The summary of `schedule`, simulated with `costs` in nanoseconds."""
    step = Bubbles(profile).steps.row(0, named=True)
    share = 1 if schedule.placement == "both" else schedule.chunks
    inputs, weights = (costs.backward, costs.weight) if schedule.splits else (costs.backward / 2, costs.backward / 2)
    form = closed_form(schedule, *(share * t for t in (costs.forward, inputs + weights, inputs, weights)))
    return ModelSummary(
        schedule=schedule.title,
        stages=schedule.stages,
        microbatches=schedule.microbatches,
        chunks=schedule.chunks,
        blocks=len(profile.spans),
        step_ns=step["end_ns"] - step["start_ns"],
        bubble=step["bubble"] or 0.0,
        bubble_own=step["bubble_own"] or 0.0,
        in_flight=in_flight(schedule),
        formula=form.formula if form else None,
        formula_idle_ns=form.idle_ns if form else None,
    )
