"""Causes planted in a run of data-parallel replicas reach the report through the readers that know collectives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from samples.generators import data_parallel
from samples.generators.data_parallel import GATHER, REDUCE, Job, Run
from samples.generators.pipeline import MS
from tests.end_to_end.test_predicted_gains import step_ns
from trace_export import Report, api

JOB = Job()
SLOW = replace(JOB, slow={(1, 2): 1.5})
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
        return api.report(tmp_path, pp=job.stages, dp=job.replicas, jobs=1).report

    return write_and_read


@usually("nsys")
def test_a_sound_run_has_no_slowdown_and_no_cause(read: Callable[[Job], Report]) -> None:
    report = read(JOB)
    assert report.causes.is_empty()


LONG_REDUCTION = (replace(JOB, longer={(REDUCE, 1): 30 * MS}), {"stage": 1, "ranks": [2, 3]}, "slow-collective")
LONG_GATHERING = (replace(JOB, longer={(GATHER, 2): 30 * MS}), {"stage": 2, "ranks": [4, 5]}, "slow-collective")
LATE_REDUCTION = (replace(JOB, late={(REDUCE, 1, 2): 20 * MS}), {"stage": 2, "replica": 1}, "late-collective")
CAUSES = {
    "long reduction": (LONG_REDUCTION, FORMATS),
    "long gathering": (LONG_GATHERING, ("nsys",)),
    "late reduction": (LATE_REDUCTION, ("ascend",)),
}
"""With the formats in which they are read without `--slow`: the first finds each type of collective in all of them."""


@pytest.mark.parametrize(
    ("read", "job", "place", "code"),
    [
        pytest.param(each, *cause, marks=() if each in usual else pytest.mark.slow, id=f"{text}-{each}")
        for text, (cause, usual) in CAUSES.items()
        for each in FORMATS
    ],
    indirect=["read"],
)
def test_a_collective_is_the_first_cause(
    job: Job, place: dict[str, Any], code: str, read: Callable[[Job], Report]
) -> None:
    check(read(job), job, {"code": code, **place})


@usually("ascend")
def test_a_slow_rank_of_one_replica(read: Callable[[Job], Report]) -> None:
    check(read(SLOW), SLOW, {"code": "slow-rank", "replica": 1, "stage": 2})


def check(report: Report, job: Job, expected: dict[str, Any]) -> None:
    """The first cause is the expected one, and its gain that of the same job without it."""
    first = report.causes.row(0, named=True)
    assert {name: first[name] for name in expected} == expected
    gain = step_ns(data_parallel.simulate(job).blocks) - step_ns(data_parallel.simulate(JOB).blocks)
    assert first["gain_ns"] == pytest.approx(gain, rel=0.05)
    assert report.verdict[0].code == expected["code"]
