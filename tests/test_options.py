"""Options are declared once: everything that users see of one follows from its declaration."""

from __future__ import annotations

import inspect
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import trace_export
from tests.conftest import ROOT
from trace_export.cli.commands import ROWS
from trace_export.options import LIBRARY, Loading, Writing, checked, flags, options_of, spelled

PLACES = {
    "options.py": (
        "    model: Annotated[bool,",
        '    arrows: Annotated[bool, _flag("Draw no arrow.", flag="--no-arrows")]\n',
    ),
    "draw.py": (
        "            edges=None if for_picture",
        '            edges=None if drawing["arrows"] or for_picture',
    ),
}
"""What a new flag of `export` takes: the line before which its declaration goes, and the line that uses it."""


@pytest.mark.parametrize("name", ROWS)
def test_every_option_of_a_command_is_explained_and_has_a_spelling_of_its_own(name: str) -> None:
    known = {key: option for key, option in options_of(ROWS[name].kind).items() if option.panel != LIBRARY}
    assert all(option.help.endswith(".") for option in known.values())
    spellings = [flag for key, option in known.items() for flag in flags(key, option)]
    assert len(set(spellings)) == len(spellings)
    typed = [option.name or key for key, option in known.items() if flags(key, option)]
    assert all(spelled(parameter.replace("*", "forward"), ROWS[name].kind).startswith("--") for parameter in typed)


def test_the_defaults_of_options_pass_their_own_checks() -> None:
    for kind in (Loading, Writing, *(row.kind for row in ROWS.values())):
        once = checked({}, kind)
        assert checked(once, kind) == once


def test_a_function_shows_its_keywords_and_refuses_others(samples: Path) -> None:
    parameters = inspect.signature(trace_export.load).parameters
    assert parameters["detail"].default == "spans"
    assert set(parameters) == {"log_dir", *options_of(Loading)}
    with pytest.raises(TypeError, match="'step'"):
        trace_export.load(samples / "paddle" / "single", step=3)  # type: ignore[call-arg]


def with_places(folder: Path, places: dict[str, tuple[str, str]]) -> None:
    """A copy of the package in `folder`, compiled as it is, in which files have a line more before the one that is
    named, or another."""
    shutil.copytree(ROOT / "trace_export", folder / "trace_export", ignore=shutil.ignore_patterns("*.pyc.*"))
    for name, (line, new) in places.items():
        path = folder / "trace_export" / name
        code = path.read_text("utf-8")
        assert code.count(line) == 1
        path.write_text(code.replace(line, new + line if new.endswith("\n") else new), "utf-8")


def test_a_new_flag_of_export_takes_two_places(samples: Path, tmp_path: Path) -> None:
    """One in options.py, one where it is used: then the command, its help, the library and its errors have it."""
    with_places(tmp_path, PLACES)

    def arrows(*words: object) -> int:
        out = tmp_path / "chart.json"
        command = [sys.executable, "-m", "trace_export", *words, "--out", out, "--quiet"]
        subprocess.run(list(map(str, command)), cwd=tmp_path, check=True)
        return sum(event["ph"] == "s" for event in json.loads(out.read_text("utf-8"))["traceEvents"])

    logs = samples / "paddle" / "single"
    assert arrows("export", logs) > 0
    assert arrows("export", logs, "--no-arrows") == 0
    asked = "import sys, trace_export as t; t.load(sys.argv[1]).align().write(sys.argv[2], arrows=sys.argv[3])"
    refused = [sys.executable, "-c", asked, str(logs), "chart.json", "yes"]
    ended = subprocess.run(refused, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert 'arrows: "yes" is not True or False' in ended.stderr
    shown = [sys.executable, "-m", "trace_export", "export", "--help-all"]
    assert "Draw no arrow." in subprocess.run(shown, cwd=tmp_path, capture_output=True, text=True, check=True).stdout


LINES_FILE = """
from trace_export.writers.mark import METRICS
from trace_export.writers.tables import span_table

def write(profile, path, beside=None):
    path.write_text(METRICS + "\\n".join(span_table(profile, beside)["kind"]))
"""
LINES_ROW = '    OutputFormat("kinds", "kinds", "table", "kinds:write"),\n'


def test_a_new_output_format_takes_a_file_and_a_row(samples: Path, tmp_path: Path) -> None:
    """Then the command and its help have it, the name of a file tells it, and its files may be replaced."""
    with_places(tmp_path, {"writers/formats.py": ('    OutputFormat("csv"', LINES_ROW)})
    (tmp_path / "trace_export" / "writers" / "kinds.py").write_text(LINES_FILE, "utf-8")

    def run(*words: object) -> str:
        command = [sys.executable, "-m", "trace_export", "export", *map(str, words)]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    logs, out = samples / "paddle" / "single", tmp_path / "out.kinds"
    run(logs, "--format", "kinds", "--out", tmp_path / "folder")
    run(logs, "--out", out)
    run(logs, "--out", out, "--steps", "2")
    assert set(out.read_text("utf-8").splitlines()[1:]) == {"F", "B", "OPT"}
    assert (tmp_path / "folder" / "pipeline_profile.kinds").exists()
    assert "parquet, kinds, csv" in run("--help")


SECTION = """def _places(report: Report) -> ReportTable:
    return ReportTable("Where ranks are", report.steps.select("ranks"), "so many ranks have a step")


"""


def test_a_new_table_of_a_report_takes_two_places(samples: Path, tmp_path: Path) -> None:
    """Its function and its name in the order of the sections: then the terminal, Markdown and the page have it."""
    path = "analysis/report_tables.py"
    with_places(tmp_path, {path: ("SECTIONS: ", SECTION)})
    file = tmp_path / "trace_export" / path
    before, name, after = file.read_text("utf-8").partition("\nSECTIONS: ")
    first = after.index("_steps")
    file.write_text(before + name + after[:first] + "_places, " + after[first:], "utf-8")

    def run(*words: object) -> str:
        command = [sys.executable, "-m", "trace_export", "report", samples / "paddle" / "single", *words]
        return subprocess.run(list(map(str, command)), cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    page = tmp_path / "page.html"
    run("--out", page)
    for shown in (run("--full"), run("--full", "--format", "markdown"), page.read_text("utf-8")):
        assert "Where ranks are" in shown
        assert "so many ranks have a step" in shown
