"""Thousands of broken inputs for each reader: tables or one sentence, never anything else.

`--mutants 2000` is what CI runs; less by default, because each of them is a whole run of a reader.
"""

import signal
from pathlib import Path

import pytest

from tests.faults import read_mutants
from tests.faults.inputs import INPUTS
from tests.support.limits import limited

PARTS = 2
"""The number of processes that take the readers in turns: one for each would begin longer than it reads."""


@pytest.mark.parametrize("part", range(PARTS))
def test_readers_survive_every_mutant(part: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    mutants, kinds = request.config.getoption("--mutants"), list(INPUTS)[part::PARTS]
    code = "from tests.faults.read_mutants import main; main()"
    ended = limited({}, ",".join(kinds), mutants, tmp_path, code=code)
    lines = ended.stdout.splitlines() or [""]
    assert ended.returncode != -signal.SIGXCPU, f"{lines[-1]}: takes more than {read_mutants.SECONDS} s"
    assert ended.returncode == 0, f"{lines[-1]}: {ended.stderr[-3000:]}"
    ends = [line.split() for line in lines if " accepted " in line]
    assert [kind for kind, *_ in ends] == kinds
    for _, _, accepted, _, refused in ends:
        assert int(accepted) > mutants // 40  # else the mutants are too coarse to reach the reader's own code
        assert int(refused)
