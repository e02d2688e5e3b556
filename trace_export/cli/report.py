"""`trace-export report`: how much bubble, where, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from trace_export.cli import memory, terminal
from trace_export.cli import options as opt
from trace_export.errors import UsageError

OF_NAME: dict[str, Literal["html", "svg", "png"]] = {".html": "html", ".svg": "svg", ".png": "png"}
"""The format that the name of a file asks for."""


@opt.with_groups
def report(
    source: opt.Source,
    passes: opt.Passes,
    sizes: opt.Sizes,
    selection: opt.Selection,
    *,
    format: Annotated[
        Literal["text", "html", "markdown", "svg", "png"],
        typer.Option(
            "--format",
            help="text, markdown: on standard output; html: one page with the chart; svg, png: the slowdown of each"
            " rank as a heat map.",
            rich_help_panel=opt.OUTPUT,
        ),
    ] = "text",
    path: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="The page or heat map, whose name says the format, or its folder; default: pipeline_report.html or"
            " pipeline_slowdown.svg in the log_dir.",
            show_default=False,
            rich_help_panel=opt.OUTPUT,
        ),
    ] = None,
    force: opt.Force = False,
    clocks: opt.Clocks,
    workers: opt.Workers,
    printing: opt.Printing,
) -> None:
    """Say what slows a run down, in a few sentences, then in tables: bubble, stragglers, schedule, theory, what-if.

    DIR holds profiles; a span table written with --format parquet or csv does as well.
    """
    memory.give_back()
    from trace_export import api, one_processor

    if workers.jobs is None:
        one_processor.allow()
    if format == "text" and path is not None and path.suffix in OF_NAME:
        format = OF_NAME[path.suffix]
    html = format == "html"
    heat_map = format if format in ("svg", "png") else None
    if path is not None and not html and heat_map is None:
        raise UsageError(
            f"names a place for the page, and --format is {format}",
            "add --format html, svg or png, or let it end so",
            parameter="path",
        )
    with terminal.progress(printing) as progress:
        done = api.report(
            **source.arguments(),
            **passes.arguments(),
            **sizes.arguments(),
            **selection.arguments(),
            **clocks.arguments(),
            **workers.arguments(),
            html=html,
            heat_map=heat_map,
            path=path,
            force=force,
            progress=progress,
        )
    if printing.json:
        terminal.json(done.report.json())
    elif format == "markdown":
        terminal.text(done.report.markdown(done.run.name))
    elif not printing.quiet:
        terminal.verdict(done.run.name, done.report)
        if format == "text":
            terminal.tables(done.report.tables())
        terminal.notes(done.run.notes, printing.verbose)
        terminal.files(done.files)
    raise typer.Exit(terminal.conclude([done.run], printing))
