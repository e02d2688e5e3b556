"""`trace-export simulate`: the theoretical chart of a schedule, in every output format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trace_export.choices import CostName
from trace_export.cli import choosing, terminal
from trace_export.cli import options as opt
from trace_export.errors import UsageError
from trace_export.units import nanoseconds

TIMES = "F=10ms,B=20ms,W=10ms"
FIGURES = opt.Figures()


@opt.with_groups
def simulate(
    schedule: Annotated[
        str,
        typer.Option(
            help="gpipe, 1f1b, eager-1f1b, interleaved, zb-h1, zb-h2, zb-v, dualpipe, dualpipev, …; several, such as"
            " 1f1b,zb-h1, are drawn in one picture.",
            autocompletion=choosing.schedules,
        ),
    ],
    stages: Annotated[int, typer.Option(help="Ranks of the pipeline.")],
    microbatches: Annotated[int, typer.Option("--microbatches", "--micro-batches", help="Micro-batches of a step.")],
    chunks: Annotated[
        int | None, typer.Option(help="Model chunks per rank, where the schedule has several.", show_default=False)
    ] = None,
    times: Annotated[
        str,
        typer.Option(
            help="Duration of one block of each kind; B is the gradient of the input where W blocks exist."
            f" Default: {TIMES}, but B=10ms where W blocks exist.",
            show_default=False,
            metavar="LIST",
        ),
    ] = "",
    comm: Annotated[str, typer.Option(help="Time of a transfer to another stage.", metavar="TIME")] = "0ms",
    overlap: Annotated[float, typer.Option(help="Duration of a fused F/B, as a fraction of F plus B.")] = 1.0,
    formats: opt.Formats = None,
    path: Annotated[Path, typer.Option("--out", help="Folder or file to write to.", metavar="PATH")] = Path(),
    force: opt.Force = False,
    gzip: opt.Gzip = False,
    bubbles: Annotated[bool, typer.Option("--bubbles", help="Draw idle time as slices named by their cause.")] = False,
    figures: opt.Figures = FIGURES,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
    debug: opt.Debug = False,
) -> None:
    """Draw the theoretical chart of a pipeline schedule."""
    from trace_export import api
    from trace_export.cli import summaries

    costs: dict[CostName, float] = {
        "transfer": nanoseconds(comm, "costs.transfer"),
        "overlap": overlap,
        **durations(times),
    }
    if "," in schedule:
        several(schedule, chunks, gzip or bubbles)
        runs, files = api.draw_schedules(
            schedule, stages, microbatches, costs, path, formats, figure=figures.style(), force=force
        )
    else:
        runs = [api.simulate(schedule, stages, microbatches, costs, chunks=chunks)]
        files = runs[0].write(path, formats, gzip=gzip, bubbles=bubbles, figure=figures.style(), force=force)
    if json:
        from trace_export.analysis.run_document import simulate_document
        from trace_export.documents import encode

        terminal.json(encode(simulate_document([run.theory() for run in runs], files)))
    elif not quiet:
        for run in runs:
            terminal.facts(summaries.model_rows(run.theory()))
        terminal.files(files)


def several(schedules: str, chunks: int | None, further: bool) -> None:
    """Raises UsageError for options that one picture of several schedules does not have."""
    if chunks is not None or further:
        what = f"{schedules} is drawn as one picture, in which --chunks, --gzip and --bubbles have no place"
        raise UsageError(what, "leave them out, or simulate one schedule", parameter="schedule")


KINDS: dict[str, CostName] = {"F": "forward", "B": "backward", "W": "weight"}


def durations(text: str) -> dict[CostName, float]:
    """`F=10ms,B=20ms` → nanoseconds by the names of the API. Raises UsageError."""
    result: dict[CostName, float] = {}
    for part in filter(None, text.split(",")):
        kind, equals, time = (word.strip() for word in part.partition("="))
        if not equals or kind not in KINDS:
            what = f'"{part.strip()}" is not KIND=TIME'
            raise UsageError(what, f"write it like {TIMES}", parameter="costs.forward")
        if KINDS[kind] in result:
            raise UsageError(f"{kind} has two times", f"write it like {TIMES}", parameter="costs.forward")
        result[KINDS[kind]] = nanoseconds(time, "costs.forward")
    return result
