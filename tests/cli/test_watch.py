"""`trace-export watch` as a user runs it: it follows a job until Ctrl-C, and keeps the files it was asked for."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from samples.generators.paddle import Job
from tests.conftest import ROOT, Cli
from tests.support.growing_logs import GrowingLogs
from tests.support.schemas import checker
from tests.support.wait import HANGS_S, wait_until
from trace_export.cli.watch import print_steps
from trace_export.live.look import Look
from trace_export.live.step_figures import StepFigures
from trace_export.model import Note

JOB = Job(stages=2, microbatches=4, steps=range(6))


@contextmanager
def watching(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", "NO_COLOR": "1"}
    words = [sys.executable, "-m", "trace_export", "watch", *map(str, arguments), "--no-browser", "--port", "0"]
    with subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def interrupted(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What it printed until Ctrl-C ended it."""
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=HANGS_S)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert err.endswith("trace-export: interrupted; files already written are complete\n")
    return out, err


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def logs(tmp_path: Path) -> GrowingLogs:
    made = GrowingLogs(tmp_path / "logs", JOB)
    made.write(0, 1)
    return made


def test_a_job_is_followed_until_ctrl_c(logs: GrowingLogs, tmp_path: Path) -> None:
    steps = tmp_path / "steps.jsonl"
    with watching(logs.folder, "--jsonl", steps, "--slowdown") as process:
        wait_until(lambda: len(lines(steps)) == 2, by=process)
        logs.write(2)
        wait_until(lambda: len(lines(steps)) == 3, by=process)
        assert process.stdout is not None
        printed = [process.stdout.readline() for _ in range(4)]  # a look is printed when its files are written
        _, stderr = interrupted(process)
    result = lines(steps)
    assert [line["step"] for line in result] == [0, 1, 2]
    assert all(line["generator"] == "trace-export" and line["slowdown"] for line in result)
    assert [list(checker("watch").iter_errors(line)) for line in result] == [[]] * 3
    assert re.fullmatch(r"Open this page in a browser: http://127\.0\.0\.1:\d+\n", printed[0])
    assert [line.split(",")[0] for line in printed[1:]] == ["step 0", "step 1", "step 2"]
    assert "ssh -L" in stderr


def test_the_files_are_continued_by_the_next_watch(logs: GrowingLogs, tmp_path: Path) -> None:
    steps = tmp_path / "steps.jsonl"
    for count in (2, 4):
        with watching(logs.folder, "--jsonl", steps) as process:
            wait_until(lambda count=count: len(lines(steps)) == count, by=process)  # type: ignore[misc]
            interrupted(process)
    assert [line["step"] for line in lines(steps)] == [0, 1, 0, 1]


def test_a_folder_without_profiles_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    with watching(tmp_path / "logs") as process:
        assert process.stderr is not None
        assert "ssh -L" in process.stderr.readline()
        assert "no profile" in process.stderr.readline()
        interrupted(process)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--jsonl", "notes.txt"), "notes.txt exists, and trace-export did not write it"),
        (("--last", "0"), "--last"),
        (("--port", "65536"), "--port: 65536 is not a port"),
        (("--port", "-1"), "--port: -1 is not a port"),
    ],
)
def test_what_cannot_be_is_refused_at_once(
    options: tuple[str, ...], sentence: str, logs: GrowingLogs, run_cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    done = run_cli("watch", logs.folder, *options, "--no-browser", cwd=tmp_path)
    assert (done.returncode, sentence in done.stderr) == (2, True), done.stderr
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_folder_that_is_not_there(run_cli: Cli, tmp_path: Path) -> None:
    done = run_cli("watch", tmp_path / "none", "--no-browser")
    assert done.returncode == 2
    assert "none" in done.stderr


def test_an_input_is_never_a_file_of_metrics(logs: GrowingLogs, run_cli: Cli) -> None:
    log = logs.path(0)
    before = log.read_bytes()
    done = run_cli("watch", logs.folder, "--jsonl", log, "--no-browser", "--force")
    assert done.returncode == 2
    assert log.read_bytes() == before


FIGURES = StepFigures(
    step=7, start_ns=0, since_previous_ns=1_500_000_000, pipeline_ns=1_200_000_000, bubble=0.25, bubble_own=0.2,
    host_times=False, slowest_stage=1, slowest_rank=3, slowdown=None, cause=None, cause_gain_ns=None, cause_gain=None,
    cause_band=None, cause_ratio=None, cause_late_ns=None, worst_link=None,
    worst_link_ratio=None, clock_error_ns=None, blocks=96, lag_s=0.5,
)  # fmt: skip
CAUSE = "The link from rank 2 to rank 3 is slow: 1.75 times."
KNOWN = replace(
    FIGURES, slowdown=1.25, cause=CAUSE, cause_gain_ns=2e6, clock_error_ns=2_500.0, worst_link=(2, 3),
    worst_link_ratio=1.75,
)  # fmt: skip


def test_a_line_says_what_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    said: set[str] = set()
    for figures in (FIGURES, KNOWN, replace(FIGURES, host_times=True)):
        print_steps(Look((figures,), notes=(Note("clock-stepped", "warning", "the clock of node1 stepped"),)), said)
    printed = capsys.readouterr()
    assert printed.err == "warning: the clock of node1 stepped\n"
    plain, whole, of_host = printed.out.splitlines()
    assert plain == "step 7, since previous 1.5 s, pipeline time 1.2 s, bubble 25.0%, slowest stage 1, slowest rank 3"
    assert whole == f"{plain}, worst link 2→3 (1.75 ×), slowdown 1.25, clock error 2.5 µs. {CAUSE}"
    assert of_host == plain.replace("25.0%", "25.0% (times of the host)")
