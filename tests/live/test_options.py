"""The options of a watch: what they draw, and others, which are refused."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import trace_export
from samples.generators.paddle import Job
from tests.conftest import Cli
from tests.support.growing_logs import GrowingLogs
from tests.support.traces import decode
from trace_export.live.board import Board


def board(folder: Path, **given: Any) -> Board:
    """What the page shows of the logs in a folder."""
    stop = threading.Event()
    look = next(trace_export.watch(folder, last=2, stop=stop, **given))
    shown = Board("run")
    shown.put(look)
    return shown


def pictures(shown: Board) -> str:
    return "".join(panel.svg(shown._span_ns).decode() for panel in shown._panels)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    GrowingLogs(folder, Job(stages=3, microbatches=4, steps=range(4), announced=False)).write(0, 1, 2, 3)
    return folder


def test_the_page_and_its_trace_have_what_is_asked_for(logs: Path) -> None:
    drawn = {"bubbles": "stage 0 · idle", "model": "stage 0 (1F1B, model)", "critical_path": "critical path"}
    shown = [board(logs), *(board(logs, **{option: True}) for option in drawn)]
    assert len({pictures(each) for each in shown}) == 4
    traces = [each.trace() for each in shown]
    for number, words in enumerate(drawn.values(), 1):
        assert [words.encode() in trace for trace in traces] == [place == number for place in range(4)]


def test_the_page_draws_as_many_tracks_as_it_is_asked_for(samples: Path) -> None:
    def rows(**given: Any) -> int:
        return sum(row.lanes for row in board(samples / "nsys", pp=2, **given)._panels[-1].plot._figure.rows)

    assert (rows(), rows(tracks="rank")) == (2, 4)


def test_the_trace_has_the_device_tasks_that_are_asked_for(samples: Path) -> None:
    names = [
        {slice["name"] for slice in decode(board(samples / "nsys", pp=2, detail=detail).trace())}
        for detail in ("spans", "kernels")
    ]
    assert names[0] < names[1]


def test_an_option_without_use_is_refused_with_what_to_do(tmp_path: Path, run_cli: Cli) -> None:
    for words, remedy in (
        ("--steps=3", "give their number with --last"),
        ("--jobs=2", "see trace-export watch --help"),
        ("--out=there", "draw the steps so far with export"),
    ):
        done = run_cli("watch", tmp_path, words)
        option = words.partition("=")[0]
        assert (done.returncode, done.stderr) == (2, f"trace-export: there is no option {option}; {remedy}\n")
