"""The page of a report draws the step, the replica and the ranks of the first cause, and marks them."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from samples.generators.data_parallel import WRITERS, Job
from samples.generators.pipeline import MS
from trace_export import api
from trace_export.analysis.report import Report

JOB = Job(stages=3, replicas=4, steps=5, microbatches=6)
SLOW = replace(JOB, slow_ranks={JOB.rank(3, 1): 1.5})


class Page(NamedTuple):
    """The page, the data of its chart, the report, and the folder with the profiles."""

    text: str
    data: dict[str, Any]
    report: Report
    folder: Path


def page(folder: Path, job: Job) -> Page:
    WRITERS["nsys"](folder / "in", job)
    path = folder / "page.html"
    report = api.report(folder / "in", path, html=True, jobs=1).report
    text = path.read_text("utf-8")
    data = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return Page(text, json.loads(data[0]), report, folder / "in")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """The page of a job without a cause."""
    return page(tmp_path_factory.mktemp("sound"), JOB)


@pytest.fixture(scope="module")
def slow_rank(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """The page of a job with a slow rank."""
    return page(tmp_path_factory.mktemp("slow"), SLOW)


def rows(data: dict[str, Any]) -> dict[str, bool]:
    """The names of the rows of ranks, and whether they are marked."""
    return {row["name"]: row["mark"] for row in data["rows"] if "idle" not in row["name"]}


def test_a_slow_replica_is_drawn_and_marked(tmp_path: Path) -> None:
    job = replace(JOB, slow={(2, stage): 1.4 for stage in range(3)})
    text, data, *_ = page(tmp_path, job)
    assert rows(data) == {f"stage {s} · rank {job.rank(2, s)}": True for s in range(3)}
    assert f"the first cause: replica 2, ranks {job.rank(2, 0)},{job.rank(2, 1)},{job.rank(2, 2)}" in text


def test_a_slow_rank_is_drawn_with_its_replica(slow_rank: Page) -> None:
    _, data, *_ = slow_rank
    assert rows(data) == {f"stage {s} · rank {JOB.rank(3, s)}": s == 1 for s in range(3)}


def test_a_slow_link_marks_both_its_ends(tmp_path: Path) -> None:
    ends = JOB.rank(1, 1), JOB.rank(1, 2)
    _, data, *_ = page(tmp_path, replace(JOB, links={ends: 9 * MS}))
    assert rows(data) == {f"stage {s} · rank {JOB.rank(1, s)}": s > 0 for s in range(3)}


def test_a_pause_is_in_the_step_and_marked(tmp_path: Path) -> None:
    text, data, report, *_ = page(tmp_path, replace(JOB, pause=80 * MS))
    assert report.verdict[0].code == "long-pause"
    assert "the first cause: pause between steps" in text
    step, lasts = data["steps"][data["first"]], report.steps["step_ns"][report.explained]
    assert data["pause"]
    assert step["end"] - step["start"] == pytest.approx(lasts, rel=0.001)
    assert step["end"] - step["worked"] == pytest.approx(80 * MS + JOB.gap, rel=0.05)


def test_without_a_cause_nothing_is_marked(sound: Page) -> None:
    text, data, report, *_ = sound
    assert report.verdict[0].code == "nothing-stands-out"
    assert not any(rows(data).values())
    assert "the first cause" not in text


def test_the_bars_of_the_levels_add_up_to_the_step(slow_rank: Page) -> None:
    text, _, report, *_ = slow_rank
    bars = re.findall(r'<rect class="(more|less)" x="([\d.]+)" y="1" width="([\d.]+)"', text)
    levels = json.loads(report.json())["levels"]
    assert len(bars) == len(levels)
    end = 0.0
    for (way, left, width), level in zip(bars, levels, strict=True):
        assert (way == "more") == (level["adds_ns"] >= 0)
        assert float(width) == pytest.approx(max(abs(100 * level["share"]), 0.4), abs=0.01)
        begins = min(end, end + 100 * level["share"], 100 - float(width))  # so that the last one is seen
        assert float(left) == pytest.approx(begins, abs=0.01)
        end += 100 * level["share"]
    assert end == pytest.approx(100)


def test_what_comes_after_the_causes_is_folded(sound: Page) -> None:
    text, _, report, *_ = sound
    open_ones = text.partition("<details>")[0]
    assert re.findall(r"<h2>(.*?)</h2>", open_ones) == ["What a step is made of", "Causes"]
    titles = ["More about this answer", *(table.title for table in report.tables())]
    assert sorted(re.findall(r"<h2>(.*?)</h2>", text)) == sorted(titles)


def test_the_bubbles_beside_the_chart_are_those_of_the_document(slow_rank: Page) -> None:
    _, data, report, *_ = slow_rank
    stated = {(row["step"], row["rank"]): row["bubble"] for row in json.loads(report.json())["ranks"]}
    assert len(stated) == JOB.steps * JOB.stages * JOB.replicas
    drawn = [row["name"].rpartition(" ")[2] for row in data["rows"]]
    assert len(drawn) == 2 * JOB.stages, "each rank has a row below for what it is idle for"
    for step in data["steps"]:
        number = int(step["name"].split()[1])
        shares = zip(drawn, step["shares"], strict=True)
        assert {rank: share for rank, share in shares if share is not None} == {
            rank: stated[number, int(rank)] for rank in drawn if rank != "idle"
        }


@pytest.mark.parametrize("slow_first", [True, False])
def test_a_comparison_draws_the_replica_of_its_cause(
    sound: Page, slow_rank: Page, slow_first: bool, tmp_path: Path
) -> None:
    for name, made in (("a", slow_rank if slow_first else sound), ("b", sound if slow_first else slow_rank)):
        shutil.copytree(made.folder, tmp_path / name)
    api.compare(tmp_path / "a", tmp_path / "b", tmp_path / "page.html", jobs=1)
    text = (tmp_path / "page.html").read_text("utf-8")
    data = json.loads(re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[0])
    names = [f"stage {s} · rank {JOB.rank(3, s)} ({run})" for s in range(JOB.stages) for run in "ab"]
    assert [row["name"] for row in data["rows"]] == names
    assert ("shorter" if slow_first else "longer") in text
