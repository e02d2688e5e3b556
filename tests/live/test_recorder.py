"""A watch of the recorder's files says of each step what was simulated."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from samples.generators import recorder as generate
from samples.generators.pipeline import Block, simulate, zb_h1
from trace_export.live.look import Watch
from trace_export.read import load_options
from trace_export.run import Request

STAGES, STEPS = 4, range(7)
CLOCK_ERROR_NS = 2_400_000


def test_each_step_is_reported_once_on_aligned_clocks(tmp_path: Path) -> None:
    orders = [zb_h1(stage, STAGES, 6) for stage in range(STAGES)]
    blocks = simulate(orders, generate.TIMING, STEPS, random.Random(1)).blocks
    began = generate.TIMING.first - 10**9

    def writing() -> Iterator[None]:
        for step in STEPS:
            for rank in range(STAGES):
                new = [block for block in blocks if block.step == step]
                error = CLOCK_ERROR_NS * (rank // 2)
                host = f"node{rank // 2}"
                text = generate.file(new, rank, host=host, error_ns=error, began=began, stage=rank, pp_size=STAGES)
                with (tmp_path / f"rank{rank}.blocks").open("a") as file:
                    file.write(text)
            yield None

    request = Request(load_options(tmp_path, {}))
    looks = list(Watch(request, 3, slowdown=False).looks(writing()))
    found = [step for look in looks for step in look.steps]
    assert [step.step for step in found] == list(STEPS)
    assert [look.problem for look in looks if look.problem] == []
    for step in found:
        work = [block for block in blocks if block.step == step.step and block.kind != "OPT"]
        length = max(block.end_ns for block in work) - min(block.start_ns for block in work)
        assert step.pipeline_ns == pytest.approx(length, abs=100_000)  # of 200 ms; one clock is 2.4 ms off
    assert looks[-1].run is not None
    assert looks[-1].run.spans["step"].unique().sort().to_list() == [*STEPS[-3:]]


def test_a_rank_that_was_started_again_alone_has_no_steps_with_the_others(tmp_path: Path) -> None:
    orders = [zb_h1(stage, STAGES, 6) for stage in range(STAGES)]
    first, second = (simulate(orders, generate.TIMING, range(3), random.Random(seed)).blocks for seed in (1, 2))
    hour = 3600 * 10**9
    second = [replace(block, start_ns=block.start_ns + hour, end_ns=block.end_ns + hour) for block in second]

    def write(blocks: list[Block], rank: int, began: int) -> None:
        path = tmp_path / f"rank{rank}.blocks"
        if path.is_file():
            path.rename(tmp_path / f"rank{rank}.blocks.earlier")
        path.write_text(generate.file(blocks, rank, host="node0", began=began, stage=rank, pp_size=STAGES))

    def writing() -> Iterator[None]:
        for rank in range(STAGES):
            write(first, rank, generate.TIMING.first - 10**9)
        write(second, 0, generate.TIMING.first + hour - 10**9)
        yield None
        for rank in range(1, STAGES):
            write(second, rank, generate.TIMING.first + hour - 10**9)
        yield None

    looks = list(Watch(Request(load_options(tmp_path, {})), 3, slowdown=False).looks(writing()))
    assert [[step.step for step in look.steps] for look in looks] == [[], [0, 1, 2]]
