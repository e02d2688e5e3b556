"""`trace-export export` (the default), and a command for each format, which looks for that one only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trace_export import choices
from trace_export.cli import load_options, terminal
from trace_export.cli import options as opt
from trace_export.errors import UsageError
from trace_export.sources.formats import commands, of_command

Format = Annotated[
    str, typer.Option("--format", help="Any of perfetto,chrome,svg,png,html,parquet,csv.", metavar="LIST")
]
Out = Annotated[
    Path | None,
    typer.Option(help="Folder or file to write to; default: the log_dir.", show_default=False, metavar="PATH"),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Replace files that trace-export did not write; inputs are never replaced."),
]
Gzip = Annotated[bool, typer.Option("--gzip", help="Compress the traces; Perfetto opens them as they are.")]
Tracks = Annotated[choices.Tracks, typer.Option(help="stage: one track per stage; rank: every rank, grouped by stage.")]
Detail = Annotated[
    choices.Detail, typer.Option(help="spans: blocks only; comm: communication too; kernels: all device work.")
]
ColorBy = Annotated[
    choices.ColorBy, typer.Option("--color-by", help="What a block's colour shows: kind, microbatch, rank or none.")
]
Bubbles = Annotated[bool, typer.Option("--bubbles", help="Draw idle time as slices named by their cause.")]
Model = Annotated[bool, typer.Option("--model", help="Draw the theoretical schedule under the measured one.")]

MaxSlices = Annotated[
    int | None,
    typer.Option("--max-slices", help="Split a larger trace into files of whole steps.", min=1, show_default=False),
]
StepTaskInfo = Annotated[
    bool,
    typer.Option(
        "--step-task-info", help="Also write the table that MindStudio Insight reads, into copies of the databases."
    ),
]
InPlace = Annotated[bool, typer.Option("--in-place", help="With --step-task-info: into the databases themselves.")]


def register(app: typer.Typer) -> None:
    """One command for each profiler; they differ in what they look for."""
    app.command("export", help="Draw what lies in a folder, whatever wrote it.")(run)
    for name in commands():
        titles = " and ".join(row.title for row in of_command(name))
        app.command(name, help=f"Draw {titles}.")(run)


def run(
    ctx: typer.Context,
    folder: opt.Folder = None,
    log_dir: opt.LogDir = None,
    devices: opt.Devices = "all",
    multi_machine: opt.MultiMachine = False,
    follow_links: opt.FollowLinks = False,
    ranks: opt.Ranks = "all",
    steps: opt.Steps = "all",
    stages: opt.Stages = "all",
    time: opt.Time = None,
    pp: opt.Pp = None,
    tp: opt.Tp = None,
    dp: opt.Dp = None,
    cp: opt.Cp = None,
    format: Format = "perfetto,chrome",
    out: Out = None,
    force: Force = False,
    gzip: Gzip = False,
    tracks: Tracks = "stage",
    detail: Detail = "spans",
    color_by: ColorBy = "kind",
    bubbles: Bubbles = False,
    model: Model = False,
    max_slices: MaxSlices = None,
    step_task_info: StepTaskInfo = False,
    in_place: InPlace = False,
    host: opt.Host = False,
    marker: opt.Marker = None,
    align: opt.Align = "auto",
    offset: opt.Offset = None,
    max_clock_error: opt.MaxClockError = None,
    jobs: opt.Jobs = None,
    scheduler: opt.Scheduler = None,
    at: opt.At = None,
    strict: opt.Strict = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
    debug: opt.Debug = False,
) -> None:
    family = None if ctx.info_name == "export" else ctx.info_name
    source = load_options.from_command(ctx, family)
    from trace_export.analysis.summary import summarise
    from trace_export.export import export
    from trace_export.render import WriteOptions

    if in_place and not step_task_info:
        raise UsageError("--in-place has nothing to write", "give it together with --step-task-info")
    if step_task_info and at:
        raise UsageError(
            "--step-task-info writes into databases on this machine, and --at names those of others",
            "run it on each of them, or with a --log_dir that all share",
        )
    target = WriteOptions(
        formats=tuple(f.strip() for f in format.split(",")),
        out=out,
        gzip=gzip,
        tracks=tracks,
        color_by=color_by,
        bubbles=bubbles,
        model=model,
        max_slices=max_slices,
        force=force,
        step_task_info=step_task_info,
        in_place=in_place,
    )
    with terminal.progress(quiet or json) as progress:
        loaded, written = export(source, target, progress)
    if json:
        terminal.json(summarise(loaded.profile, loaded.failures, written).json())
    elif not quiet:
        terminal.summary(summarise(loaded.profile, loaded.failures, written))
        terminal.notes(loaded.profile.notes)
        terminal.files(written)
    terminal.errors(loaded.failures, debug)
    warned = any(note.level == "warning" for note in loaded.profile.notes)
    raise typer.Exit(3 if loaded.failures or (strict and warned) else 0)
