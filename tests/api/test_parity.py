"""The command line and the library are one: they take the same and write the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

import trace_export
from tests.conftest import Cli
from tests.support.command import parser
from trace_export.cli.options import Figures

TERMINAL = {"strict", "json", "quiet", "debug", "verbose"}
"""They say what is printed."""
LIBRARY_ONLY = {"progress", "declared", "family", "heat_map"}
"""The command line draws a bar of its own, and has a command for each family."""
ELSEWHERE = {"folder": "log_dir", "format": "html", "times": "costs", "comm": "costs", "overlap": "costs"} | {
    "baseline": "a", "save": "a", **{option.name: "figure" for option in fields(Figures)}
}  # fmt: skip
"""Options that are another parameter, or a part of one."""
FUNCTIONS: dict[str, Callable[..., object]] = {
    "export": trace_export.export,
    "report": trace_export.report,
    "overview": trace_export.overview,
    "compare": trace_export.compare,
    "simulate": trace_export.simulate,
}
WRITTEN = {"simulate": {"path", "formats", "force", "gzip", "bubbles", "figure"}}
"""Options of what the library writes in a second call."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_both_sides_have_the_same_parameters(name: str) -> None:
    names = {parameter.name for parameter in parser().commands[name].params if parameter.name != "help"}
    takes = inspect.signature(FUNCTIONS[name]).parameters.keys() | WRITTEN.get(name, set())
    assert {ELSEWHERE.get(option, option) for option in names - TERMINAL} == takes - LIBRARY_ONLY


def test_every_format_has_a_command_and_is_a_family(run_cli: Cli, samples: Path, tmp_path: Path) -> None:
    logs = samples / "paddle" / "single"
    assert run_cli("paddle", logs, "--format", "csv", "--out", tmp_path / "cli").returncode == 0
    trace_export.export(logs, tmp_path / "api", "csv", family="paddle")
    assert contents(tmp_path / "api") == contents(tmp_path / "cli")


def test_a_command_and_its_function_write_the_same_bytes(run_cli: Cli, samples: Path, tmp_path: Path) -> None:
    a, b = samples / "paddle" / "two_machines", samples / "paddle" / "single"
    cli, api = tmp_path / "cli", tmp_path / "api"
    schedule = ("--schedule", "zb-h1", "--stages", 4, "--micro-batches", 8)
    for place, words in {
        "export": ("export", a),
        "report": ("report", a, "--format", "html"),
        "overview": ("overview", a),
        "compare": ("compare", a, b),
        "simulate": ("simulate", *schedule),
    }.items():
        result = run_cli(*words, "--out", cli / place)
        assert result.returncode == 0, result.stderr
    trace_export.export(a, api / "export")
    trace_export.report(a, html=True, path=api / "report")
    trace_export.overview(a, path=api / "overview")
    trace_export.compare(a, b, path=api / "compare")
    trace_export.simulate("zb-h1", 4, 8).write(api / "simulate")
    assert contents(api) == contents(cli)


def contents(folder: Path) -> dict[str, bytes]:
    """The files below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
