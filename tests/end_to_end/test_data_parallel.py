"""Causes planted in a run of data-parallel replicas reach the report through the readers that know collectives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import trace_export
from samples.generators import data_parallel
from samples.generators.data_parallel import GATHER, REDUCE, Job, Run
from samples.generators.pipeline import MS
from tests.end_to_end.test_predicted_gains import step_ns
from trace_export import Report
from trace_export.analysis.what_if import Slowdown
from trace_export.schedules.operation_types import AG, CLIP, RS

JOB = Job()
SLOW = replace(JOB, slow={(1, 2): 1.5})
CLOSE = 0.002
"""A kernel of a transfer starts some µs after it could."""


def simulated_ns(job: Job) -> float:
    """The step time of a job without launch delays, as a replay has none."""
    return step_ns(data_parallel.simulate(replace(job, lead=0, late={})).blocks)


FORMATS = ("kineto", "nsys", "ascend")


def usually(one: str) -> pytest.MarkDecorator:
    """The format in which a test is run without `--slow`: what it shows does not depend on how collectives are read."""
    formats = [each if each == one else pytest.param(each, marks=pytest.mark.slow) for each in FORMATS]
    return pytest.mark.parametrize("read", formats, indirect=True)


@pytest.fixture
def read(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Job], Report]:
    def write_and_read(job: Job) -> Report:
        write: Callable[[Path, Job], Run] = getattr(data_parallel, f"write_{request.param}")
        write(tmp_path, job)
        return trace_export.report(tmp_path, pp=job.stages, dp=job.replicas, jobs=1).report

    return write_and_read


def slowdown(report: Report) -> Slowdown:
    found = report.time.slowdown
    assert found is not None
    assert (found.collectives, found.without) == ([RS, CLIP, AG], ())
    return found


def parts(found: Slowdown) -> dict[str, float]:
    """The slowdown of each type of collective."""
    return {name: found.part(found.by_type[name]) for name in found.collectives}


@usually("nsys")
def test_a_sound_run_has_no_slowdown_and_no_cause(read: Callable[[Job], Report]) -> None:
    report = read(JOB)
    assert slowdown(report).total == pytest.approx(1, abs=CLOSE)
    assert report.time.causes.is_empty()


LONG_REDUCTION = (replace(JOB, longer={(REDUCE, 1): 30 * MS}), RS, {"stage": 1, "rank": None}, "slow-collective")
LONG_GATHERING = (replace(JOB, longer={(GATHER, 2): 30 * MS}), AG, {"stage": 2, "rank": None}, "slow-collective")
LATE_REDUCTION = (
    replace(JOB, late={(REDUCE, 1, 2): 20 * MS}), None, {"stage": 2, "dp": 1, "rank": 5}, "late-collective",
)  # fmt: skip
CAUSES = {
    "long reduction": (LONG_REDUCTION, FORMATS),
    "long gathering": (LONG_GATHERING, ("nsys",)),
    "late reduction": (LATE_REDUCTION, ("ascend",)),
}
"""With the formats in which they are read without `--slow`: the first finds each type of collective in all of them."""


@pytest.mark.parametrize(
    ("read", "job", "name", "place", "code"),
    [
        pytest.param(each, *cause, marks=() if each in usual else pytest.mark.slow, id=f"{text}-{each}")
        for text, (cause, usual) in CAUSES.items()
        for each in FORMATS
    ],
    indirect=["read"],
)
def test_a_collective_is_the_first_cause(
    job: Job, name: str | None, place: dict[str, Any], code: str, read: Callable[[Job], Report]
) -> None:
    """Its slowdown is that of the run, the other collectives' is 1; a late start is none of any type."""
    report = read(job)
    found = slowdown(report)
    slower = simulated_ns(job) / simulated_ns(JOB)
    assert found.total == pytest.approx(slower, rel=CLOSE)
    assert parts(found) == pytest.approx({each: slower if each == name else 1 for each in (RS, CLIP, AG)}, rel=CLOSE)
    first = report.time.causes.row(0, named=True)
    assert {"kind": first["kind"], **{column: first[column] for column in place}} == {"kind": "collective", **place}
    gain = step_ns(data_parallel.simulate(job).blocks) - step_ns(data_parallel.simulate(JOB).blocks)
    assert first["gain_ns"] == pytest.approx(gain, rel=0.02)
    assert report.verdict[0].code == code


@usually("ascend")
def test_a_slow_rank_of_one_replica(read: Callable[[Job], Report]) -> None:
    """Its blocks alone slow the run down: beside blocks of the mean length of all ranks, and no collective does."""
    report = read(SLOW)
    found = slowdown(report)
    mean = 1 + 0.5 / JOB.ranks
    ideal = replace(JOB, forward=round(JOB.forward * mean), backward=round(JOB.backward * mean))
    assert found.total == pytest.approx(simulated_ns(SLOW) / simulated_ns(ideal), rel=CLOSE)
    alone = simulated_ns(replace(ideal, slow={(1, 2): 1.5 / mean}))
    assert found.workers[1, 2] == pytest.approx(alone / simulated_ns(ideal), rel=CLOSE)
    assert parts(found) == pytest.approx(dict.fromkeys((RS, CLIP, AG), 1), rel=CLOSE)
    first = report.time.causes.row(0, named=True)
    assert (first["kind"], first["rank"], first["dp"], first["stage"]) == ("worker", 5, 1, 2)
    gain = step_ns(data_parallel.simulate(SLOW).blocks) - step_ns(data_parallel.simulate(JOB).blocks)
    assert first["gain_ns"] == pytest.approx(gain, rel=0.02)
    assert report.verdict[0].code == "slow-rank"
