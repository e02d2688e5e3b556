"""The theoretical run of a schedule, as a run that can be analysed and written like a recorded one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from trace_export import arguments
from trace_export.choices import CostName, Format
from trace_export.draw import Content, draw
from trace_export.errors import UsageError
from trace_export.pipeline.interpret import interpret_model
from trace_export.read import LoadOptions
from trace_export.run import Run
from trace_export.schedules import schedule as schedules
from trace_export.schedules import simulate as simulator
from trace_export.schedules.simulate import Costs
from trace_export.write import DEFAULT_FORMATS, WriteOptions, planned, write_options
from trace_export.writers.formats import BY_NAME
from trace_export.writers.outputs import Outputs
from trace_export.writers.paths import output_paths
from trace_export.writers.pictures.figure import Figure, one_below_another
from trace_export.writers.pictures.figure import figure as figure_of
from trace_export.writers.pictures.picture import write_figure
from trace_export.writers.pictures.style import FigureStyle

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


def simulate(
    schedule: str,
    stages: int,
    microbatches: int,
    costs: Costs | Mapping[CostName, float] | None = None,
    *,
    chunks: int | None = None,
) -> Simulation:
    """The theoretical run of a schedule: gpipe, 1f1b, eager-1f1b, interleaved, zb-h1, zb-h2, zb-v, dualpipe, ….

    `costs` has the durations in nanoseconds; the defaults are forward 10 ms, backward 20 ms (10 ms if the weight
    gradient is a block of its own), weight 10 ms, transfer 0, overlap 1. `chunks` per rank, where the schedule has
    several.

    Raises UsageError for an unknown or impossible schedule.
    """
    plan = _plan(schedule, stages, microbatches, arguments.whole_or_none(chunks, "chunks"))
    return _simulated(plan, _costs(costs, simulator.default_costs(plan)))


def _plan(schedule: object, stages: object, microbatches: object, chunks: int | None = None) -> schedules.Schedule:
    if not isinstance(schedule, str):
        raise arguments.wrong("schedule", schedule, "the name of a schedule")
    return schedules.schedule(
        schedule, arguments.whole(stages, "stages"), arguments.whole(microbatches, "microbatches"), chunks
    )


def _simulated(plan: schedules.Schedule, costs: Costs) -> Simulation:
    profile = interpret_model(simulator.simulate(plan, costs), plan.plan)
    return Simulation(profile, LoadOptions(Path()), _clocks="one", _schedule=plan, costs=costs)


def draw_schedules(
    names: str | Sequence[str],
    stages: int,
    microbatches: int,
    costs: Costs | Mapping[CostName, float] | None = None,
    path: str | PathLike[str] | None = None,
    formats: str | Sequence[Format] | None = None,
    *,
    figure: FigureStyle | None = None,
    force: bool = False,
) -> tuple[list[Simulation], list[Path]]:
    """Several schedules in one picture, one below another on one scale of time, each with its bubble; returns the
    simulations and the files.

    `names`: schedules such as "1f1b,zb-h1,zb-v". `costs`: durations of a whole stage of the model, so that all
    schedules do the same work: a schedule of several chunks splits them, one without weight blocks adds weight to
    backward; default 10 ms each. `formats`: any of svg (the default), png, pdf, html. The other parameters as in
    `simulate` and `Run.write`. Raises the same errors, and UsageError if a format is not a picture.
    """
    wanted = arguments.texts(names.split(",") if isinstance(names, str) else names, "schedule")
    options = write_options(path, formats, {"figure": figure})
    if formats is None and options.formats == DEFAULT_FORMATS:
        options = replace(options, formats=("svg",))
    if any(BY_NAME[name].kind != "picture" for name in options.formats):
        what = "several schedules are drawn in one picture"
        raise UsageError(what, "choose svg, png, pdf or html", parameter="formats")
    planned(options, Path())
    files = output_paths(options.formats, options.out, Path())
    with Outputs(force=arguments.flag(force, "force")) as outputs:
        outputs.check(list(files.values()))
        of_stage = _costs(costs, Costs(10_000_000, 10_000_000, 10_000_000))
        plans = [_plan(name.strip(), stages, microbatches) for name in wanted]
        runs = [_simulated(plan, _of_a_block(of_stage, plan)) for plan in plans]
        shown = one_below_another([_panel(run, options) for run in runs], f"PP={stages}, {microbatches} micro-batches")
        for format, file in files.items():
            with outputs.file(file) as temporary:
                write_figure(shown, temporary, format)
    return runs, outputs.written


def _of_a_block(stage: Costs, plan: schedules.Schedule) -> Costs:
    """The durations of a block, from those of a whole stage of the model."""
    share = 1 if plan.placement == "both" else plan.chunks
    whole = stage.backward + (0 if plan.splits else stage.weight)
    return replace(stage, forward=stage.forward / share, backward=whole / share, weight=stage.weight / share)


def _panel(run: Simulation, options: WriteOptions) -> tuple[str, Figure]:
    """The picture of one schedule, with its heading."""
    measured = run._bubbles
    chart = draw(Content(measured), options.drawing)
    heading = f"{run._schedule.title} · bubble {measured.steps['bubble'].item():.1%}"
    return heading, figure_of(chart, None, measured.windows, options.figure)


def _costs(given: object, default: Costs) -> Costs:
    if given is None:
        return default
    if isinstance(given, Costs):
        given = {name: getattr(given, name) for name in get_args(CostName)}
    if not isinstance(given, Mapping):
        raise arguments.wrong("costs", given, "of the type Costs or a mapping")
    names = [arguments.choice(name, "costs", CostName) for name in given]
    read = {name: arguments.number if name == "overlap" else arguments.nanoseconds for name in names}
    checked = {name: read[name](given[name], f"costs.{name}") for name in names}
    return replace(default, **checked)
