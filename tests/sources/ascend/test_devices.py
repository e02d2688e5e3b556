"""Several devices of one Ascend process: a rank for each on which markers are, else a refusal."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import trace_export
from samples.generators.ascend import Job, no_marker, record
from tests.sources.ascend.test_impossible_times import drawn, true
from trace_export.clocks.apply import task_batches
from trace_export.errors import TraceExportError

JOB = Job(stages=3, microbatches=4, steps=2, hosts=1, together=True)


def test_each_device_is_a_rank_with_its_transfers_and_tasks(tmp_path: Path) -> None:
    truth = record(tmp_path / "in", JOB)
    run = trace_export.load(tmp_path / "in", jobs=1, detail="kernels").align()
    assert run.ranks.select("rank", "rank_origin", "device").rows() == [(n, "inferred", n) for n in range(3)]
    for rank in range(3):
        assert drawn(run, rank) == true(truth.blocks, rank)
    sides = run.profile.p2p.group_by("rank").len().sort("rank")["len"].to_list()
    assert sides == [2 * 4 * 2, 2 * 4 * 4, 2 * 4 * 2]
    profile, failures = run._with_device_tasks([0, 1, 2], tmp_path)
    assert failures == []
    for rank in range(3):
        tasks = pl.concat(task_batches(profile, rank)).filter(pl.col("category") == "compute")
        of_rank = [b for b in truth.blocks if b.rank == rank]
        assert tasks.height == sum(3 if b.kind == "OPT" else 5 for b in of_rank)


def test_devices_without_markers_are_refused(tmp_path: Path) -> None:
    record(tmp_path, replace(JOB, marker=no_marker))
    with pytest.raises(TraceExportError, match="one process runs several GPUs, and no marker is on any of them"):
        trace_export.load(tmp_path, jobs=1)


@pytest.mark.parametrize("framework", ["pytorch", "mindspore"])
def test_a_text_export_of_several_devices_is_refused(framework: str, tmp_path: Path) -> None:
    """Its trace does not say on which of them a block ran."""
    record(tmp_path, Job(stages=1, microbatches=2, steps=1, hosts=1, framework=framework, text=True))
    (folder,) = tmp_path.glob("*/ASCEND_PROFILER_OUTPUT")
    (folder / "step_trace_time.csv").write_text("Device_id,Step,Computing\n0,1,5.5\n1,1,5.5\n")
    with pytest.raises(TraceExportError, match=r"runs several GPUs, and a text export .*; export .* export type db"):
        trace_export.load(tmp_path, jobs=1)
