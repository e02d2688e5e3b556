"""`overview` names what `report` names, with the same figures, and the gain of the paired run."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import trace_export
from samples.generators import ascend
from samples.generators.data_parallel import WRITERS, Job, simulate
from samples.generators.pipeline import MS
from tests.support.ascend_jobs import JOBS
from tests.support.many_ranks import ManyRanks, Planted, write
from tests.support.rows import crossed
from tests.verdicts.judge import CLOSE, bubble, causes
from trace_export import api
from trace_export.analysis.clock_words import unconnected
from trace_export.documents import encode
from trace_export.read import load_options
from trace_export.run import Request
from trace_export.scale import parts, words
from trace_export.scale.build import Overview, overview
from trace_export.scale.overview_document import overview_document
from trace_export.scale.replicas import look

JOB = Job(stages=4, microbatches=8, replicas=16, steps=3, hosts=8, jitter=0.01, seed=4)
FEW = replace(JOB, replicas=8, hosts=4)
REPLICA, STAGE, HOST = 5, 2, 3


def planted(job: Job, what: str) -> tuple[Job, dict[str, Any]]:
    """A slow host, rank (with the ranks that work in step with it) or link, and where the cause must be."""
    if what == "host":
        cells = {job.place(rank)[:2]: 1.3 for rank in job.of_host(HOST)}
        return replace(job, slow=cells), {"ranks": job.of_host(HOST)}
    if what == "rank":
        lane = job.lane(REPLICA, STAGE)
        return replace(job, slow={(REPLICA, STAGE): 1.4}), {"ranks": lane}
    ends = job.rank(REPLICA, STAGE), job.rank(REPLICA, STAGE + 1)
    links = dict.fromkeys(zip(job.lane(REPLICA, STAGE), job.lane(REPLICA, STAGE + 1), strict=True), 3 * MS)
    return replace(job, links=links), {"src_rank": ends[0], "dst_rank": ends[1]}


def both(folder: Path, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The documents of `report` and `overview`."""
    whole = api.report(folder, jobs=1, **options).report.json()
    result = trace_export.overview(folder, formats=None, jobs=1, **options).overview
    return json.loads(whole), json.loads(encode(overview_document(result)))


PLANTED = [("paddle", "link"), ("paddle", "host"), ("table", "rank"), ("paddle", "rank"), ("table", "host")]
"""A table has blocks alone, and no link."""


@pytest.mark.parametrize(("planted_in", "order"), crossed(PLANTED, [(False, 1), (True, 1), (False, 2)], every=2))
def test_overview_and_report_name_the_same(
    tmp_path: Path, planted_in: tuple[str, str], order: tuple[bool, int]
) -> None:
    """32 and 64 ranks in both orders of Megatron; the second is Paddle's."""
    (form, what), (stages_first, tensor) = planted_in, order
    job, place = planted(replace(FEW, stages_first=stages_first, tensor=tensor), what)
    WRITERS[form](tmp_path, job)
    report, result = both(tmp_path)
    for key in ("causes", "levels", "trust"):
        assert result[key] == report[key]
    assert causes(result) == causes(report)
    assert bubble(result) == pytest.approx(bubble(report), rel=1e-9)
    for name in ("step", "whole", "bubble", "step_ns"):
        mine, theirs = (
            [step[name] for step in document["steps"] if step[name] is not None] for document in (result, report)
        )
        assert mine == pytest.approx(theirs, rel=1e-9)
    idle = {row["stage"]: row["idle"] for row in result["bands"]}
    assert idle == pytest.approx({row["stage"]: row["bubble"] for row in report["stage_means"]}, rel=1e-9)
    first, gain = result["causes"][0], simulate(job).step_ns - simulate(replace(job, slow={}, links={})).step_ns
    assert {name: first[name] for name in place} == place
    # Blocks alone hide a part of a slow link: what the receiver would have waited for anyway.
    assert first["gain_ns"] == pytest.approx(gain, rel=0.35 if what == "link" else CLOSE)


def in_parts(folder: Path, ranks: int) -> Overview:
    """The overview of a run with more than this many ranks, which is read replica by replica."""
    wanted = Request(load_options(folder, {"jobs": 1}))
    return overview(wanted, look(wanted.source), whole_ranks=ranks)


def test_of_some_devices_overview_and_report_say_the_same(tmp_path: Path) -> None:
    """Of each of four hosts with eight ranks the first four."""
    WRITERS["paddle"](tmp_path, FEW)
    report, result = both(tmp_path, devices="0-3")
    assert result["ranks"] == FEW.hosts * 4
    assert [result[key] for key in ("causes", "levels", "trust")] == [
        report[key] for key in ("causes", "levels", "trust")
    ]
    assert bubble(result) == pytest.approx(bubble(report), rel=1e-9)
    with pytest.raises(trace_export.UsageError, match="with devices 0-3 the run is read whole"):
        trace_export.overview(tmp_path, tmp_path / "out", devices="0-3", replica=1)


def test_a_replica_with_other_settings_holds_up_all(tmp_path: Path) -> None:
    """Half as many micro-batches of twice the size take 14 forwards and backwards on four stages, a slow rank makes its
    replica take 13.4. So the slow rank alone costs nothing, which is seen only where both replicas are explained."""
    run = ManyRanks(stages=4, tensor=1, replicas=8, microbatches=8, planted=Planted(ranks=(3,), replicas=(7,)))
    write(tmp_path, run)
    result, whole = (
        each.causes.row(0, named=True) for each in (in_parts(tmp_path, 16), api.report(tmp_path, jobs=1).report)
    )
    assert result["code"] == whole["code"] == "slow-replica"
    assert result["ranks"] == whole["ranks"] == [run.rank(stage, 7, 0) for stage in range(4)]
    assert result["gain_ns"] == pytest.approx(whole["gain_ns"], rel=CLOSE)


@pytest.mark.parametrize(("what", "stages_first"), crossed(["host", "rank"], [False, True], every=2))
def test_read_replica_by_replica_it_names_the_same(
    tmp_path: Path, stages_first: bool, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the sums of all replicas, and causes from some of them, which a sentence says. Paddle's logs have no
    collectives, so nothing connects the hosts of two replicas, whether or not these are read together."""
    monkeypatch.setattr(parts, "RANKS_A_PART", 16)
    job, place = planted(replace(JOB, stages_first=stages_first), what)
    WRITERS["paddle"](tmp_path, job)
    result, whole = in_parts(tmp_path, 40), api.report(tmp_path, jobs=1)
    report = json.loads(whole.report.json())
    assert len(result.explained) == 10
    said = words.sentences(result)
    assert said[0].text.startswith("What costs most was worked out from 10 of 16 replicas")
    first, gain = result.causes.row(0, named=True), simulate(job).step_ns - simulate(replace(job, slow={})).step_ns
    assert first["code"] == report["causes"][0]["code"]
    assert set(first["ranks"]) <= set(place["ranks"])
    assert first["gain_ns"] == pytest.approx(gain, rel=CLOSE)
    (exception,) = result.exceptions.to_dicts()
    assert exception["ranks"] == place["ranks"]
    assert result.bubble == pytest.approx(bubble(report), rel=1e-3)
    steps = [step["step_ns"] for step in report["steps"]]
    assert result.steps["step_ns"].to_list()[:-1] == pytest.approx(steps[:-1], rel=1e-3)
    assert unconnected(result.hosts) == unconnected(whole.run.clocks)


@pytest.mark.parametrize("named", ["dualpipev", "dualpipev, context parallel"])
def test_the_backward_of_a_head_that_has_a_block_of_its_own_makes_no_stage_slow(named: str, tmp_path: Path) -> None:
    """All stages have layers of one length; stage 0 also has the head."""
    ascend.record(tmp_path, JOBS[named])
    result = trace_export.overview(tmp_path, formats=None, jobs=1).overview
    assert result.exceptions.is_empty()
