"""`trace-export overview`: any number of ranks on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from trace_export.cli import options as opt
from trace_export.cli import terminal

EXCEPTIONS_SHOWN = 20


@opt.with_groups
def overview(
    source: opt.Source,
    passes: opt.Passes,
    sizes: opt.Sizes,
    *,
    ranks: Annotated[
        str,
        typer.Option(
            help="Read the replicas of these ranks only: 0,8-15 or all.", metavar="LIST", rich_help_panel=opt.SELECTION
        ),
    ] = "all",
    run: opt.RunNumber = "latest",
    replica: Annotated[
        str,
        typer.Option(
            help="Read these data-parallel copies of the pipeline only.", metavar="LIST", rich_help_panel=opt.SELECTION
        ),
    ] = "all",
    steps: Annotated[
        str, typer.Option(help="Steps to measure: 2-4 or all.", metavar="LIST", rich_help_panel=opt.SELECTION)
    ] = "all",
    stages: opt.Stages = "all",
    window: opt.Time = None,
    cache: opt.Cache = None,
    formats: Annotated[
        str,
        typer.Option(
            "--format", help="Any of html,parquet: one page, its tables.", metavar="LIST", rich_help_panel=opt.OUTPUT
        ),
    ] = "html",
    path: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="The folder to write to, or the page; default: the log_dir.",
            show_default=False,
            metavar="PATH",
            rich_help_panel=opt.OUTPUT,
        ),
    ] = None,
    traces: Annotated[
        bool,
        typer.Option(
            "--traces",
            help="Also write the traces of the most typical replica and of those that have exceptions.",
            rich_help_panel=opt.OUTPUT,
        ),
    ] = False,
    force: opt.Force = False,
    align: opt.Align = "auto",
    jobs: opt.Jobs = None,
    scheduler: opt.Scheduler = None,
    printing: opt.Printing,
) -> None:
    """Show any number of ranks on one page: ranks × steps as a heat map, the stages, and what differs from its peers.

    Of more than 1,024 ranks each pipeline replica is read, aligned and measured by itself; only small tables come back.
    """
    from trace_export import api
    from trace_export.scale import words

    given: dict[str, Any] = {**source.arguments(), **passes.arguments(), **sizes.arguments()}
    with terminal.progress(printing) as progress:
        done = api.overview(
            path=path,
            formats=formats,
            traces=traces,
            cache=cache,
            force=force,
            ranks=ranks,
            run=run,
            replica=replica,
            steps=steps,
            stages=stages,
            window=window,
            align=align,
            jobs=jobs,
            scheduler=scheduler,
            progress=progress,
            **given,
        )
    found = done.overview
    if printing.json:
        from trace_export.documents import encode
        from trace_export.scale.overview_document import overview_document

        terminal.json(encode(overview_document(found)))
    elif not printing.quiet:
        terminal.lead(words.heading(found))
        terminal.sentences([sentence.text for sentence in words.sentences(found)])
        terminal.lines(words.exception_lines(found, EXCEPTIONS_SHOWN))
        terminal.notes(found.notes, printing.verbose)
        terminal.files(done.files)
    terminal.lost(found.failures.rows(), found.sources)
    warned = printing.strict and any(note.level == "warning" for note in found.notes)
    raise typer.Exit(3 if found.unread or warned else 0)
