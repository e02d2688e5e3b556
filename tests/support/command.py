"""The command line run in this process: a test that asks much of it cannot wait for an interpreter each time."""

from __future__ import annotations

import io
import os
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from typer.main import get_command

from trace_export.cli.app import app
from trace_export.errors import TraceExportError


@cache
def _parser() -> Any:
    """What Typer makes of the commands; else it makes it anew for each call, which takes longer than all the rest."""
    return get_command(app)


@dataclass(frozen=True)
class Ended:
    """How a command ended, named as in subprocess.CompletedProcess."""

    returncode: int
    stdout: str
    stderr: str


def command(*arguments: object, cwd: Path | None = None) -> Ended:
    """Runs `trace-export` with the arguments, in the folder `cwd`. An error that is none of ours passes."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with redirect_stdout(out), redirect_stderr(err), chdir(cwd or Path.cwd()):
        try:
            _parser()(
                [os.fspath(a) if isinstance(a, os.PathLike) else str(a) for a in arguments], prog_name="trace-export"
            )
        except SystemExit as end:
            code = end.code or 0
        except TraceExportError as error:
            code = error.exit_code
            print(f"trace-export: {error}", file=err)
    assert isinstance(code, int), code
    return Ended(code, out.getvalue(), err.getvalue())
