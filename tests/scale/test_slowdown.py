"""The slowdown of the workers of an overview: that of a run read whole, whatever its parts are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import trace_export
from samples.generators.paddle import Job, write_logs
from tests.support.many_ranks import ManyRanks
from trace_export.analysis.what_if import Slowdown, what_if
from trace_export.model import WORK_KINDS, Profile
from trace_export.pipeline.step_operations import step_operations
from trace_export.scale import parts, slowdown


def of_blocks(profile: Profile, without: tuple[int, ...] = ()) -> Slowdown:
    """As `what_if` computes it for the blocks of a run, without some replicas."""
    ranks = profile.ranks.filter(~pl.col("dp").is_in(without))
    spans = profile.spans.filter(pl.col("kind").is_in(WORK_KINDS)).join(ranks, on="rank", how="semi")
    alone = replace(profile, ranks=ranks, spans=spans, collectives=profile.collectives.clear())
    operations = step_operations(alone).usual
    assert operations is not None
    return what_if(operations)


@pytest.fixture(scope="module")
def expected(planted: tuple[Path, ManyRanks]) -> Slowdown:
    """Of the planted run, read whole."""
    folder, run = planted
    return of_blocks(trace_export.load(folder).align().profile, run.planted.replicas)


def test_replicas_that_are_read_together_have_the_slowdown_of_the_run(tmp_path: Path) -> None:
    write_logs(tmp_path / "logs", Job(4, 6, data=6, machines=6, clock_errors_us=(0,) * 6))
    found = trace_export.overview(tmp_path / "logs", tmp_path, pp=4, align="none", jobs=1).overview.slowdown
    expected = of_blocks(trace_export.load(tmp_path / "logs", pp=4).profile)
    assert found is not None
    assert found.replicas == list(range(6))
    np.testing.assert_allclose(found.workers, expected.workers, rtol=1e-6)
    assert expected.workers.max() > 1.003
    assert found.total == pytest.approx(expected.total, rel=1e-6)
    assert 1 <= found.fidelity <= expected.fidelity  # which counts that replicas do not begin at once


def test_parts_have_nearly_the_slowdown_of_the_run(
    planted: tuple[Path, ManyRanks], expected: Slowdown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for what transfers and clocks are estimated to be in each part: here S is up to 1.17."""
    monkeypatch.setattr(parts, "RANKS_A_PART", 16)
    folder, run = planted
    found = trace_export.overview(folder, tmp_path, jobs=1).overview.slowdown
    assert found is not None
    assert found.replicas == [n for n in range(run.replicas) if n not in run.planted.replicas]
    np.testing.assert_allclose(found.workers, expected.workers, atol=5e-3)
    assert expected.workers.max() > 1.15


def test_the_workers_with_slow_ranks_are_the_slowest(
    planted: tuple[Path, ManyRanks], written: tuple[Path, trace_export.Overviewed]
) -> None:
    """Of tensor-parallel ranks the first, whose blocks the others' are taken for; nearer the ends of a step they cost
    more, but each costs more than any worker without one."""
    run, workers = planted[1], written[1].overview.workers
    slow = {rank for rank in run.planted.ranks if run.place(rank)[2] == 0}
    assert len(slow) >= 3
    assert set(workers.sort("slowdown", descending=True)["rank"].head(len(slow))) == slow
    assert workers.equals(pl.read_parquet(written[0] / "pipeline_overview.workers.parquet"))
    assert workers.height == (run.replicas - 1) * run.stages


def test_of_many_lengths_the_first_steps_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_logs(tmp_path / "logs", Job(2, 4, data=4))
    whole = trace_export.overview(tmp_path / "logs", tmp_path, pp=2, jobs=1).overview.slowdown
    monkeypatch.setattr(slowdown, "MOST_LENGTHS", 1)
    first = trace_export.overview(tmp_path / "logs", tmp_path, pp=2, jobs=1).overview.slowdown
    assert whole is not None
    assert first is not None
    assert [step for _, step in whole.steps] == [2, 3, 4]
    assert [step for _, step in first.steps] == [2]


def test_a_run_without_one_of_its_stages_has_none(tmp_path: Path) -> None:
    write_logs(tmp_path / "logs", Job(2, 4, data=4))
    for rank in (1, 3, 5, 7):
        (tmp_path / "logs" / f"workerlog.{rank}").unlink()
    found = trace_export.overview(tmp_path / "logs", tmp_path, pp=2, jobs=1).overview
    assert found.slowdown is None
    assert found.workers.is_empty()
    assert "Slowdown by worker" not in (tmp_path / "pipeline_overview.html").read_text(encoding="utf-8")
