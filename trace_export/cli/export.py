"""`trace-export export` (the default), and a command for each format, which looks for that one only."""

from __future__ import annotations

from pathlib import Path

import typer

from trace_export.cli import options as opt
from trace_export.cli import terminal
from trace_export.errors import UsageError
from trace_export.sources.formats import of_command


def purpose(name: str) -> str:
    """What the help says of `export`, and of the command of each format; they differ in what they look for."""
    if name == "export":
        return "Draw the profiles in a folder; the format is detected."
    return f"Draw {' and '.join(row.title for row in of_command(name))}."


@opt.with_groups
def command(
    ctx: typer.Context,
    source: opt.Source,
    passes: opt.Passes,
    sizes: opt.Sizes,
    selection: opt.Selection,
    drawing: opt.Drawing,
    figures: opt.Figures,
    clocks: opt.Clocks,
    workers: opt.Workers,
    printing: opt.Printing,
) -> None:
    from trace_export import api, one_processor
    from trace_export.cli import summaries

    if workers.jobs is None:
        one_processor.allow()
    family = None if ctx.info_name == "export" else ctx.info_name
    if family and not (source.folder or source.log_dir or workers.at) and Path(family).is_dir():
        hint = f"the folder {family} here is given as ./{family}, because {family} is also a command"
        raise UsageError("no folder is given", hint, parameter="log_dir")
    with terminal.progress(printing) as progress:
        done = api.export(
            **source.arguments(),
            **passes.arguments(),
            **sizes.arguments(),
            **selection.arguments(),
            **vars(drawing),
            **clocks.arguments(),
            **workers.arguments(),
            figure=figures.style(),
            family=family,
            progress=progress,
        )
    if printing.json:
        from trace_export.analysis.run_document import export_document
        from trace_export.documents import encode

        terminal.json(encode(export_document(done.run.summary(), done.files)))
    elif not printing.quiet:
        terminal.facts(summaries.run_rows(done.run.summary()))
        terminal.notes(done.run.notes, printing.verbose)
        terminal.files(done.files)
        if drawing.detail != "spans":
            terminal.hint("communication and device tasks: click the arrow of the group Ranks, below the stages")
    raise typer.Exit(terminal.conclude([done.run], printing))
