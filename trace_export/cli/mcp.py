"""`trace-export mcp`: answers the questions of agents about runs, by the Model Context Protocol."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Unpack

from trace_export.options import Mcp


def mcp(**given: Unpack[Mcp]) -> None:
    """Serve runs to an agent on standard input and output (Model Context Protocol); nothing is written."""
    from trace_export.agents.server import server
    from trace_export.errors import TraceExportError

    if sys.stdin is None:
        what = "standard input is closed, and the agent asks there"
        raise TraceExportError(what, "let the agent start the command with pipes")
    server([Path(path) for path in given["paths"]]).run()
