"""The program in processes of their own with bounds that the system enforces."""

import atexit
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from tests.conftest import ROOT

COMMAND = "from trace_export.cli import main; main()"
SERVER = """
import json, os, resource, sys
import msgspec, orjson, rich.console, rich.progress, scipy.sparse, typer

for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if child == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
for number, path in enumerate((os.devnull, job["stdout"], job["stderr"])):
    os.dup2(os.open(path, os.O_RDWR), number)
for kind, value in job["limits"]:
    resource.setrlimit(kind, (value, value))
sys.argv[1:] = job["arguments"]
exec(job["code"])
"""
"""Starts a process for each line that it reads, and prints how it ended. The process is a copy of this one, so that it
need not load these libraries. Polars is not among them: it starts threads when it is loaded, which a copy lacks."""


@cache
def _server() -> subprocess.Popen[str]:
    """The server of this session; it ends with it."""
    variables = {
        "PYTHONPATH": str(ROOT),
        "POLARS_MAX_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONWARNINGS": "error",
    }
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        env={**os.environ, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def end() -> None:
        server.communicate()

    atexit.register(end)
    return server


def limited(limits: dict[int, int], *arguments: object, code: str = COMMAND) -> subprocess.CompletedProcess[str]:
    """The command, or other code, with these arguments. `limits`: the kind of resource, as `resource` numbers it, and
    how much of it the process may have."""
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    given = [str(argument) for argument in arguments]
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "stdout", Path(folder) / "stderr"
        out.touch()
        err.touch()
        job = {"code": code, "arguments": given, "limits": [*limits.items()], "stdout": str(out), "stderr": str(err)}
        print(json.dumps(job), file=server.stdin, flush=True)
        ended = int(server.stdout.readline())
        return subprocess.CompletedProcess(given, ended, out.read_text(), err.read_text())
