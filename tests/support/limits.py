"""Python with bounds that the system enforces."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.conftest import ROOT


def limited(memory: int, seconds: float, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Python with these arguments and bounds on its private memory (bytes) and its processor time."""
    limits = f'ulimit -d {memory >> 10}; ulimit -t {round(seconds)}; exec "$@"'
    command = ["sh", "-c", limits, "sh", sys.executable, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "POLARS_MAX_THREADS": "1", "PYTHONWARNINGS": "error"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
