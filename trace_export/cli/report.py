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
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="Print all sentences and tables, with what the columns mean; without it what fits on one screen.",
            rich_help_panel=opt.TERMINAL,
        ),
    ] = False,
    force: opt.Force = False,
    clocks: opt.Clocks,
    workers: opt.Workers,
    printing: opt.Printing,
) -> None:
    """Say why the steps of a run are slow, what to do about it, and what that would gain.

    One screen: the answer, then steps, stages and causes. --full adds idle time, critical path, transfers, schedule and
    what other schedules would give; --format html draws the step in which the first cause is seen.

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
        terminal.text(done.report.markdown(done.run.name, full=full))
    elif not printing.quiet:
        found = done.report
        terminal.lead(f"{done.run.name}: {found.heading}")
        terminal.answer(found.verdict if full else found.answer)
        if format == "text":
            terminal.tables(found.tables() if full else found.brief())
            if not full:
                terminal.hint("All tables: --full. With a chart of the step, for a browser: --format html.")
        terminal.notes(done.run.notes, printing.verbose)
        terminal.files(done.files)
    raise typer.Exit(terminal.conclude([done.run], printing))
