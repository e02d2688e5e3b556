"""`trace-export report`: how much bubble, where, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from trace_export.cli import terminal
from trace_export.cli.options import Force, Printing, Reading, Source, with_groups


@with_groups
def report(
    source: Source,
    *,
    format: Annotated[
        Literal["text", "html"], typer.Option("--format", help="text: on the terminal; html: one page with the chart.")
    ] = "text",
    path: Annotated[
        Path | None,
        typer.Option(
            "--out", help="The page, or its folder; default: pipeline_report.html in the log_dir.", show_default=False
        ),
    ] = None,
    force: Force = False,
    reading: Reading,
    printing: Printing,
) -> None:
    """Report the bubble of a run and its causes: per step and stage, stragglers, schedule, theory, what-if.

    DIR holds profiles; a span table written with --format parquet or csv does as well.
    """
    from trace_export import api

    html = format == "html"
    with terminal.progress(printing) as progress:
        done = api.report(
            **source.arguments(), **reading.arguments(), html=html, path=path, force=force, progress=progress
        )
    if printing.json:
        terminal.json(done.report.json())
    elif not printing.quiet:
        if not html:
            terminal.tables(done.report.tables())
        terminal.notes(done.run.notes)
        terminal.files(done.files)
    raise typer.Exit(terminal.conclude([done.run], printing))
