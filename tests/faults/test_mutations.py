"""Thousands of broken inputs for each reader: tables or one sentence, never anything else.

`--mutants 2000` is what CI runs; less by default, because each of them is a whole run of a reader.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.faults import read_mutants
from tests.faults.inputs import INPUTS


@pytest.mark.parametrize("kind", INPUTS)
def test_a_reader_survives_every_mutant(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    mutants = request.config.getoption("--mutants")
    ended = subprocess.run(
        [sys.executable, "-m", "tests.faults.read_mutants", kind, str(mutants), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"},
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    last = (ended.stdout.splitlines() or [""])[-1]
    assert ended.returncode != -signal.SIGXCPU, f"{kind}, {last}: takes more than {read_mutants.SECONDS} s"
    assert ended.returncode == 0, f"{kind}, {last}: {ended.stderr[-3000:]}"
    _, accepted, _, refused = last.split()
    assert int(accepted) > mutants // 20  # else the mutants are too coarse to reach the reader's own code
    assert int(refused)
