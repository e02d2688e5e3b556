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
    folder: opt.Folder = None,
    log_dir: opt.LogDir = None,
    *,
    formats: Annotated[
        str, typer.Option("--format", help="Any of html,parquet: one page, its tables.", metavar="LIST")
    ] = "html",
    path: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="The folder to write to, or the page; default: the log_dir.",
            show_default=False,
            metavar="PATH",
        ),
    ] = None,
    traces: Annotated[
        bool,
        typer.Option(
            "--traces", help="Also write the traces of the most typical replica and of those that have exceptions."
        ),
    ] = False,
    cache: opt.Cache = None,
    force: opt.Force = False,
    follow_links: opt.FollowLinks = False,
    ranks: Annotated[
        str, typer.Option(help="Read the replicas of these ranks only: 0,8-15 or all.", metavar="LIST")
    ] = "all",
    steps: Annotated[str, typer.Option(help="Steps to measure: 2-4 or all.", metavar="LIST")] = "all",
    pp: opt.Pp = None,
    tp: opt.Tp = None,
    dp: opt.Dp = None,
    cp: opt.Cp = None,
    host_ranges: opt.HostRanges = False,
    markers: opt.Markers = None,
    infer: opt.Infer = "auto",
    align: opt.Align = "auto",
    jobs: opt.Jobs = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            help="Read on the Dask cluster of this scheduler, tcp://HOST:PORT or tls://HOST:PORT (extra dask); its"
            " workers see the log_dir too.",
            metavar="ADDRESS",
            show_default=False,
        ),
    ] = None,
    printing: opt.Printing,
) -> None:
    """Show any number of ranks on one page: ranks × steps as a heat map, the stages, and what differs from its peers.

    Each pipeline replica is read, aligned and measured by itself; only small tables come back.
    """
    from trace_export import api
    from trace_export.scale import words

    how: dict[str, Any] = {"infer": infer, "jobs": jobs, "scheduler": scheduler, "cache": cache}
    with terminal.progress(printing) as progress:
        done = api.overview(
            opt.one_folder(folder, log_dir), path, formats,
            traces=traces, force=force, follow_links=follow_links, ranks=ranks, steps=steps, pp=pp, tp=tp, dp=dp, cp=cp,
            host_ranges=host_ranges, markers=markers or (), align=align, progress=progress, **how,
        )  # fmt: skip
    found = done.overview
    if printing.json:
        from trace_export.documents import encode
        from trace_export.scale.overview_document import overview_document

        terminal.json(encode(overview_document(found)))
    elif not printing.quiet:
        terminal.lead(words.heading(found))
        terminal.sentences(words.sentences(found))
        terminal.lines(words.exception_lines(found, EXCEPTIONS_SHOWN))
        terminal.notes(found.notes, printing.verbose)
        terminal.files(done.files)
    terminal.lost(found.failures.rows(), found.sources)
    warned = printing.strict and any(note.level == "warning" for note in found.notes)
    raise typer.Exit(3 if found.unread or warned else 0)
