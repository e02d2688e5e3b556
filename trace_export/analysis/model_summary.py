"""A simulated schedule in a few rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from trace_export.analysis.bubbles import step_bubbles
from trace_export.analysis.formulas import closed_form
from trace_export.analysis.theory import in_flight
from trace_export.errors import path_text
from trace_export.model import Profile
from trace_export.schedules.schedule import Schedule
from trace_export.schedules.simulate import Costs


@dataclass(frozen=True)
class ModelSummary:
    """The facts of a model; times in nanoseconds, shares from 0 to 1. `formula` is the published idle time per rank,
    without transfers and overlap, null where there is none."""

    schedule: str
    stages: int
    microbatches: int
    chunks: int
    blocks: int
    step_ns: int
    bubble: float
    bubble_own: float
    in_flight: float
    formula: str | None
    formula_idle_ns: float | None
    files: list[str]

    def json(self) -> str:
        return orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2).decode()

    def rows(self) -> list[tuple[str, str]]:
        """Name and value as the terminal shows them."""
        chunks = f", {self.chunks} chunks each" if self.chunks > 1 else ""
        rows = [
            ("schedule", self.schedule),
            ("stages", f"{self.stages}{chunks}"),
            ("micro-batches", str(self.microbatches)),
            ("blocks", str(self.blocks)),
            ("step", f"{self.step_ns / 1e6:.3f} ms"),
            ("bubble", f"{self.bubble:.2%} of the step (first start to last end over all stages)"),
            ("own bubble", f"{self.bubble_own:.2%} of each stage's own window, from its first start to its last end"),
        ]
        rows.append(("in flight", f"up to {self.in_flight:g} micro-batches' activations on a stage"))
        if self.formula is not None and self.formula_idle_ns is not None:
            rows.append(("published", f"idle per rank {self.formula} = {self.formula_idle_ns / 1e6:.3f} ms"))
        return rows


def summarise(schedule: Schedule, profile: Profile, costs: Costs, files: Sequence[Path] = ()) -> ModelSummary:
    """The summary of `schedule`, simulated with `costs` in nanoseconds."""
    step = step_bubbles(profile).row(0, named=True)
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
        files=[path_text(path) for path in files],
    )
