"""A new format is one folder and one row: what docs/adding-a-format.md says is done to a copy of the package."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

import polars as pl
import pytest

from tests.conftest import ROOT

PAGE = (ROOT / "trace_export/docs/adding-a-format.md").read_text(encoding="utf-8")
CODE = dict(re.findall(r"^```python\n# (\S+)\n(.*?)^```", PAGE, re.M | re.S))
LOGS = re.findall(r"^```csv\n(.*?)^```", PAGE, re.M | re.S)
COMMANDS = re.findall(r"^\$ trace-export (.*)", PAGE, re.M)
REGISTRY = "trace_export/sources/formats.py"

OTHERS = ["inspect --source nothing logs", "empty", "toy broken"]
"""Commands that the page does not mention."""
RUN_ALL = """
import json, shlex, sys
from pathlib import Path
from tests.support.command import command
done = [command(*shlex.split(words), cwd=Path(str(number))) for number, words in enumerate(sys.argv[1:])]
json.dump([(each.returncode, each.stdout, each.stderr) for each in done], sys.stdout)
"""
"""Runs each argument as a command, in the folder of its number."""


@dataclass(frozen=True)
class Ran:
    """A command that has run, and in which folder."""

    folder: Path
    done: CompletedProcess[str]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """All commands, run by one process for which a copy of the package with the toy format is the package. In the
    folder of each are `logs` in that format."""
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
    commands = [*COMMANDS, *OTHERS]
    folders = [place / str(number) for number in range(len(commands))]
    for folder in folders:
        for name in ("logs", "empty", "broken"):
            (folder / name).mkdir(parents=True)
        for rank, text in enumerate(LOGS):
            (folder / "logs" / f"toy.{rank}.csv").write_text(text, encoding="utf-8")
        (folder / "broken" / "toy.0.csv").write_text("nothing of the kind\n1\n")
    environment = {**os.environ, "PYTHONPATH": f"{place}{os.pathsep}{ROOT}", "PYTHONWARNINGS": "error"}
    words = [sys.executable, "-c", RUN_ALL, *commands]
    out = subprocess.run(words, cwd=place, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    done = [CompletedProcess(command, *ended) for command, ended in zip(commands, json.loads(out), strict=True)]
    return dict(zip(commands, map(Ran, folders, done), strict=True))


@pytest.mark.parametrize("arguments", COMMANDS)
def test_the_commands_of_the_page_run(ran: dict[str, Ran], arguments: str) -> None:
    folder, done = ran[arguments].folder, ran[arguments].done
    assert done.returncode == 0, done.stderr
    if "--out" not in arguments:
        return
    columns = ["rank", "step", "stage", "kind", "microbatch", "start_ns", "end_ns"]
    result = pl.read_csv(folder / "out" / "pipeline_profile.csv").select(columns).sort(columns)
    logged = pl.concat(pl.read_csv(text.encode()).with_columns(rank=rank) for rank, text in enumerate(LOGS))
    times = [(pl.col(f"{end}_us") * 1000).alias(f"{end}_ns") for end in ("start", "end")]
    assert result.rows() == logged.with_columns(times).select(columns).sort(columns).rows()


def test_the_program_knows_the_format_everywhere(ran: dict[str, Ran]) -> None:
    unknown, empty, broken = (ran[arguments].done for arguments in OTHERS)
    assert "toy" in unknown.stderr  # among the formats to choose from
    assert "looked for profiles of" in empty.stderr
    assert ", toy;" in empty.stderr
    assert broken.returncode == 1
    assert "toy.0.csv is no toy log (" in broken.stderr
    assert broken.stderr.endswith("; record it again\n")
    assert "Traceback" not in broken.stderr
