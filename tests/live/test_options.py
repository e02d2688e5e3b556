"""The options of `export` that a watch has: what they draw, and those that are refused."""

from __future__ import annotations

import inspect
import threading
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import trace_export
from samples.generators.paddle import Job
from tests.conftest import Cli
from tests.support.command import parser
from tests.support.growing_logs import GrowingLogs
from tests.support.traces import decode
from trace_export.cli.options import Figures
from trace_export.cli.watch import NOT_LIVE
from trace_export.live.board import Board

PAGE = {"port", "no_browser", "debug"}
"""Options of the command alone."""
FILES: dict[str, dict[str, Any]] = {
    "path": {"path": "there"},
    "formats": {"formats": ["csv", "svg"]},
    "gzip": {"gzip": True},
    "tables": {"formats": "parquet", "tables": ["blocks", "ranks"]},
    "figure": {"figure": trace_export.FigureStyle(180)},
}
"""Parameters of the files that `once_every` asks for."""


def test_both_sides_have_the_same_parameters() -> None:
    names = {parameter.name for parameter in parser().commands["watch"].params} - PAGE - {"help", "folder"}
    figures = {field.name for field in fields(Figures)}
    assert figures < names
    library = inspect.signature(trace_export.watch).parameters.keys() - {"stop"}
    assert (names - figures) | {"figure"} == library


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


@pytest.mark.parametrize(
    ("given", "drawn"),
    [
        ({"bubbles": True}, "stage 0 · idle"),
        ({"model": True}, "stage 0 (1F1B, model)"),
        ({"critical_path": True}, "critical path"),
    ],
)
def test_the_page_and_its_trace_have_what_is_asked_for(logs: Path, given: dict[str, Any], drawn: str) -> None:
    plain, with_more = board(logs), board(logs, **given)
    assert pictures(plain) != pictures(with_more)
    assert drawn.encode() in with_more.trace()
    assert drawn.encode() not in plain.trace()


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


@pytest.mark.parametrize("option", NOT_LIVE)
def test_an_option_without_use_is_refused(option: str, tmp_path: Path) -> None:
    with pytest.raises(trace_export.UsageError, match=option):
        CliRunner().invoke(parser(), ["watch", str(tmp_path), option], catch_exceptions=False)


def test_a_refusal_says_why_and_what_to_do(tmp_path: Path, run_cli: Cli) -> None:
    done = run_cli("watch", tmp_path, "--steps=3")
    sentence = "trace-export: --steps: a watch shows the last steps; give their number with --last\n"
    assert (done.returncode, done.stderr) == (2, sentence)


def test_every_option_of_an_export_is_there_or_refused() -> None:
    export, watch = (
        {
            max(parameter.opts, key=len).replace("_", "-")
            for parameter in parser().commands[name].params
            if parameter.param_type_name == "option"
        }
        for name in ("export", "watch")
    )
    assert export - watch == NOT_LIVE.keys()


@pytest.mark.parametrize("name", FILES)
def test_options_of_files_need_files(name: str, tmp_path: Path) -> None:
    with pytest.raises(trace_export.UsageError, match="give it together with once_every"):
        trace_export.watch(tmp_path, **FILES[name])
