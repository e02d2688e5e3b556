"""`trace-export mcp`: answers the questions of agents about runs, by the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def mcp(
    places: Annotated[
        list[Path],
        typer.Argument(help="Folders or files of profiles, each a run; nothing else is read.", metavar="DIR..."),
    ],
) -> None:
    """Serve runs to an agent on standard input and output (Model Context Protocol); nothing is written."""
    from trace_export.agents.server import server

    server(places).run()
