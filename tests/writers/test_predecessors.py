"""A folder in which a framework's own script drew the chart before: its chart is replaced, all else is left."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from samples.generators.paddle import Job, write_logs, write_records
from tests.conftest import Cli
from tests.support.paddle_jobs import JOBS, RECORDS
from tests.support.paddle_scripts import write_dynamic, write_static
from trace_export.writers import mark, predecessors


def _static(folder: Path, job: Job) -> Path:
    write_logs(folder, job)
    return write_static(folder, job)[0]


def _dynamic(folder: Path, job: Job) -> Path:
    write_records(folder, job)
    return write_dynamic(folder)


STATIC = [(_static, job) for job in JOBS.values()]
DYNAMIC = [(_dynamic, job) for job in RECORDS.values()]


@pytest.mark.parametrize(("make", "job"), STATIC + DYNAMIC, ids=[*JOBS, *(f"{name}, records" for name in RECORDS)])
def test_the_chart_of_a_script_is_known_whatever_the_job(
    make: Callable[[Path, Job], Path], job: Job, tmp_path: Path
) -> None:
    chart = make(tmp_path, job)
    copy = predecessors.copy_of_script(chart)
    assert predecessors.is_chart(chart)
    assert (copy is not None) == (make is _static)
    assert copy is None or not predecessors.is_chart(copy)


@pytest.mark.parametrize("make", [_static, _dynamic])
def test_the_chart_of_a_script_is_replaced(make: Callable[[Path, Job], Path], run_cli: Cli, tmp_path: Path) -> None:
    chart = make(tmp_path, Job(2, 4, steps=range(2)))
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path != chart}
    result = run_cli("--log_dir", tmp_path, "--devices", "0,1")
    assert result.returncode == 0, result.stderr
    assert mark.is_marked(chart)
    assert {path: path.read_bytes() for path in before} == before
    left = "pipeline_profile_perfetto.json) [script-chart-left]"
    assert (left in result.stderr) == (make is _static)
    assert run_cli("--log_dir", tmp_path).returncode == 0


CHANGES: dict[str, Callable[[str], str]] = {
    "saved again with other blanks": lambda text: json.dumps(json.loads(text), indent=1),
    "an event more": lambda text: text.replace("]}", ', {"name": "mine", "ph": "i", "ts": 1, "pid": 0}]}'),
    "a mark in the middle": lambda text: text.replace("}, {", '}, {"name": "mine", "ph": "i", "ts": 1}, {', 1),
    "a field more": lambda text: text[:-1] + ', "displayTimeUnit": "ms"}',
    "an argument more": lambda text: text.replace('"pid": 0,', '"pid": 0, "args": {"note": "slow"},', 1),
    "cut short": lambda text: text[:-40],
    "empty": lambda text: "",
    "no events": lambda text: '{"traceEvents": []}',
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_chart_that_somebody_changed_is_kept(change: str, run_cli: Cli, tmp_path: Path) -> None:
    chart = _static(tmp_path, Job(2, 4, steps=range(2)))
    changed = CHANGES[change](chart.read_text())
    chart.write_text(changed)
    result = run_cli("--log_dir", tmp_path)
    assert result.returncode == 2
    refusal = "pipeline_profile.json exists, and trace-export did not write it; replace it with --force"
    assert refusal in result.stderr
    assert chart.read_text() == changed


def test_a_copy_that_somebody_changed_is_nothing_to_tell_of(tmp_path: Path) -> None:
    chart, copy = write_static(tmp_path, Job(2, 4, steps=range(2)))
    copy.write_text(json.dumps(json.loads(copy.read_text()), indent=1))
    assert predecessors.copy_of_script(chart) is None
