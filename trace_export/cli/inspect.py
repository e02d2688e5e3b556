"""`trace-export inspect`: what lies in a folder; exports nothing."""

from __future__ import annotations

from trace_export.cli import load_options, terminal
from trace_export.cli import options as opt


def inspect(
    folder: opt.Folder = None,
    log_dir: opt.LogDir = None,
    follow_links: opt.FollowLinks = False,
    json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Say what lies in a folder: sources, ranks, hosts, stages, steps, clocks. Exports nothing."""
    import typer

    from trace_export.inspection import inspect as look

    with terminal.progress(json) as progress:
        result = look(
            load_options.load_options(load_options.folder(folder, log_dir), align="none", follow_links=follow_links),
            progress,
        )
    if json:
        terminal.json(result.json())
    else:
        terminal.inspection(result)
    terminal.errors(result.failures, debug)
    raise typer.Exit(0 if result.sources.height else 1)
