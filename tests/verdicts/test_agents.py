"""The page for agents: each of its commands is run on planted runs, and has its answer where the page says."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from samples.generators.block_kernels import Shape
from samples.generators.data_parallel import WRITERS, Job, simulate
from samples.generators.pipeline import MS
from tests.conftest import ROOT
from tests.support.command import command

PAGE = (ROOT / "trace_export" / "docs" / "agents.md").read_text(encoding="utf-8")
JOB = Job(stages=4, microbatches=8, replicas=1, steps=4, clipped=False, gap=MS, shapes={})
SLOW = replace(JOB, shapes={2: Shape(slower=1.3)})


def questions() -> Iterator[tuple[str, str, str]]:
    """The rows of the table: question, command, and where the answer is."""
    rows = PAGE.partition("## Questions")[2].partition("##")[0].splitlines()
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        if len(cells) == 3 and "`trace-export" in cells[1]:
            yield cells[0], cells[1].strip("`"), cells[2]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a slow stage, the same after it was mended, what a report said before, and a training log."""
    folder = tmp_path_factory.mktemp("agents")
    for name, job in (("logs", SLOW), ("before", SLOW), ("after", JOB)):
        WRITERS["nsys"](folder / name, job)
    (folder / "before.json").write_text(command("report", folder / "before", "--json").stdout, encoding="utf-8")
    time = simulate(SLOW).step_ns / 1e9
    lines = [f"steps: {n} loss: 2.3 iter time (s): {time:.6f} samples/sec: 5\n" for n in range(9)]
    (folder / "train.log").write_text("".join(lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def answer(workplace: Path) -> Callable[[str], Any]:
    """The document that a command prints there; several questions have one command."""

    @cache
    def ask(line: str) -> Any:
        done = command(*shlex.split(line)[1:], cwd=workplace)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return ask


def at(document: Any, path: str) -> Any:
    """What stands at `verdict[0].facts`."""
    for name, number in re.findall(r"(\w+)(?:\[(\d+)\])?", path):
        document = document[name]
        document = document[int(number)] if number else document
    return document


@pytest.mark.parametrize(("line", "where"), [row[1:] for row in questions()], ids=[row[0] for row in questions()])
def test_an_answer_stands_where_the_page_says(line: str, where: str, answer: Callable[[str], Any]) -> None:
    document = answer(line)
    for path, code in re.findall(r"`([\w.\[\]]+)`(?: \(code `([\w-]+)`\))?", where):
        result = at(document, path)
        if code:
            assert code in {said["code"] for said in result}


def test_the_answers_are_what_was_planted(workplace: Path, answer: Callable[[str], Any]) -> None:
    report = json.loads((workplace / "before.json").read_text("utf-8"))
    gain = simulate(SLOW).step_ns - simulate(JOB).step_ns
    assert (report["causes"][0]["code"], report["causes"][0]["stage"]) == ("slow-stage", 2)
    assert report["causes"][0]["gain_ns"] == pytest.approx(gain, rel=report["causes"][0]["band"])
    deeper = answer("trace-export report logs --detail kernels --json")
    assert deeper["verdict"][1]["code"] == "slow-blocks"
    assert deeper["verdict"][1]["facts"]["parts"][0]["what"] == "slower"


def test_the_contract_and_the_questions_are_there() -> None:
    assert "Gains are ceilings, not forecasts" in PAGE
    assert "What is inferred is marked" in PAGE
    assert len(list(questions())) > 12
    assert command("docs", "agents").stdout == PAGE
