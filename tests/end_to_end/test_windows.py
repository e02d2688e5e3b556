"""Any part of the time of any schedule can be reported and drawn: a step that it cuts is not taken for a whole one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import trace_export
from samples.generators.paddle import write_logs
from tests.conftest import Cli
from tests.support.paddle_jobs import JOBS

SCHEDULES = ("1f1b", "interleaved", "zb-v", "zb-h1")
MS = 1_000_000


@pytest.fixture(scope="module", params=SCHEDULES)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> trace_export.Run:
    folder = tmp_path_factory.mktemp("logs")
    write_logs(folder, JOBS[request.param])
    return trace_export.load(folder).align()


@pytest.mark.parametrize(
    ("start", "length"), [(137, 602), (64, 281), (667, 408), (214, 116), (622, 800), (2, 732), (0, 60), (900, 900)]
)
def test_every_window_is_reported_without_a_guess_at_cut_steps(run: trace_export.Run, start: int, length: int) -> None:
    whole = _work_of_steps(run)
    try:
        part = run.select(window=trace_export.Window(start * MS, (start + length) * MS))
        shown = _work_of_steps(part)
    except trace_export.NothingToExportError:
        return
    report = part.report()
    complete = {step for step, blocks in shown.items() if blocks == whole[step]}
    assert set(report.steps.filter("whole")["step"]) == complete
    codes = [note.code for note in part.notes if note.code in ("no-whole-step", "steps-not-whole")]
    assert codes == ([] if complete == set(shown) else ["steps-not-whole"] if complete else ["no-whole-step"])
    assert "nan" not in report.markdown("run")
    assert bool(re.search(r"itself costs [\d.]+%", report.markdown("run"))) == bool(complete)


def _work_of_steps(run: trace_export.Run) -> dict[int, int]:
    return dict(run.spans.filter(run.spans["kind"] != "OPT").group_by("step").len().iter_rows())


@pytest.mark.parametrize("window", ["0s-150ms", "100ms-700ms", "350ms-400ms"])
def test_the_model_is_drawn_of_whole_steps(run: trace_export.Run, window: str, run_cli: Cli, tmp_path: Path) -> None:
    result = run_cli(run.log_dir, "--model", "--time", window, "--format", "chrome", "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    modelled = b", model)" in (tmp_path / "pipeline_profile.json").read_bytes()
    assert modelled == ("[no-whole-step]" not in result.stderr)
