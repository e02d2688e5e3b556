"""What `report` says of a run that lacks ranks."""

import shutil
from pathlib import Path

import pytest

import trace_export
from samples.generators import nsys
from samples.generators.data_parallel import WRITERS, Job
from trace_export import api


def test_missing_ranks_in_exports_of_nsight_systems(tmp_path: Path) -> None:
    """Stages 2 and 3 lie in the export that is not there."""
    nsys.write_planted(tmp_path, nsys.TIMING)
    (tmp_path / "node1.sqlite").unlink()
    said = api.report(tmp_path, jobs=1).report.verdict[0]
    assert said.code == "missing-ranks"
    assert said.text.startswith("No rank of stages 2-3 of 8 has a profile here")
    assert f"add their profiles to {tmp_path}" in said.next


def test_a_slow_host_whose_logs_are_lost_is_not_denied(tmp_path: Path) -> None:
    """Eight replicas of eight stages on 16 hosts. The others wait for the lost one, which has four ranks of stage 1:
    nothing among them is slow, and another schedule would not help."""
    job = Job(stages=8, replicas=8, hosts=16, slow={(replica, 1): 1.05 for replica in range(4)})
    WRITERS["paddle"](tmp_path, job)
    shutil.rmtree(tmp_path / "machine2")
    result = api.report(tmp_path, jobs=1).report
    missing, nothing, step = result.verdict[:3]
    lost = f"ranks {job.rank(0, 1)}-{job.rank(3, 1)}"
    assert missing.code == "missing-ranks"
    assert f"profiles are missing ({lost})" in missing.text
    assert missing.facts["ranks"] == lost.removeprefix("ranks ")
    assert missing.facts["missing"] == 4
    assert nothing.code == "nothing-stands-out"
    assert nothing.text.endswith("They may wait for ranks that were not.")
    assert nothing.next == "read the profiles of all ranks"
    assert "from ordinary delays and waits for ranks that were not read" in step.text


def test_a_cause_without_a_gain_has_no_band(tmp_path: Path) -> None:
    """Without the log of a stage nobody knows what the slow rank of another one costs."""
    WRITERS["paddle"](tmp_path, Job(stages=4, replicas=1, slow_ranks={3: 1.4}))
    (tmp_path / "workerlog.1").unlink()
    report = api.report(tmp_path, jobs=1).report
    assert report.causes.select("code", "gain_ns", "band").rows() == [("slow-rank", None, None)]
    of = (report.brief(), ("share %", "gain ms", "± %")), (report.tables(), ("gain ms", "gain %", "band %"))
    for tables, names in of:
        frame = next(table.frame for table in tables if table.title == "Causes")
        assert frame.select(names).row(0) == (None, None, None)


@pytest.mark.parametrize(
    ("ranks", "deeper"),
    [
        pytest.param("0", "the one stage", marks=pytest.mark.slow),
        ("0-3", "the last of the 4 stages"),
        ("1-2", "the last of the 2 stages"),
        pytest.param("3", "the one stage", marks=pytest.mark.slow),
        ("4-7", ""),
        pytest.param("all", "", marks=pytest.mark.slow),
    ],
)
def test_some_ranks_of_a_pipeline_are_not_taken_for_all(ranks: str, deeper: str, tmp_path: Path) -> None:
    """The first of eight stages send activations to others, which the exports do not name."""
    nsys.write_planted(tmp_path, nsys.TIMING)
    done = api.report(tmp_path, ranks=ranks, jobs=1)
    warned = [note.text for note in done.run.notes if note.code == "stages-deeper" and note.level == "warning"]
    assert len(warned) == bool(deeper)
    assert all(text.startswith(f"{deeper} that w") for text in warned)
    step = next(each for each in done.report.verdict if each.code == "step")
    assert ("give --pp" in step.text) is bool(deeper)
    result = trace_export.inspect(tmp_path, ranks=ranks, jobs=1)
    assert ("part of a pipeline of unknown depth" in result.verdict) is bool(deeper)
    if deeper:
        given = api.report(tmp_path, ranks=ranks, pp=8, jobs=1)
        assert "give --pp" not in next(each for each in given.report.verdict if each.code == "step").text
        assert given.run.profile.declared.pp == 8
