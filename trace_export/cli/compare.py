"""`trace-export compare A B`: two runs, or two steps of one, side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from trace_export.cli import load_options, tables, terminal
from trace_export.cli import options as opt
from trace_export.cli.export import Force, Format, Gzip

Steps = Annotated[str, typer.Option(help="Steps to compare: 2-4 or all.", metavar="LIST")]


def compare(
    a: Annotated[Path, typer.Argument(help="A folder of profiles, or a span table.", show_default=False)],
    b: Annotated[
        Path | None, typer.Argument(help="The other one; the same if only its steps differ.", show_default=False)
    ] = None,
    steps_a: Steps = "all",
    steps_b: Steps = "all",
    pp: opt.Pp = None,
    tp: opt.Tp = None,
    dp: opt.Dp = None,
    cp: opt.Cp = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder or file for one trace with both; none is written without it.", show_default=False),
    ] = None,
    format: Format = "perfetto,chrome",
    force: Force = False,
    gzip: Gzip = False,
    align: opt.Align = "auto",
    follow_links: opt.FollowLinks = False,
    jobs: opt.Jobs = None,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
    debug: opt.Debug = False,
) -> None:
    """Compare two runs, or two steps of one: step time, bubble and its causes, every kind of block on every stage.

    In the trace that --out asks for, the tracks of B lie below those of A, and both start at the same time.
    """
    sources = [
        load_options.load_options(
            path, steps=steps, pp=pp, tp=tp, dp=dp, cp=cp, align=align, jobs=jobs, follow_links=follow_links
        )
        for path, steps in ((a, steps_a), (b or a, steps_b))
    ]
    from trace_export.analysis.compare import compare as analyse
    from trace_export.export import load, locate
    from trace_export.render import WriteOptions, planned, write
    from trace_export.writers.outputs import Outputs

    target = WriteOptions(formats=tuple(f.strip() for f in format.split(",")), out=out, gzip=gzip, force=force)
    located = [locate(source) for source in sources]
    with (
        terminal.progress(quiet or json) as progress,
        Outputs((file for there in located for file in there.inputs), force=force) as outputs,
    ):
        if out is not None:
            outputs.check(planned(target, out))
        loaded = [load(source, progress, there) for source, there in zip(sources, located, strict=True)]
        one, other = (run.profile for run in loaded)
        result = analyse(one, other)
        if out is not None:
            write(one, replace(target, beside=other), out, outputs, progress=progress)
    if json:
        terminal.json(result.json())
    elif not quiet:
        tables.show(result.tables())
        terminal.notes([note for run in loaded for note in run.profile.notes])
        terminal.files(outputs.written)
    failures = [failure for run in loaded for failure in run.failures]
    terminal.errors(failures, debug)
    raise typer.Exit(3 if failures else 0)
