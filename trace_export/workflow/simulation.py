"""The theoretical run of a schedule, as a run that can be analysed and written like a recorded one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from trace_export.choices import CostName
from trace_export.pipeline.interpret import interpret_model
from trace_export.schedules import schedule as schedules
from trace_export.schedules import simulate as simulator
from trace_export.schedules.catalogue import CATALOGUE
from trace_export.schedules.simulate import Costs
from trace_export.workflow import arguments
from trace_export.workflow.reading import LoadOptions
from trace_export.workflow.run import Run

if TYPE_CHECKING:
    from trace_export.analysis.model_summary import ModelSummary


@dataclass(frozen=True, eq=False, repr=False)
class Simulation(Run):
    """The theoretical run of a schedule. Its spans begin at time 0 and have the origin `model`."""

    _schedule: schedules.Schedule = field(kw_only=True)
    costs: Costs = field(kw_only=True)

    def theory(self) -> ModelSummary:
        """The run in a few facts: its bubble, the activations in flight, the published formula."""
        from trace_export.analysis.model_summary import summarise

        return summarise(self._schedule, self._recorded, self.costs)


def known_schedules() -> list[str]:
    """The names that `simulate` takes."""
    return list(CATALOGUE)


def simulate(
    schedule: str,
    stages: int,
    microbatches: int,
    costs: Costs | Mapping[CostName, float] | None = None,
    *,
    chunks: int | None = None,
) -> Simulation:
    """The theoretical run of a schedule: gpipe, 1f1b, eager-1f1b, interleaved, zb-h1, zb-h2, zb-v, dualpipe, ….

    `costs` has the durations in nanoseconds; what a mapping leaves out is as without any: forward 10 ms, backward
    20 ms (10 ms where the weight gradient is a block of its own), weight 10 ms, transfer 0, overlap 1. `chunks` per
    rank, where the schedule has several.

    Raises UsageError for a schedule that is unknown or impossible.
    """
    number = arguments.whole_or_none(chunks, "chunks")
    if not isinstance(schedule, str):
        raise arguments.wrong("schedule", schedule, "the name of a schedule")
    plan = schedules.schedule(
        schedule, arguments.whole(stages, "stages"), arguments.whole(microbatches, "microbatches"), number
    )
    exact = _costs(costs, simulator.default_costs(plan))
    profile = interpret_model(simulator.simulate(plan, exact), plan.plan)
    return Simulation(profile, LoadOptions(Path()), _clocks="one", _schedule=plan, costs=exact)


def _costs(given: object, default: Costs) -> Costs:
    if given is None:
        return default
    if isinstance(given, Costs):
        given = {name: getattr(given, name) for name in get_args(CostName)}
    if not isinstance(given, Mapping):
        raise arguments.wrong("costs", given, "of the type Costs or a mapping")
    names = [arguments.choice(name, "costs", CostName) for name in given]
    checked = {name: arguments.number(given[name], f"costs.{name}") for name in names}
    return replace(default, **checked)
