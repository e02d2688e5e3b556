"""Help, documentation and completion: what a user finds without leaving the terminal."""

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT, Cli
from trace_export.cli.commands import command as made_command
from trace_export.sources.formats import commands

DOCS = ROOT / "trace_export" / "docs"


def test_every_page_is_listed_and_shown(run_cli: Cli) -> None:
    collect = [DOCS / "collect" / f"{name}.md" for name in (*commands(), "instrument")]
    pages = [*collect, *sorted(DOCS.glob("*.md"))]
    listed = [line.split()[2] for line in run_cli("docs").stdout.splitlines()]
    assert listed == [page.stem for page in pages]
    for name, page in [*zip(listed, pages, strict=True), ("clocks.md", DOCS / "clocks.md")]:
        assert run_cli("docs", name).stdout == page.read_text("utf-8")


def test_a_page_that_is_not_there(run_cli: Cli) -> None:
    result = run_cli("docs", "bubble")
    assert result.returncode == 2
    assert 'there is no page "bubble"; these mention it: ' in result.stderr


def test_the_help_of_the_program_fits_on_a_screen(run_cli: Cli) -> None:
    lines = run_cli("--help").stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    commands = [line.split()[0] for line in lines if line.startswith("  ") and "trace-export" not in line]
    assert commands == [
        "export", "inspect", "report", "compare", "overview", "simulate", "open", "watch", "run", "docs", "mcp",
    ]  # fmt: skip


def options(text: str) -> set[str]:
    return set(re.findall(r"^ +(--[a-z_-]+)", text, re.MULTILINE))


def test_the_help_of_a_command_has_what_is_usual_and_all_on_request(run_cli: Cli) -> None:
    usual, everything = options(run_cli("export", "--help").stdout), options(run_cli("export", "--help-all").stdout)
    assert len(usual) <= 24
    assert {"--steps", "--out", "--format", "--bubbles", "--json"} < usual < everything
    assert {"--devices", "--log_dir", "--multi_machine", "--infer", "--scheduler", "--letters"} < everything - usual
    assert not {"--range", "--figure-steps", "--no-legend"} & everything


@pytest.mark.parametrize("command", ["export", "report", "overview", "compare", "inspect", "watch", "simulate"])
def test_help_comes_in_parts(run_cli: Cli, command: str) -> None:
    """In the same order everywhere."""
    every = [
        "Arguments", "Input", "Selection", "Baseline and limit", "Output", "Pictures", "Clocks", "Workers", "Terminal",
        "Help",
    ]  # fmt: skip
    titles = re.findall(r"^([A-Z].*):$", run_cli(command, "--help-all").stdout, re.MULTILINE)
    assert titles == [title for title in every if title in titles]
    assert titles[-1] == "Help"


def offered(command: str, name: str, typed: str) -> list[str]:
    """What the shell offers after `typed`."""
    made = made_command(command)
    (option,) = (parameter for parameter in made.params if parameter.name == name)
    return [item.value for item in option.shell_complete(made.make_context(command, [], resilient_parsing=True), typed)]


def test_values_are_offered() -> None:
    assert "zb-h1" in offered("simulate", "schedule", "")
    assert offered("export", "family", "n") == ["nsys"]
    assert offered("export", "tracks", "") == ["stage", "rank"]
    names = ["perfetto", "chrome", "svg", "png", "pdf", "html", "parquet", "csv"]
    assert offered("export", "formats", "") == names
    assert offered("export", "formats", "svg,p") == [
        f"svg,{name}" for name in names if name != "svg" and name.startswith("p")
    ]


def test_a_folder_with_the_name_of_a_command(run_cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "nsys").mkdir()
    result = run_cli("nsys", "--format", "svg", cwd=tmp_path)
    assert result.returncode == 2
    assert "the folder nsys here is given as ./nsys" in result.stderr


def test_profiles_of_another_kind_than_the_command_are_named(run_cli: Cli, samples: Path) -> None:
    result = run_cli("export", "--source", "nsys", samples / "paddle" / "single")
    assert result.returncode == 1
    assert "to draw the profiles of paddle here, leave out --source" in result.stderr


def test_an_extra_is_missed_before_anything_is_read_or_written(run_cli: Cli, samples: Path, tmp_path: Path) -> None:
    (tmp_path / "vl_convert.py").write_text("raise ImportError\n")
    without = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "/usr/bin:/bin"}
    result = run_cli(samples / "paddle" / "single", "--format", "svg,png", "--out", tmp_path / "out", env=without)
    assert result.returncode == 2
    assert "--format png needs the extra picture" in result.stderr
    assert "-m pip install 'trace-export[picture]'" in result.stderr
    assert not (tmp_path / "out").exists()
