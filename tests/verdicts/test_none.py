"""Where nothing is planted nothing is named, and where ranks differ by chance only what that difference explains."""

from __future__ import annotations

from pathlib import Path

import pytest

from samples.generators.data_parallel import simulate
from tests.support.rows import seeds
from tests.verdicts.cases import drawn_sound
from tests.verdicts.judge import bubble, causes, report


@pytest.mark.parametrize("seed", seeds(3, 200))
def test_nothing_is_named_in_a_sound_run(seed: int, tmp_path: Path) -> None:
    job, form = drawn_sound(seed)
    document = report(tmp_path, job, form)
    assert causes(document) == []
    assert bubble(document) == pytest.approx(simulate(job).bubble(job), abs=5e-4)


@pytest.mark.parametrize("seed", seeds(1, 40))
def test_ranks_that_differ_a_little_cost_a_little(seed: int, tmp_path: Path) -> None:
    """With a standard deviation s of the ranks' speeds no cause has a gain beyond 3 s of the step."""
    spread = 0.003
    job, form = drawn_sound(seed, spread=spread)
    step_ns = simulate(job).step_ns
    gains = [sentence["facts"]["gain_ns"] for sentence in causes(report(tmp_path, job, form))]
    assert all(gain <= 3 * spread * step_ns for gain in gains)
