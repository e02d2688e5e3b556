"""Help, documentation and completion: what a user finds without leaving the terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT, Cli
from trace_export.cli import choosing
from trace_export.cli.options import CLOCKS, INPUT, OUTPUT, PICTURES, SELECTION, TERMINAL, WORKERS

PAGES = sorted(page.stem for page in (ROOT / "trace_export" / "docs").glob("*.md"))


def test_every_page_is_listed_and_shown(run_cli: Cli) -> None:
    listed = [line.split()[2] for line in run_cli("docs").stdout.splitlines()]
    assert listed == PAGES
    page = run_cli("docs", "slowdown")
    assert page.stdout == (ROOT / "trace_export" / "docs" / "slowdown.md").read_text("utf-8")
    assert run_cli("docs", "clocks.md").stdout == (ROOT / "trace_export" / "docs" / "clocks.md").read_text("utf-8")


def test_options_without_a_value_may_stand_before_the_command(run_cli: Cli, samples: Path) -> None:
    folder = samples / "paddle" / "single"
    before, after = run_cli("--debug", "inspect", folder, "--json"), run_cli("inspect", folder, "--debug", "--json")
    assert before.returncode == 0, before.stderr
    assert before.stdout == after.stdout
    assert "did you mean report?" in run_cli("--debug", "reprot", folder).stderr


def test_a_page_that_is_not_there(run_cli: Cli) -> None:
    result = run_cli("docs", "bubble")
    assert result.returncode == 2
    assert 'there is no page "bubble"; choose one of adding-a-format' in result.stderr


def test_how_to_mark_a_script_is_a_guide(run_cli: Cli) -> None:
    guide = ROOT / "trace_export" / "docs" / "collect" / "instrument.md"
    assert run_cli("howto", "instrument").stdout == guide.read_text("utf-8")
    assert "howto instrument" in run_cli("howto").stdout


USUAL = [INPUT, SELECTION, OUTPUT, CLOCKS, WORKERS, TERMINAL]


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("export", [INPUT, SELECTION, OUTPUT, PICTURES, CLOCKS, WORKERS, TERMINAL]),
        ("nsys", [INPUT, SELECTION, OUTPUT, PICTURES, CLOCKS, WORKERS, TERMINAL]),
        ("report", USUAL),
        ("overview", USUAL),
        ("compare", [INPUT, SELECTION, "Baseline and limit", OUTPUT, CLOCKS, WORKERS, TERMINAL]),
        ("inspect", [INPUT, SELECTION, WORKERS, TERMINAL]),
        ("watch", [INPUT, SELECTION, OUTPUT, PICTURES, CLOCKS, TERMINAL]),
    ],
)
def test_help_comes_in_parts(run_cli: Cli, command: str, parts: list[str]) -> None:
    """In the same order everywhere; outside them there is nothing but --help."""
    text = run_cli(command, "--help").stdout
    titles = re.findall(r"^╭─ (.+?) ─+╮$", text, re.MULTILINE)
    assert titles == ["Arguments", "Options", *parts]
    options = text.split("╭─ Options ")[1].split("╰")[0]
    assert re.findall(r"--[a-z-]+", options) == ["--help"]


def test_values_are_offered() -> None:
    assert "zb-h1" in choosing.schedules()
    names = ["perfetto", "chrome", "svg", "png", "pdf", "html", "parquet", "csv"]
    assert choosing.formats("") == names
    assert choosing.formats("svg,p") == [f"svg,{name}" for name in names if name != "svg"]


def test_a_folder_with_the_name_of_a_command(run_cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "nsys").mkdir()
    result = run_cli("nsys", "--format", "svg", cwd=tmp_path)
    assert result.returncode == 2
    assert "the folder nsys here is given as ./nsys" in result.stderr


def test_profiles_of_another_kind_than_the_command_are_named(run_cli: Cli, samples: Path) -> None:
    result = run_cli("nsys", samples / "paddle" / "single")
    assert result.returncode == 1
    assert "there are profiles of paddle, drawn without the word nsys" in result.stderr


def test_an_extra_is_missed_before_anything_is_read_or_written(run_cli: Cli, samples: Path, tmp_path: Path) -> None:
    (tmp_path / "vl_convert.py").write_text("raise ImportError\n")
    without = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "/usr/bin:/bin"}
    result = run_cli(samples / "paddle" / "single", "--format", "svg,png", "--out", tmp_path / "out", env=without)
    assert result.returncode == 2
    assert "--format png needs the extra picture" in result.stderr
    assert "-m pip install 'trace-export[picture]'" in result.stderr
    assert not (tmp_path / "out").exists()
