"""Thousands of broken inputs for each reader: tables or one sentence, never anything else.

`--mutants 2000` is what CI runs; less by default, because each of them is a whole run of a reader.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.faults import read_mutants
from tests.faults.inputs import INPUTS
from tests.support.limits import limited


@pytest.mark.parametrize("kind", INPUTS)
def test_a_reader_survives_every_mutant(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    mutants = request.config.getoption("--mutants")
    ended = limited({}, kind, mutants, tmp_path, code="from tests.faults.read_mutants import main; main()")
    last = (ended.stdout.splitlines() or [""])[-1]
    assert ended.returncode != -signal.SIGXCPU, f"{kind}, {last}: takes more than {read_mutants.SECONDS} s"
    assert ended.returncode == 0, f"{kind}, {last}: {ended.stderr[-3000:]}"
    _, accepted, _, refused = last.split()
    assert int(accepted) > mutants // 40  # else the mutants are too coarse to reach the reader's own code
    assert int(refused)
