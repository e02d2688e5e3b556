"""Scripts that were written for version 0.1 work, and learn what has a new spelling."""

import re
import shlex
from pathlib import Path

import polars as pl
import pytest

from tests.conftest import ROOT, Cli
from tests.end_to_end.test_docs import ELSEWHERE, RUNNABLE, apart, blocks, commands, workplace
from tests.support.rows import slow

__all__ = ["workplace"]
BEFORE = ROOT / "tests" / "golden" / "README-0.1.0.md"
"""The README of version 0.1.0."""
LINES = [line for line in commands(BEFORE) if not line.removeprefix("trace-export ").startswith(ELSEWHERE)]
EVERY_RUN = [line for line in apart(LINES) if line not in {documented for _, documented in RUNNABLE}]
"""The others are documented still, or have fewer of the options of another line."""
PAGE = (ROOT / "trace_export" / "docs" / "changes-0.2.md").read_text("utf-8")
OLD = {
    "trace-export paddle logs --format csv --out out": "paddle is now export --source paddle",
    "trace-export howto nsys": "howto is now docs",
    "trace-export logs --format svg --range 10ms-60ms --out out": "--range is now --time",
    "trace-export logs --format svg --figure-steps 1 --out out": "--figure-steps is now --steps",
    "trace-export logs --format svg --no-legend --out out": "--no-legend is now --legend none",
}


@pytest.mark.parametrize("line", [*EVERY_RUN, *slow(line for line in LINES if line not in EVERY_RUN)])
def test_a_command_of_the_readme_runs(line: str, workplace: Path, run_cli: Cli) -> None:
    ended = run_cli(*shlex.split(line)[1:], cwd=workplace)
    assert ended.returncode == 0, ended.stderr
    assert "removes the old" not in ended.stderr


def test_its_program_runs(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace)
    (code,) = blocks(BEFORE, "python")
    exec(compile(code, BEFORE, "exec"), {"__name__": "__main__"})
    assert (workplace / "chart.pftrace").exists()


@pytest.mark.parametrize("line", OLD)
def test_an_old_spelling_says_once_what_it_is_now(line: str, workplace: Path, run_cli: Cli) -> None:
    ended = run_cli(*shlex.split(line)[1:], cwd=workplace)
    assert ended.returncode == 0, ended.stderr
    assert re.findall(r"^note: (.*); version 0.3 removes the old spelling$", ended.stderr, re.M) == [OLD[line]]
    assert OLD[line].split()[0] in PAGE


def test_a_range_of_before_cuts_pictures_only(workplace: Path, run_cli: Cli) -> None:
    """The table beside the picture has every block."""
    for place, words in (("whole", ()), ("part", ("--range", "10ms-60ms"))):
        run_cli("logs", "--format", "csv,svg", "--out", place, *words, cwd=workplace)
    whole, part = workplace / "whole", workplace / "part"
    assert (whole / "pipeline_profile.csv").read_bytes() == (part / "pipeline_profile.csv").read_bytes()
    assert "10 ms to 60 ms after the first block" in (part / "pipeline_profile.svg").read_text("utf-8")


def test_the_time_of_today_cuts_what_is_drawn_at_both_ends(workplace: Path, run_cli: Cli) -> None:
    for place, words in (("whole", ()), ("part", ("--time", "30ms-90ms"))):
        run_cli("logs", "--format", "csv,svg", "--out", place, "--quiet", *words, cwd=workplace)
    whole, part = (pl.read_csv(workplace / place / "pipeline_profile.csv") for place in ("whole", "part"))
    start, end = (pl.col(name) - pl.col("start_ns").min() for name in ("start_ns", "end_ns"))
    assert part.height == whole.filter(end > 30_000_000, start < 90_000_000).height > 0
    assert "30 ms to 90 ms after the first block" in (workplace / "part" / "pipeline_profile.svg").read_text("utf-8")
