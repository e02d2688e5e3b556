"""A new format is one folder and one row: what docs/adding-a-format.md says is done to a copy of the package."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from tests.conftest import ROOT

PAGE = (ROOT / "trace_export/docs/adding-a-format.md").read_text(encoding="utf-8")
CODE = dict(re.findall(r"^```python\n# (\S+)\n(.*?)^```", PAGE, re.M | re.S))
LOGS = re.findall(r"^```csv\n(.*?)^```", PAGE, re.M | re.S)
COMMANDS = re.findall(r"^\$ trace-export (.*)", PAGE, re.M)
REGISTRY = "trace_export/sources/formats.py"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with the toy format, and `logs` in that format."""
    place = tmp_path_factory.mktemp("toy")
    shutil.copytree(ROOT / "trace_export", place / "trace_export")
    for name, code in CODE.items():
        path = place / name
        if name == REGISTRY:
            before, end, after = path.read_text(encoding="utf-8").partition('\n)\n"""In this order')
            assert end
            code = f"{before}\n{code.rstrip()}{end}{after}"
        else:
            assert path.parent == place / "trace_export" / "sources" / "toy"
            path.parent.mkdir(exist_ok=True)
            (path.parent / "__init__.py").touch()
        path.write_text(code, encoding="utf-8")
    (place / "logs").mkdir()
    for rank, text in enumerate(LOGS):
        (place / "logs" / f"toy.{rank}.csv").write_text(text, encoding="utf-8")
    return place


def run(place: Path, arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trace_export", *shlex.split(arguments)]
    environment = {**os.environ, "PYTHONPATH": str(place), "PYTHONWARNINGS": "error"}
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", COMMANDS)
def test_the_commands_of_the_page_run(place: Path, arguments: str) -> None:
    done = run(place, arguments)
    assert done.returncode == 0, done.stderr
    if "--out" not in arguments:
        return
    columns = ["rank", "step", "stage", "kind", "microbatch", "start_ns", "end_ns"]
    found = pl.read_csv(place / "out" / "pipeline_profile.csv").select(columns).sort(columns)
    logged = pl.concat(pl.read_csv(text.encode()).with_columns(rank=rank) for rank, text in enumerate(LOGS))
    times = [(pl.col(f"{end}_us") * 1000).alias(f"{end}_ns") for end in ("start", "end")]
    assert found.rows() == logged.with_columns(times).select(columns).sort(columns).rows()


def test_the_program_knows_the_format_everywhere(place: Path) -> None:
    assert "Draw toy logs." in run(place, "--help").stdout
    (place / "empty").mkdir()
    assert "toy.N.csv" in run(place, "empty").stderr
    (place / "broken").mkdir()
    (place / "broken" / "toy.0.csv").write_text("nothing of the kind\n1\n")
    done = run(place, "toy broken")
    assert done.returncode == 1
    assert "toy.0.csv: is no toy log (" in done.stderr
    assert done.stderr.endswith("; record it again\n")
    assert "Traceback" not in done.stderr
