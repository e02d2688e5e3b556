"""A new option, report table and output format: each is added to a copy of the package in two places, and works."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import ROOT
from tests.support.wait import HANGS_S


class Place(NamedTuple):
    """A place to change: a file of the package, the text before it ("" for a new file), and what is put there."""

    file: str
    after: str
    new: str


FLAG = (
    Place(
        "options.py",
        'class Drawing(Bubbles, total=False):\n    """What is drawn."""\n',
        """
    arrows: Annotated[
        bool, Option("Draw dependencies as arrows.", arguments.flag, default=True, flag="--arrows/--no-arrows")
    ]
""",
    ),
    Place("draw.py", "edges=None if for_picture", ' or not drawing["arrows"]'),
)
TABLE = (
    Place(
        "analysis/report_tables.py",
        "from trace_export.analysis.report import Report\n",
        """
def _gaps(report):
    steps = report.steps.select("step", gap_ns=pl.col("step_ns") - pl.col("pipeline_ns"))
    return ReportTable("Between the pipelines", readable(steps))
""",
    ),
    Place("analysis/report_tables.py", "SECTIONS: tuple[Callable[[Report], ReportTable], ...] = (\n", "    _gaps,"),
)
FORMAT = (
    Place("writers/formats.py", "OUTPUT_FORMATS = (\n", '    OutputFormat("lines", "txt", "table", "lines:write"),\n'),
    Place(
        "writers/lines.py",
        "",
        """
from trace_export.writers import mark
from trace_export.writers.tables import span_table

def write(profile, path, beside=None):
    rows = span_table(profile, beside).select("rank", "kind", "microbatch").iter_rows()
    path.write_text(mark.METRICS + "".join(f"{rank} {kind} {number}\\n" for rank, kind, number in rows))
""",
    ),
)
PROGRAM = """
import json, sys
from tests.support.command import command
import trace_export
logs = sys.argv[1]
ended = [command(*words.split()) for words in sys.argv[2:]]
run = trace_export.load(logs).align()
run.write("library.json", arrows=False)
try:
    run.write("wrong.json", arrows="no")
except trace_export.UsageError as error:
    wrong = str(error)
json.dump({"ended": [(each.returncode, each.stdout, each.stderr) for each in ended], "wrong": wrong}, sys.stdout)
"""
COMMANDS = {
    "arrows": "{logs} --out with.json",
    "no arrows": "{logs} --out without.json --no-arrows",
    "help": "export --help-all",
    "table": "report {logs} --full",
    "page": "report {logs} --format html --out why.html",
    "format": "{logs} --format lines --out folder",
    "name": "{logs} --out lines.txt",
    "again": "{logs} --out lines.txt --ranks 0",
    "unknown": "{logs} --format nothing",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the copy of the package, and what was written with it."""
    folder = tmp_path_factory.mktemp("extended")
    shutil.copytree(ROOT / "trace_export", folder / "trace_export", ignore=shutil.ignore_patterns("__pycache__"))
    for file, after, new in (*FLAG, *TABLE, *FORMAT):
        path = folder / "trace_export" / file
        text = path.read_text("utf-8") if after else ""
        assert text.count(after) == 1 or not path.exists()
        path.write_text(text.replace(after, after + new) if after else new, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def said(place: Path, samples: Path) -> dict[str, Any]:
    """What each command and the library said."""
    logs = samples / "paddle" / "single"
    words = [command.format(logs=logs) for command in COMMANDS.values()]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(place), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, str(logs), *words],
        env=environment, cwd=place, capture_output=True, text=True, timeout=HANGS_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return {"wrong": found["wrong"], **dict(zip(COMMANDS, found["ended"], strict=True))}


def test_a_new_flag_is_an_option_and_a_keyword(place: Path, said: dict[str, Any]) -> None:
    arrows = {name: (place / f"{name}.json").read_text("utf-8").count('"ph":"s"') for name in ("with", "without")}
    assert arrows["with"] > arrows["without"] == 0
    assert (place / "library.json").read_bytes() == (place / "without.json").read_bytes()
    assert said["wrong"] == 'arrows: "no" is not True or False'
    assert "--arrows" in said["help"][1]


def test_a_new_table_is_in_the_report_and_on_its_page(place: Path, said: dict[str, Any]) -> None:
    assert "Between the pipelines" in said["table"][1]
    assert "Between the pipelines" in (place / "why.html").read_text("utf-8")


def test_a_new_format_has_a_name_and_an_extension(place: Path, said: dict[str, Any]) -> None:
    """A file of it is known as one of ours by its first line, and replaced."""
    lines = (place / "folder" / "pipeline_profile.txt").read_text("utf-8").splitlines()
    assert lines[1].split()[1] == "F"
    assert said["again"][0] == 0
    assert {line.split()[0] for line in (place / "lines.txt").read_text("utf-8").splitlines()[1:]} == {"0"}
    assert (said["unknown"][0], "lines" in said["unknown"][2]) == (2, True)
