"""`trace-export watch`: the chart of a job that still runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import typer

from trace_export.cli.inputs import one_folder
from trace_export.errors import path_text, printable
from trace_export.options import Watch, Watching, part
from trace_export.units import duration, times

if TYPE_CHECKING:
    from trace_export.live.look import Look
    from trace_export.live.step_figures import StepFigures

PORT = 9002
"""The usual one, so that a page finds the server again after a restart."""


def watch(**given: Unpack[Watch]) -> None:
    """Follow a job that still runs: its last steps on a page that changes as the profiles grow.

    Worker logs are read on as they grow, other profiles when they are finished. The page is served from 127.0.0.1.
    Ctrl-C ends the watch.
    """
    from trace_export import api

    folder = one_folder(given)
    looks = api.watch(folder, **part(given, Watching))
    first = next(looks)  # raises what is wrong with the options before a page is served
    said: set[str] = set()
    with _page(folder, given["port"], given["no_browser"]) as put:
        for look in chain([first], looks):
            put(look)
            print_steps(look, said)


@contextmanager
def _page(folder: object, port: int | None, no_browser: bool) -> Iterator[Callable[[Look], None]]:
    """Serves the page; gives what takes the looks that it shows."""
    from trace_export.live.board import Board
    from trace_export.viewer.live import LiveServer
    from trace_export.viewer.serve import open_browser

    board = Board(path_text(Path(str(folder)).resolve().name))
    with LiveServer(board.resources(), PORT, port) as server:
        shown = not no_browser and open_browser(server.address)
        typer.echo(f"{'Opening' if shown else 'Open this page in a browser:'} {server.address}")
        remote = f"ssh -L {server.host.rpartition(':')[2]}:{server.host} THIS_MACHINE"
        typer.echo(f"If the browser runs on another machine, there: {remote}. Ctrl-C ends the watch.", err=True)
        yield lambda look: server.publish(board.put(look))


def print_steps(look: Look, said: set[str]) -> None:
    """A line for each new step, what is wrong, and the warnings that were not `said` yet."""
    for step in look.steps:
        figures = ", ".join(f"{name} {value}" for name, value in _cells(step).items() if value)
        typer.echo(f"{figures}. {step.cause}" if step.cause else figures)
    if look.problem:
        typer.echo(look.problem, err=True)
    for error in look.failures:
        typer.echo(str(error), err=True)
    for text in (printable(note.text) for note in look.notes if note.text not in said):
        typer.echo(f"warning: {text}", err=True)
    said |= {note.text for note in look.notes}


def _cells(step: StepFigures) -> dict[str, str]:
    """The figures of a step by their names; "" for those that are not known, as the error of a single clock."""
    time, error = step.since_previous_ns, step.clock_error_ns
    link, ratio = step.worst_link, step.worst_link_ratio
    return {
        "step": "" if step.step is None else str(step.step),
        "since previous": "" if time is None else duration(time),
        "pipeline time": duration(step.pipeline_ns),
        "bubble": ""
        if step.bubble is None
        else f"{step.bubble:.1%}{' (times of the host)' if step.host_times else ''}",
        "slowest stage": "" if step.slowest_stage is None else str(step.slowest_stage),
        "slowest rank": str(step.slowest_rank),
        "worst link": "" if link is None or ratio is None else f"{link[0]}→{link[1]} ({times(ratio)})",
        "slowdown": "" if step.slowdown is None else f"{step.slowdown:.3g}",
        "clock error": "" if error is None else duration(error),
    }
