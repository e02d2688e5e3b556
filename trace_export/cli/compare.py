"""`trace-export compare A B`: two runs, or two steps of one, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trace_export.cli import load_options, tables, terminal
from trace_export.cli import options as opt
from trace_export.cli.export import Format, Gzip

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
    gzip: Gzip = False,
    align: opt.Align = "auto",
    jobs: opt.Jobs = None,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
    debug: opt.Debug = False,
) -> None:
    """Compare two runs, or two steps of one: step time, bubble and its causes, every kind of block on every stage.

    In the trace that --out asks for, the tracks of B lie below those of A, and both start at the same time.
    """
    sources = [
        load_options.load_options(path, steps=steps, pp=pp, tp=tp, dp=dp, cp=cp, align=align, jobs=jobs)
        for path, steps in ((a, steps_a), (b or a, steps_b))
    ]
    from trace_export.analysis.compare import compare as analyse
    from trace_export.export import load
    from trace_export.render import WriteOptions, write

    with terminal.progress(quiet or json) as progress:
        loaded = [load(source, progress) for source in sources]
    one, other = (run.profile for run in loaded)
    result = analyse(one, other)
    written = []
    if out is not None:
        formats = tuple(f.strip() for f in format.split(","))
        written = write(one, WriteOptions(formats=formats, out=out, gzip=gzip, beside=other), out)
    if json:
        typer.echo(result.json())
    elif not quiet:
        tables.show(result.tables())
        terminal.notes([note for run in loaded for note in run.profile.notes])
        terminal.files(written)
    failures = [failure for run in loaded for failure in run.failures]
    terminal.errors(failures, debug)
    raise typer.Exit(3 if failures else 0)
