"""What `export` says of the steps of a run: means, by the times of its blocks."""

from pathlib import Path

import pytest

import trace_export
from samples.generators.data_parallel import Job, simulate, write_table
from samples.generators.pipeline import MS
from trace_export.cli.summaries import run_rows


@pytest.mark.parametrize("steps", ["0-2", "1"])
def test_the_times_of_steps_are_means_and_of_one_step_its_own(steps: str, tmp_path: Path) -> None:
    """Lengths vary so much that no mean is a median."""
    job = Job(replicas=1, steps=4, jitter=0.2)
    run = simulate(job)
    write_table(tmp_path, job)
    (table,) = tmp_path.iterdir()
    words = dict(run_rows(trace_export.load(table, jobs=1, steps=steps).summary()))["steps"]
    first, last = int(steps[0]), int(steps[-1])
    lengths = []
    for step in range(first, last + 1):
        work = [b for b in run.blocks if b.step == step and b.kind != "OPT"]
        lengths.append(max(b.end_ns for b in work) - min(b.start_ns for b in work))
    mean = sum(lengths) / len(lengths) / MS
    assert f"pipeline time {float(f'{mean:.3g}'):g} ms" in words
    assert ("(means)" in words) is (len(lengths) > 1)
    assert "median" not in words
