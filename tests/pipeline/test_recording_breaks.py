"""Pauses of a job, and breaks of its recording: in either no rank has a block for long."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from samples.generators import recorder
from samples.generators.pipeline import one_f_one_b, simulate
from trace_export import load

PAUSE_NS = 30 * 10**9


@pytest.mark.parametrize("steps", [(5, 6, 7, 8), (5, 6, 9, 10)])
def test_where_recorded_steps_go_on_by_one_the_job_paused(steps: tuple[int, ...], tmp_path: Path) -> None:
    """Half a minute before the third of four steps; where steps were passed over meanwhile, it was not recorded."""
    orders = [one_f_one_b(stage, 2, 4) for stage in range(2)]
    made = simulate(orders, recorder.TIMING, range(4), random.Random(1)).blocks
    blocks = [
        replace(b, step=steps[b.step], start_ns=b.start_ns + moved, end_ns=b.end_ns + moved)
        for b in made
        for moved in (PAUSE_NS if b.step > 1 else 0,)
    ]
    for rank in range(2):
        facts = {"world": 2, "stage": rank, "pp_size": 2}
        text = recorder.file(blocks, rank, host="node0", began=recorder.TIMING.first - 10**9, **facts)
        (tmp_path / f"rank{rank}.blocks").write_text(text)
    run = load(tmp_path)
    paused = steps[2] == 7
    assert [note.code for note in run.notes if note.code == "recording-breaks"] == (
        [] if paused else ["recording-breaks"]
    )
    times = run.report().steps["step_ns"].to_list()
    if paused:
        assert times[1] > PAUSE_NS
    else:
        assert times[1] is None
