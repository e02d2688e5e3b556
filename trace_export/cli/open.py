"""`trace-export open FILE`: show a finished trace in the Perfetto UI."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

import typer

from trace_export.errors import TraceExportError, UsageError
from trace_export.options import Open
from trace_export.units import nanoseconds


def open_trace(**given: Unpack[Open]) -> None:
    """Show a trace in the Perfetto UI, with its first step in view and its critical path, if it has one, at the top.

    The trace stays on this machine: it is served from 127.0.0.1 to that one page, and the command ends when the page
    has it (with --offline, when you press Ctrl-C).
    """
    from trace_export.viewer import serve
    from trace_export.viewer.first_step import first_step, trace_in, track_to_pin

    offline, no_browser, timeout = given["offline"], given["no_browser"], given["timeout"]
    idle_s = nanoseconds(timeout, "timeout") / 1e9
    if idle_s <= 0:
        raise UsageError(f'"{timeout}" is not above 0', "give a positive time, such as 90s", parameter="timeout")
    file = trace_in(Path(given["file"]))
    view = first_step(file)
    with serve.with_bundled_ui(file) if offline else serve.for_public_ui(file) as server:
        link = serve.link(server, view, track_to_pin(file))
        shown = not no_browser and serve.open_browser(link)
        typer.echo(f"{'Opening' if shown else 'Open this link in a browser:'} {link}")
        typer.echo(_advice(server.host, offline, timeout), err=True)
        if serve.is_large(file):
            advice = "load it with trace_processor --httpd, or export fewer --steps or --ranks"
            typer.echo(f"The trace is large: if the page runs out of memory, {advice}.", err=True)
        fetched = server.serve(idle_s, once=not offline)
    if not fetched:
        raise TraceExportError(
            f"no browser requested {file.name} within {timeout}", "open the link, or give a longer --timeout"
        )
    typer.echo("The page has the trace; the server has ended.", err=True)


def _advice(host: str, offline: bool, timeout: str) -> str:
    remote = f"If the browser runs on another machine, there: ssh -L {host.rpartition(':')[2]}:{host} THIS_MACHINE"
    if offline:
        return f"Ctrl-C ends the server, and so does {timeout} without a request. {remote}"
    return f"If the browser asks whether the page may reach this device, allow it. {remote}"
