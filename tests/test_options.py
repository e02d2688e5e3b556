"""Options are declared once: everything that users see of one follows from its declaration."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import trace_export
from tests.conftest import ROOT
from trace_export.cli.commands import ROWS
from trace_export.options import LIBRARY, Loading, Writing, checked, flags, options_of, spelled


@pytest.mark.parametrize("name", ROWS)
def test_every_option_of_a_command_is_explained_and_has_a_spelling_of_its_own(name: str) -> None:
    options = {key: option for key, option in options_of(ROWS[name].kind).items() if option.panel != LIBRARY}
    assert all(option.help.endswith(".") for option in options.values())
    spellings = [flag for key, option in options.items() for flag in flags(key, option)]
    assert len(set(spellings)) == len(spellings)
    typed = [option.name or key for key, option in options.items() if flags(key, option)]
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


KINDS = """
from trace_export.writers.mark import STEP_LINE
from trace_export.writers.tables import span_table

def write(profile, path, beside=None):
    path.write_text(STEP_LINE + "\\n".join(span_table(profile, beside)["kind"]))
"""
TABLE = """def _places(report: Report) -> ReportTable:
    return ReportTable("Where ranks are", report.steps.select("ranks"), "so many ranks have a step")


"""
PLACES = (
    (
        "options.py",
        "    model: Annotated[bool,",
        '    arrows: Annotated[bool, _flag("Draw no arrow.", flag="--no-arrows")]\n    model: Annotated[bool,',
    ),
    ("draw.py", "            edges=None if for_picture", '            edges=None if drawing["arrows"] or for_picture'),
    (
        "writers/formats.py",
        '    OutputFormat("csv"',
        '    OutputFormat("kinds", "kinds", "table", "kinds:write"),\n    OutputFormat("csv"',
    ),
    ("analysis/report_tables.py", "\nSECTIONS: ", f"\n{TABLE}SECTIONS: "),
    ("analysis/report_tables.py", "    _steps, _causes,", "    _places, _steps, _causes,"),
)
"""What a new flag of `export`, a new format of output and a new table of a report take, beside the file of the format:
two places each, as (file, text, what it becomes)."""
COMMANDS = {
    "arrows": "export LOGS --out arrows.json", "no arrows": "export LOGS --out none.json --no-arrows",
    "all help": "export --help-all", "folder": "export LOGS --format kinds --out folder",
    "file": "export LOGS --out out.kinds", "again": "export LOGS --out out.kinds --steps 2", "help": "export --help",
    "page": "report LOGS --out page.html", "terminal": "report LOGS --full",
    "markdown": "report LOGS --full --format markdown",
}  # fmt: skip
RUN_ALL = """
import json, sys, trace_export
from tests.support.command import command
logs, *commands = sys.argv[1:]
done = [command(*(logs if word == "LOGS" else word for word in words.split())) for words in commands]
try:
    trace_export.load(logs).align().write("chart.json", arrows="yes")
except trace_export.UsageError as error:
    print(json.dumps([str(error), *((ended.returncode, ended.stdout + ended.stderr) for ended in done)]))
"""


def test_what_is_new_takes_two_places(samples: Path, tmp_path: Path) -> None:
    """The declaration and the use: then the command, its help, the library, its errors and all that is written have
    it. In a copy of the package, whose commands one process runs."""
    package = shutil.copytree(
        ROOT / "trace_export", tmp_path / "trace_export", ignore=shutil.ignore_patterns("*.pyc.*")
    )
    for name, text, instead in PLACES:
        code = (package / name).read_text("utf-8")
        assert code.count(text) == 1, (name, text)
        (package / name).write_text(code.replace(text, instead), "utf-8")
    (package / "writers" / "kinds.py").write_text(KINDS, "utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "PYTHONWARNINGS": "error"}
    words = [sys.executable, "-c", RUN_ALL, str(samples / "paddle" / "single"), *COMMANDS.values()]
    ended = subprocess.run(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    refused, *done = json.loads(ended.stdout)
    said = {name: text for name, (code, text) in zip(COMMANDS, done, strict=True) if code == 0}
    assert said.keys() == COMMANDS.keys(), done

    arrows = [
        sum(event["ph"] == "s" for event in json.loads((tmp_path / name).read_text("utf-8"))["traceEvents"])
        for name in ("arrows.json", "none.json")
    ]
    assert arrows[0] > 0
    assert arrows[1] == 0
    assert "Draw no arrow." in said["all help"]
    assert 'arrows: "yes" is not True or False' in refused

    assert set((tmp_path / "out.kinds").read_text("utf-8").splitlines()[1:]) == {"F", "B", "OPT"}
    assert (tmp_path / "folder" / "pipeline_profile.kinds").exists()
    assert "parquet, kinds, csv" in said["help"]

    for shown in (said["terminal"], said["markdown"], (tmp_path / "page.html").read_text("utf-8")):
        assert "Where ranks are" in shown
        assert "so many ranks have a step" in shown
