"""Where nothing is planted nothing is named, and where ranks differ by chance only what that difference explains."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from samples.generators.data_parallel import Job, simulate
from samples.generators.pipeline import MS, US
from tests.support.rows import seeds
from tests.verdicts.cases import SHOWN_LAUNCHES, drawn_sound
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


@pytest.mark.parametrize("seed", seeds(2, 24))
def test_a_launch_that_only_some_ranks_show_is_no_late_start(seed: int, tmp_path: Path) -> None:
    """After a transfer blocks start sooner than after another block: a rank that waits for transfers shows nothing."""
    job, form = drawn_sound(seed)
    draw = random.Random(seed)
    if form != "ascend" and draw.random() >= 0.3:
        job = replace(job, schedule="interleaved")
    job = replace(job, microbatches=2 * job.stages, **SHOWN_LAUNCHES)
    job = replace(job, launch=draw.choice((70, 270, 470)) * US, forward=draw.choice((1, 2, 5)) * MS)
    assert causes(report(tmp_path, job, form)) == []


def test_data_that_wait_for_a_late_gather_make_no_slow_links(tmp_path: Path) -> None:
    """Stages on hosts of their own, whose clocks the order of blocks alone aligns: they may be off by as much as data
    seem to be on their way. The second stage gathers its parameters, and the data of all micro-batches wait for it."""
    job = Job(
        replicas=3, microbatches=4, hosts=4, forward=MS, backward=2 * MS, hop=50 * US, gap=MS, jitter=0.01, seed=2
    )
    named = causes(report(tmp_path, job, "work"))
    assert [sentence["code"] for sentence in named] == ["long-pause"]


def test_receives_that_are_posted_before_a_block_ends_are_not_late(tmp_path: Path) -> None:
    """Streams overlap by a tenth of a block, and as much earlier the rank posts what it receives next."""
    job = Job(schedule="gpipe", forward=2 * MS, backward=4 * MS, hop=400 * US, overlap=200 * US, jitter=0.001)
    assert causes(report(tmp_path, job, "nsys")) == []


@pytest.mark.parametrize("seed", seeds(1, 8))
def test_collectives_of_other_members_are_no_peers(seed: int, tmp_path: Path) -> None:
    """The first and the last stage reduce their embedding, which takes longer than the norm of all ranks."""
    job = replace(drawn_sound(seed)[0], stages=3, replicas=2, microbatches=6, tensor=1, tied=3 * MS)
    assert causes(report(tmp_path, job, ("kineto", "table")[seed % 2])) == []
