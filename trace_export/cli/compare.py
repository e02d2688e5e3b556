"""`trace-export compare A B`: two runs, or two steps of one, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from trace_export.cli import options as opt
from trace_export.cli import terminal

Steps = Annotated[str, typer.Option(help="Steps to compare: 2-4 or all.", metavar="LIST")]


@opt.with_groups
def compare(
    a: Annotated[Path, typer.Argument(help="A folder of profiles, or a span table.", show_default=False)],
    b: Annotated[
        Path | None, typer.Argument(help="The other one; the same if only its steps differ.", show_default=False)
    ] = None,
    *,
    steps_a: Steps = "all",
    steps_b: Steps = "all",
    devices: opt.Devices = "all",
    ranks: opt.Ranks = "all",
    stages: opt.Stages = "all",
    window: opt.Time = None,
    pp: opt.Pp = None,
    tp: opt.Tp = None,
    dp: opt.Dp = None,
    cp: opt.Cp = None,
    host_ranges: opt.HostRanges = False,
    markers: opt.Markers = None,
    infer: opt.Infer = "auto",
    path: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder or file for one trace with both; none is written without it.", show_default=False
        ),
    ] = None,
    formats: opt.Formats = None,
    force: opt.Force = False,
    gzip: opt.Gzip = False,
    align: opt.Align = "auto",
    follow_links: opt.FollowLinks = False,
    jobs: opt.Jobs = None,
    printing: opt.Printing,
) -> None:
    """Compare two runs, or two steps of one: step time, bubble and its causes, every kind of block on every stage.

    In the chart that --out asks for, the tracks of B lie below those of A, and both begin every step at the same time.
    """
    from trace_export import api

    how: dict[str, Any] = {"infer": infer, "jobs": jobs}
    with terminal.progress(printing) as progress:
        done = api.compare(
            a, b, path, formats,
            steps_a=steps_a, steps_b=steps_b, devices=devices, ranks=ranks, stages=stages, window=window,
            host_ranges=host_ranges, markers=markers or (), pp=pp, tp=tp, dp=dp, cp=cp,
            force=force, gzip=gzip, align=align, follow_links=follow_links, progress=progress, **how,
        )  # fmt: skip
    if printing.json:
        terminal.json(done.comparison.json())
    elif not printing.quiet:
        terminal.sentences([sentence.text for sentence in done.comparison.verdict])
        terminal.tables(done.comparison.tables())
        terminal.notes_of_two(done.comparison.names, (done.a.notes, done.b.notes), printing.verbose)
        terminal.files(done.files)
    raise typer.Exit(terminal.conclude([done.a, done.b], printing))
