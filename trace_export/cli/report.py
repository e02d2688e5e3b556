"""`trace-export report`: how much bubble, where, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trace_export.cli import load_options, tables, terminal
from trace_export.cli import options as opt
from trace_export.cli.export import Force
from trace_export.errors import UsageError


def report(
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
    format: Annotated[
        str, typer.Option("--format", help="text: on the terminal; html: one page with the chart.", metavar="FORMAT")
    ] = "text",
    out: Annotated[
        Path | None,
        typer.Option(help="The page, or its folder; default: pipeline_report.html in the log_dir.", show_default=False),
    ] = None,
    force: Force = False,
    host: opt.Host = False,
    marker: opt.Marker = None,
    align: opt.Align = "auto",
    offset: opt.Offset = None,
    jobs: opt.Jobs = None,
    strict: opt.Strict = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
    debug: opt.Debug = False,
) -> None:
    """Say how much bubble a run has, where and why: per step and stage, stragglers, schedule, theory, what-if.

    DIR holds profiles; a span table written with --format parquet or csv does as well.
    """
    if format not in ("text", "html"):
        raise UsageError(f'--format "{format}" is unknown', "choose text or html")
    source = load_options.from_command(ctx)
    from trace_export.analysis.report import report as analyse
    from trace_export.export import load, locate
    from trace_export.render import write_report
    from trace_export.writers.outputs import Outputs
    from trace_export.writers.paths import report_page

    page = report_page(out, source.log_dir) if format == "html" else None
    located = locate(source)
    with terminal.progress(quiet or json) as progress, Outputs(located.inputs, force=force) as outputs:
        outputs.check([page] if page else [])
        loaded = load(source, progress, located)
        result = analyse(loaded.profile)
        if page:
            write_report(loaded.profile, result, page, outputs, source.steps)
    if json:
        terminal.json(result.json())
    elif not quiet:
        if format == "text":
            tables.show(result.tables())
        terminal.notes(loaded.profile.notes)
        terminal.files(outputs.written)
    terminal.errors(loaded.failures, debug)
    warned = any(note.level == "warning" for note in loaded.profile.notes)
    raise typer.Exit(3 if loaded.failures or (strict and warned) else 0)
