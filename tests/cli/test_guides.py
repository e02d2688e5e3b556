"""The collection guides: what they tell one to type works, and what they quote is what the program says."""

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import trace_export.instrument as ti
from tests.conftest import ROOT, Cli
from tests.faults.inputs import INPUTS
from trace_export.cli.docs import pages
from trace_export.sources.formats import commands

FILLED = {
    "no NVTX range is": "no {kind} is",
    "no annotation is": "no {kind} is",
    "no ROCTx range is": "no {kind} is",
    "rank 0, which another file": "rank {rank}, which {other}",
}
"""Sentences of the guides that the program fills in."""
GUIDES = pytest.mark.parametrize("guide", commands())
PROFILERS = tuple(guide for guide in commands() if guide != "spans")
"""Guides of tables have no profiler to start and no run to check."""
OF_PROFILERS = pytest.mark.parametrize("guide", PROFILERS)


def text(guide: str) -> str:
    return pages()[guide].read_text("utf-8")


def blocks(guide: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text(guide), re.DOTALL | re.MULTILINE)


def rows(guide: str, heading: str) -> list[str]:
    """The first column of the table that has `heading`."""
    table = re.search(rf"^\| {heading} \|.*\n\|[-|]+\|\n((?:\|.*\n)*)", text(guide), re.MULTILINE)
    return [line.split("|")[1].strip() for line in table[1].splitlines()] if table else []


@OF_PROFILERS
def test_python_is_python_and_uses_what_is_there(guide: str) -> None:
    result = blocks(guide, "python")
    assert result
    for code in result:
        compile(code, guide, "exec", flags=ast.PyCF_ONLY_AST)
    names = set(re.findall(r"\bti\.(\w+)", text(guide)))
    assert names <= set(ti.__all__)


def test_the_example_of_ones_own_loop_runs() -> None:
    page = (ROOT / "trace_export/docs/collect/instrument.md").read_text("utf-8")
    code = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)[-1]
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@GUIDES
def test_shell_is_shell(guide: str) -> None:
    for code in blocks(guide, "bash"):
        done = subprocess.run(["bash", "-n"], input=code, text=True, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


@OF_PROFILERS
def test_its_own_commands_work_word_by_word(guide: str, run_cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    INPUTS[guide].make(tmp_path / "profiles")
    lines = [line for code in blocks(guide, "bash") for line in code.splitlines() if line.startswith("trace-export ")]
    commands = [shlex.split(line)[1:] for line in lines]
    assert [c[0] for c in commands] == ["inspect", "--log_dir"]
    for command in commands:
        done = run_cli(*command, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "profiles" / "pipeline_profile.pftrace").stat().st_size > 1000


@GUIDES
def test_what_it_quotes_is_what_the_program_says(guide: str) -> None:
    code = "".join(path.read_text("utf-8") for path in sorted((ROOT / "trace_export").rglob("*.py")))
    said = re.sub(r'"\s*\n\s*f?"', "", code)  # sentences that go over several lines
    for sentence in rows(guide, "what it says"):
        for filled, written in FILLED.items():
            sentence = sentence.replace(filled, written)
        assert sentence in said


@GUIDES
def test_its_options_exist(guide: str, run_cli: Cli) -> None:
    ours = run_cli("export", "--help-all")
    for option in re.findall(r"`(--(?:detail|host|pp|dp|tp|align)\b)[^`]*`", text(guide)):
        assert option in ours.stdout


@pytest.mark.parametrize(
    ("page", "instead"),
    [
        ("nysys", "did you mean nsys?"),
        ("paddel", "did you mean paddle?"),
        ("profile_record_tmp", "these mention it: paddle"),
        ("zzyzx", "trace-export docs lists all"),
    ],
)
def test_an_unknown_page_is_a_usage_error_that_names_others(page: str, instead: str, run_cli: Cli) -> None:
    done = run_cli("docs", page)
    assert done.returncode == 2
    assert instead in done.stderr


@pytest.mark.parametrize(
    ("page", "successor"),
    [
        ("attribution", "labels"),
        ("bubbles", "slowdown"),
        ("clocks-math", "clocks"),
        ("gate", "compare"),
        ("performance", "scale"),
    ],
)
def test_a_page_of_version_0_1_leads_to_the_one_that_took_it_over(page: str, successor: str, run_cli: Cli) -> None:
    done = run_cli("docs", page)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", text(successor))
