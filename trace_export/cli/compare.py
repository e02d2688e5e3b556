"""`trace-export compare A B`: two runs, two steps of one, or a run and a baseline, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from trace_export.cli import options as opt
from trace_export.cli import terminal
from trace_export.errors import UsageError

TEXTS = ("text", "markdown", "json")
"""The words of --format that say how the result is printed; all others are files of a chart."""
FAILED = 4
"""Exit code where B is worse than the limit allows."""
BASELINE = "Baseline and limit"
"""The part of the help about what a run is held against."""
Own = Annotated[
    str,
    typer.Option(
        help="Steps of this run, where --steps are not those of both.", metavar="LIST", rich_help_panel=opt.SELECTION
    ),
]
OwnRun = Annotated[
    str | None,
    typer.Option(
        help="The run of this folder, where --run is not that of both.",
        metavar="N|latest|all",
        show_default=False,
        rich_help_panel=opt.SELECTION,
    ),
]


@opt.with_groups
def compare(
    a: Annotated[Path, typer.Argument(help="A folder of profiles, or a span table.", show_default=False)],
    b: Annotated[
        Path | None, typer.Argument(help="The other one; the same if only its steps differ.", show_default=False)
    ] = None,
    follow_links: opt.FollowLinks = False,
    multi_machine: opt.MultiMachine = False,
    columns: opt.ColumnMap = None,
    *,
    passes: opt.Passes,
    sizes: opt.Sizes,
    steps: opt.Steps = "all",
    steps_a: Own = "all",
    steps_b: Own = "all",
    run: opt.RunNumber = "latest",
    run_a: OwnRun = None,
    run_b: OwnRun = None,
    devices: opt.Devices = "all",
    ranks: opt.Ranks = "all",
    stages: opt.Stages = "all",
    window: opt.Time = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            help="A is the run of which this file keeps the figures.",
            metavar="FILE",
            show_default=False,
            rich_help_panel=BASELINE,
        ),
    ] = None,
    save: Annotated[
        bool,
        typer.Option("--save", help="Keep the figures of the run in the file of --baseline.", rich_help_panel=BASELINE),
    ] = False,
    fail_above: Annotated[
        str | None,
        typer.Option(
            help="Exit with code 4 if B is worse by more than this, beyond what the steps vary.",
            metavar="PERCENT",
            show_default=False,
            rich_help_panel=BASELINE,
        ),
    ] = None,
    on: Annotated[
        str,
        typer.Option(
            help="What must not be worse: step (its time), bubble (in points), slowdown, stage:N.",
            rich_help_panel=BASELINE,
        ),
    ] = "step",
    path: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder or file for one trace with both; none is written without it.",
            show_default=False,
            rich_help_panel=opt.OUTPUT,
        ),
    ] = None,
    formats: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="text, markdown or json: how the result is printed; else files of the chart, as for export.",
            metavar="LIST",
            show_default=False,
            rich_help_panel=opt.OUTPUT,
        ),
    ] = None,
    force: opt.Force = False,
    gzip: opt.Gzip = False,
    align: opt.Align = "auto",
    jobs: opt.Jobs = None,
    printing: opt.Printing,
) -> None:
    """Compare two runs, or two steps of one: how their steps differ, and why, by levels, causes and blocks.

    With --fail-above the exit code is 4 if B is worse.

    In the chart that --out asks for, the tracks of B lie below those of A, and both begin every step at the same time.
    """
    from trace_export import api
    from trace_export.analysis import baseline as kept

    output, formats = (formats, None) if formats in TEXTS else ("text", formats)
    reading: dict[str, Any] = {
        "follow_links": follow_links, "multi_machine": multi_machine, "columns": columns, **passes.arguments(),
        **sizes.arguments(), "devices": devices, "ranks": ranks, "stages": stages, "window": window, "force": force,
        "align": align, "jobs": jobs,
    }  # fmt: skip
    if (save and (baseline is None or fail_above)) or (b is not None and (save or baseline is not None)):
        what = "--baseline FILE takes the place of A, and --save writes it from the only run"
        raise UsageError(what, "give one run, and no --fail-above with --save")
    if save and (path is not None or formats is not None or output == "markdown"):
        raise UsageError("--save keeps figures and draws nothing", "leave out --out, and --format but json")
    if baseline is not None:
        if not save:
            kept.read(baseline)  # a file that is none is refused as such, not as a folder without profiles
        given = [own for own in (steps, steps_a, steps_b) if own != "all"]
        if len(given) > 1:
            what = "there is one run beside a baseline, and its steps are given more than once"
            raise UsageError(what, "give --steps, and neither --steps-a nor --steps-b")
        steps_b = given[0] if given else "all"
    with terminal.progress(printing) as progress:
        if baseline is not None and save:
            saved = api.save_baseline(
                a, baseline, steps=steps_b, run=run_b or run_a or run, progress=progress, **reading
            )
            if printing.json or output == "json":
                terminal.json(baseline.read_text(encoding="utf-8"))
            elif not printing.quiet:
                terminal.hint(f"kept the figures of {saved.name}; hold a run against them with --baseline {baseline}")
            raise typer.Exit(terminal.conclude([saved], printing))
        first, second = (a, b) if baseline is None else (baseline, a)
        done = api.compare(
            first, second, path, formats, steps=steps, steps_a=None if baseline else steps_a, steps_b=steps_b,
            run=run, run_a=run_a, run_b=run_b, fail_above=fail_above, on=on, gzip=gzip, progress=progress, **reading,
        )  # fmt: skip
    runs = [run for run in (done.a, done.b) if isinstance(run, api.Run)]
    if printing.json or output == "json":
        terminal.json(done.comparison.json())
    elif output == "markdown":
        terminal.text(done.comparison.markdown())
    elif not printing.quiet:
        terminal.answer(done.comparison.verdict)
        terminal.tables(done.comparison.tables())
        notes = [getattr(side, "notes", ()) for side in (done.a, done.b)]
        terminal.notes_of_two(done.comparison.names, (notes[0], notes[1]), printing.verbose)
        terminal.files(done.files)
    gate = done.comparison.gate
    if gate is not None and gate.failed:
        terminal.failure(gate.sentence)
        raise typer.Exit(FAILED)
    raise typer.Exit(terminal.conclude(runs, printing))
