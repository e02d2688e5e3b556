"""A watch of the recorder's files says of each step what was simulated."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from samples.generators import recorder as generate
from samples.generators.pipeline import Block, simulate, zb_h1
from tests.live.test_look import looks, steps

STAGES, STEPS = 4, range(7)
CLOCK_ERROR_NS = 2_400_000


def test_each_step_is_reported_once_on_aligned_clocks(tmp_path: Path) -> None:
    orders = [zb_h1(stage, STAGES, 6) for stage in range(STAGES)]
    blocks = simulate(orders, generate.TIMING, STEPS, random.Random(1)).blocks
    began = generate.TIMING.first - 10**9

    def write(step: int) -> None:
        for rank in range(STAGES):
            new = [block for block in blocks if block.step == step]
            error, host = CLOCK_ERROR_NS * (rank // 2), f"node{rank // 2}"
            text = generate.file(new, rank, host=host, error_ns=error, began=began, stage=rank, pp_size=STAGES)
            with (tmp_path / f"rank{rank}.blocks").open("a") as file:
                file.write(text)

    write(0)
    result = looks(tmp_path, [lambda step=step: write(step) for step in STEPS[1:]])  # type: ignore[misc]
    assert steps(result) == list(STEPS)
    assert [look.problem for look in result if look.problem] == []
    for step in (step for look in result for step in look.steps):
        work = [block for block in blocks if block.step == step.step and block.kind != "OPT"]
        length = max(block.end_ns for block in work) - min(block.start_ns for block in work)
        assert step.pipeline_ns == pytest.approx(length, abs=100_000)  # of 200 ms; one clock is 2.4 ms off
    assert result[-1].run is not None
    assert result[-1].run.spans["step"].unique().sort().to_list() == [*STEPS[-3:]]


def test_a_rank_that_was_started_again_alone_has_no_steps_with_the_others(tmp_path: Path) -> None:
    orders = [zb_h1(stage, STAGES, 6) for stage in range(STAGES)]
    first, second = (simulate(orders, generate.TIMING, range(3), random.Random(seed)).blocks for seed in (1, 2))
    hour = 3600 * 10**9
    second = [replace(block, start_ns=block.start_ns + hour, end_ns=block.end_ns + hour) for block in second]

    def write(blocks: list[Block], ranks: range, began: int) -> None:
        for rank in ranks:
            path = tmp_path / f"rank{rank}.blocks"
            if path.is_file():
                path.rename(tmp_path / f"rank{rank}.blocks.earlier")
            path.write_text(generate.file(blocks, rank, host="node0", began=began, stage=rank, pp_size=STAGES))

    write(first, range(STAGES), generate.TIMING.first - 10**9)
    write(second, range(1), generate.TIMING.first + hour - 10**9)
    result = looks(tmp_path, [lambda: write(second, range(1, STAGES), generate.TIMING.first + hour - 10**9)])
    assert [[step.step for step in look.steps] for look in result] == [[], [0, 1, 2]]
