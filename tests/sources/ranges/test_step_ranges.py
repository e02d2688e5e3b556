"""The steps of blocks by the ranges around steps, some of which the profiler lost."""

import random
from pathlib import Path

import pytest

import trace_export
from samples.generators import nsys
from samples.generators.pipeline import with_evaluations
from tests.support.captures import CAPTURES, drawn, truth
from tests.support.rows import crossed

STAGES, MICROBATCHES, STEPS = 4, 6, 5
LOST = {"the first": {0}, "the last": {4}, "one between": {2}, "both ends": {0, 4}, "two at the end": {3, 4}}


@pytest.mark.parametrize(("lost", "capture", "dialect"), crossed(LOST, CAPTURES, [nsys.Dialect, nsys.Plain]))
def test_a_step_whose_range_was_lost_is_a_step(
    tmp_path: Path, lost: str, capture: str, dialect: type[nsys.Dialect]
) -> None:
    named = dialect()
    named.lost = LOST[lost]
    blocks = nsys.blocks_of(STAGES, MICROBATCHES, STEPS, random.Random(3), split=named.split)
    epoch = CAPTURES[capture](tmp_path, blocks, named)
    run = trace_export.load(tmp_path)
    assert drawn(run.profile) == truth(blocks, epoch)
    assert run.profile.steps["whole"].to_list() == [True] * STEPS


@pytest.mark.parametrize("capture", CAPTURES)
def test_an_evaluation_behind_the_last_range_is_no_step(tmp_path: Path, capture: str) -> None:
    trained = nsys.blocks_of(STAGES, MICROBATCHES, STEPS, random.Random(3), split=False)
    blocks = with_evaluations(trained, [STEPS], MICROBATCHES, nsys.TIMING)
    CAPTURES[capture](tmp_path, blocks, nsys.Plain())
    run = trace_export.load(tmp_path)
    assert run.profile.evaluations.height == STAGES * MICROBATCHES
    assert run.profile.steps["step"].to_list() == list(range(STEPS))
