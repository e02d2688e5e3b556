"""Any part of the time of any schedule can be reported and drawn: steps that it cuts are not taken for shorter ones."""

import re
from pathlib import Path

import polars as pl
import pytest

import trace_export
from samples.generators.paddle import write_logs
from tests.conftest import Cli
from tests.support.paddle_jobs import JOBS
from tests.support.rows import crossed
from trace_export.selection import Numbers

SCHEDULES = ("1f1b", "interleaved", "zb-v", "zb-h1")
MS = 1_000_000
WINDOWS = [(137, 602), (64, 281), (667, 408), (214, 116), (622, 800), (2, 732), (0, 60)]
"""Start and length in milliseconds; the steps take 300 to 500."""


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> trace_export.Run:
    folder = tmp_path_factory.mktemp("logs")
    write_logs(folder, JOBS[request.param])
    return trace_export.load(folder).align()


def work_of_steps(run: trace_export.Run) -> dict[int, int]:
    """How many blocks of work each step has."""
    return dict(run.spans.filter(pl.col("kind") != "OPT").group_by("step").len().iter_rows())


@pytest.mark.parametrize(("run", "window"), crossed(SCHEDULES, WINDOWS[::2]), indirect=["run"])
def test_a_window_is_reported_as_in_the_whole_run(run: trace_export.Run, window: tuple[int, int]) -> None:
    start, length = window
    part = run.select(window=trace_export.Window(start * MS, (start + length) * MS))
    shown = list(work_of_steps(part))
    report = part.report()
    assert report.steps.rows() == run.report().steps.filter(pl.col("step").is_in(shown)).rows()
    assert "nan" not in report.markdown("run")


@pytest.mark.parametrize(("run", "window"), crossed(SCHEDULES, WINDOWS), indirect=["run"])
def test_the_model_is_drawn_of_whole_steps(
    run: trace_export.Run, window: tuple[int, int], run_cli: Cli, tmp_path: Path
) -> None:
    start, length = window
    whole = work_of_steps(run)
    shown = work_of_steps(run.select(window=trace_export.Window(start * MS, (start + length) * MS)))
    lost = [step for step, blocks in shown.items() if blocks < whole[step]]
    result = run_cli(
        run.log_dir, "--model", "--time", f"{start}ms-{start + length}ms", "--format", "chrome", "--out", tmp_path
    )
    assert result.returncode == 0, result.stderr
    drawn = b", model)" in (tmp_path / "pipeline_profile.json").read_bytes()
    assert drawn == (len(lost) < len(shown))
    named = re.findall(r"or cut by --time: step (\S+) \[model-not-drawn\]", result.stderr)
    assert named == ([str(Numbers.of(lost))] if lost else [])


def test_a_path_that_no_step_has_is_said_to_be_missing(samples: Path, run_cli: Cli, tmp_path: Path) -> None:
    """The second step of the sample is the last one, and nothing says when the next one would have begun."""
    for steps, drawn in ((0, True), (1, False)):
        words = ("--critical-path", "--steps", steps, "--format", "svg", "--out", tmp_path / f"{steps}.svg")
        result = run_cli(samples / "nsys" / "two_hosts", *words)
        assert result.returncode == 0, result.stderr
        assert (">critical path<" in (tmp_path / f"{steps}.svg").read_text()) == drawn
        assert ("[critical-path-not-drawn]" not in result.stderr) == drawn
