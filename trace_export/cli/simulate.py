"""`trace-export simulate`: the theoretical chart of a schedule, in every output format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trace_export.cli import options as opt
from trace_export.cli import terminal
from trace_export.cli.export import Force, Format, Gzip
from trace_export.errors import UsageError
from trace_export.units import nanoseconds

TIMES = "F=10ms,B=20ms,W=10ms"


def simulate(
    schedule: Annotated[
        str,
        typer.Option(help="gpipe, 1f1b, eager-1f1b, interleaved, zb-h1, zb-h2, zb-v, dualpipe, dualpipev, …"),
    ],
    stages: Annotated[int, typer.Option(help="Ranks of the pipeline.", min=1)],
    microbatches: Annotated[
        int, typer.Option("--microbatches", "--micro-batches", help="Micro-batches of a step.", min=1)
    ],
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
    overlap: Annotated[
        float, typer.Option(help="Duration of an overlapped pair, as a part of F and B one after the other.", min=0)
    ] = 1.0,
    format: Format = "perfetto,chrome",
    out: Annotated[Path, typer.Option(help="Folder or file to write to.", metavar="PATH")] = Path(),
    force: Force = False,
    gzip: Gzip = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
    debug: opt.Debug = False,
) -> None:
    """Draw the chart of a pipeline schedule as theory has it."""
    from trace_export.analysis.model_summary import summarise
    from trace_export.pipeline.interpret import interpret_model
    from trace_export.render import WriteOptions, write
    from trace_export.schedules import simulate as model
    from trace_export.schedules.schedule import schedule as planned
    from trace_export.writers.outputs import Outputs

    plan = planned(schedule, stages, microbatches, chunks)
    given = {"F": 10_000_000, "B": 10_000_000 if plan.splits else 20_000_000, "W": 10_000_000} | durations(times)
    costs = model.Costs(given["F"], given["B"], given["W"], nanoseconds(comm, "--comm"), overlap)
    profile = interpret_model(model.simulate(plan, costs), plan.plan)
    formats = tuple(f.strip() for f in format.split(","))
    with Outputs(force=force) as outputs:
        write(profile, WriteOptions(formats=formats, out=out, gzip=gzip), out, outputs)
    result = summarise(plan, profile, costs, outputs.written)
    if json:
        terminal.json(result.json())
    elif not quiet:
        terminal.summary(result)
        terminal.files(outputs.written)


def durations(text: str) -> dict[str, int]:
    """`F=10ms,B=20ms` → nanoseconds by kind. Raises UsageError."""
    result = {}
    for part in filter(None, text.split(",")):
        kind, equals, time = (word.strip() for word in part.partition("="))
        if not equals or kind not in ("F", "B", "W"):
            raise UsageError(f'--times "{part.strip()}" is not KIND=TIME', f"write it like --times {TIMES}")
        result[kind] = nanoseconds(time, "--times")
        if result[kind] < 0:
            raise UsageError(f'--times "{part.strip()}": no block takes less than no time')
    return result
