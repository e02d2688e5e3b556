"""`trace-export report`: how much bubble, where, and why."""

from __future__ import annotations

from typing import Literal, Unpack

import typer

from trace_export.cli import terminal
from trace_export.cli.inputs import one_folder
from trace_export.errors import UsageError
from trace_export.options import Report, Reporting, part

OF_NAME: dict[str, Literal["html", "svg", "png"]] = {".html": "html", ".svg": "svg", ".png": "png"}
"""The format that the name of a file asks for."""


def report(**given: Unpack[Report]) -> None:
    """Say why the steps of a run are slow, what to do about it, and what that would gain.

    One screen: the answer, then steps, stages and causes. --full adds idle time, critical path, transfers, schedule and
    what other schedules would give; --format html draws the step in which the first cause is seen.

    DIR holds profiles; a span table written with --format parquet or csv does as well.
    """
    from trace_export import api

    path = given["path"]
    format = given["format"] or (OF_NAME.get(path.suffix, "text") if path else "text")
    html = format == "html"
    heat_map = format if format in ("svg", "png") else None
    if path is not None and not html and heat_map is None:
        printed = "--json" if given["json"] else f"--format {format}"
        remedy = f"leave --out out and add > {path}, or end the name in .html, .svg or .png"
        raise UsageError(f"{printed} prints on standard output", remedy)
    with terminal.progress(given) as progress:
        options: Reporting = {**part(given, Reporting), "progress": progress}
        done = api.report(one_folder(given), path, html=html, heat_map=heat_map, **options)
    if given["json"] or format == "json":
        terminal.json(done.report.json())
    elif format == "markdown":
        terminal.text(done.report.markdown(done.run.name, full=given["full"]))
    elif not given["quiet"]:
        result = done.report
        terminal.lead(f"{done.run.name}: {result.heading}")
        terminal.answer(result.verdict if given["full"] else result.answer)
        if format == "text":
            terminal.tables(result.tables() if given["full"] else result.brief())
            if not given["full"]:
                terminal.hint("Everything: --full. The first cause in a chart, for a browser: --format html.")
        terminal.notes(done.run.notes, given["verbose"])
        terminal.files(done.files)
    raise typer.Exit(terminal.conclude([done.run], given))
