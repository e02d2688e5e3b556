"""`trace-export watch`: the chart of a job that still runs."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from trace_export.cli import memory, terminal
from trace_export.cli import options as opt
from trace_export.errors import UsageError, path_text, printable
from trace_export.units import duration

if TYPE_CHECKING:
    from rich.console import Group

    from trace_export.live.look import Look
    from trace_export.live.step_figures import StepFigures

PORT = 9002
"""The usual one, so that a page finds the server again after a restart."""
ROWS = 20
"""Steps in the table of a terminal."""
NOT_LIVE = {
    "--steps": ("a watch shows the last steps", "give their number with --last"),
    "--time": ("a watch shows the last steps", "give their number with --last"),
    "--stages": ("a watch measures whole steps, with all their stages", "export the stages of a finished run"),
    "--run": ("a watch follows the latest run", "export another one"),
    "--replica": ("a watch reads all that grows", "choose with --ranks or --devices"),
    "--cache": ("a watch keeps what it knows while it runs", "leave it out"),
    "--max-slices": ("a watch keeps the last steps only", "give their number with --last"),
    "--columns": ("a table of another tool is finished and does not grow", "use export"),
    "--step-task-info": ("the databases of a job that runs are still written", "use export when they are finished"),
    "--in-place": ("the databases of a job that runs are still written", "use export when they are finished"),
    "--jobs": ("a watch reads in its own process, beside the job", "leave it out"),
    "--scheduler": ("a watch reads on this machine", "run it where the folder can be read"),
    "--at": ("a watch reads on this machine", "run it where the folder can be read"),
    "--strict": ("a watch goes on where something is missing, and says so", "use export when the job has ended"),
    "--json": ("a watch has many results", "use --jsonl FILE, a line for each step"),
    "--quiet": ("a watch ends when it is interrupted", "send what it prints to /dev/null"),
    "--verbose": ("a watch shows warnings only", "use report when the job has ended"),
}
"""Options of `export` that a watch has no use for: why, and what to do."""
Sink = Callable[["Look"], None]


class WatchCommand(TyperCommand):
    """Refuses an option of `export` that a watch has no use for with the reason."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for name in (argument.partition("=")[0].replace("_", "-") for argument in args):
            if name in NOT_LIVE:
                why, remedy = NOT_LIVE[name]
                raise UsageError(f"{name}: {why}", remedy)
        return super().parse_args(ctx, args)


@opt.with_groups
def watch(
    place: opt.Place,
    multi_machine: opt.MultiMachine = False,
    *,
    passes: opt.Passes,
    sizes: opt.Sizes,
    last: Annotated[int, typer.Option(help="Steps to show.", metavar="N", rich_help_panel=opt.SELECTION)] = 5,
    devices: opt.Devices = "all",
    ranks: opt.Ranks = "all",
    port: Annotated[
        int | None,
        typer.Option(
            help="Port of the page; default: 9002, or a free one.", show_default=False, rich_help_panel=opt.OUTPUT
        ),
    ] = None,
    no_browser: Annotated[
        bool,
        typer.Option(
            "--no-browser",
            help="Show the figures in this terminal and open no browser.",
            rich_help_panel=opt.OUTPUT,
        ),
    ] = False,
    slowdown: Annotated[
        bool,
        typer.Option(
            "--slowdown",
            help="Also say how much stragglers cost each step (S), which takes longer.",
            rich_help_panel=opt.OUTPUT,
        ),
    ] = False,
    prometheus: Annotated[
        Path | None,
        typer.Option(
            help="Keep the figures of the last step in this file, for Prometheus' textfile collector.",
            metavar="FILE",
            show_default=False,
            rich_help_panel=opt.OUTPUT,
        ),
    ] = None,
    jsonl: Annotated[
        Path | None,
        typer.Option(
            help="Append a line of JSON for each step to this file.",
            metavar="FILE",
            show_default=False,
            rich_help_panel=opt.OUTPUT,
        ),
    ] = None,
    once_every: Annotated[
        str | None,
        typer.Option(
            "--once-every",
            help="Export the last steps so often, to --out.",
            metavar="TIME",
            show_default=False,
            rich_help_panel=opt.OUTPUT,
        ),
    ] = None,
    path: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder or file for --once-every.",
            show_default=False,
            metavar="PATH",
            rich_help_panel=opt.OUTPUT,
        ),
    ] = None,
    formats: opt.Formats = None,
    force: opt.Force = False,
    gzip: opt.Gzip = False,
    tables: opt.Tables = "blocks",
    charting: opt.Charting,
    figures: opt.Figures,
    clocks: opt.Clocks,
    debug: opt.Debug = False,
) -> None:
    """Follow a job that still runs: its last steps on a page that changes as the profiles grow.

    Worker logs are read on as they grow, other profiles when they are finished. The page is served from 127.0.0.1.
    Ctrl-C ends the watch. What is drawn is on the page, in the trace that its button opens, and in the files of
    --once-every; options of the files and of pictures are for the latter.
    """
    os.environ.setdefault("POLARS_MAX_THREADS", "1")  # a watch runs beside a job, and its tables are small
    memory.keep()
    from trace_export import api

    given: dict[str, Any] = {
        **place.arguments(), **passes.arguments(), **sizes.arguments(), **vars(charting), **clocks.arguments(),
        "formats": formats, "gzip": gzip, "tables": tables, "figure": figures.style(),
    }  # fmt: skip
    looks = api.watch(
        last=last, slowdown=slowdown, jsonl=jsonl, prometheus=prometheus, once_every=once_every, path=path, force=force,
        multi_machine=multi_machine, devices=devices, ranks=ranks, **given,
    )  # fmt: skip
    first = next(looks)  # raises what is wrong with the options before a page is served
    with _page(first, given["log_dir"], port, no_browser) as put, _terminal(live=no_browser) as show:
        for look in chain([first], looks):
            put(look)
            show(look)


@contextmanager
def _page(first: Look, place: object, port: int | None, no_browser: bool) -> Iterator[Sink]:
    """Serves the page; gives what takes the looks that it shows."""
    from trace_export.live.board import Board
    from trace_export.viewer.live import LiveServer
    from trace_export.viewer.serve import open_browser

    board = Board(path_text(Path(str(place)).resolve().name if place else Path.cwd().name))
    with LiveServer(board.resources(), PORT, port) as server:
        shown = not no_browser and open_browser(server.address)
        typer.echo(f"{'Opening' if shown else 'Open this page in a browser:'} {server.address}")
        remote = f"ssh -L {server.host.rpartition(':')[2]}:{server.host} THIS_MACHINE"
        typer.echo(f"If the browser runs on another machine, there: {remote}. Ctrl-C ends the watch.", err=True)
        yield lambda look: server.publish(board.put(look))


@contextmanager
def _terminal(*, live: bool) -> Iterator[Sink]:
    """Shows the figures of the last steps: as a table that changes where there is a terminal, else a line for each."""
    if not (live and sys.stdout.isatty()):
        yield _print_steps
        return
    from rich.live import Live

    shown = Steps()
    with Live(shown.table(), console=terminal.console(), auto_refresh=False) as screen:
        yield lambda look: screen.update(shown.put(look), refresh=True)


def _print_steps(look: Look) -> None:
    for step in look.steps:
        figures = ", ".join(f"{name} {value}" for name, value in _cells(step).items() if value)
        typer.echo(f"{figures}. {step.cause}" if step.cause else figures)
    if look.problem:
        typer.echo(look.problem, err=True)
    for error in look.failures:
        typer.echo(str(error), err=True)


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
        "worst link": "" if link is None or ratio is None else f"{link[0]}→{link[1]} ({ratio:.3g}×)",
        "slowdown": "" if step.slowdown is None else f"{step.slowdown:.3g}",
        "clock error": "" if error is None else duration(error),
    }


class Steps:
    """The last steps as a table."""

    def __init__(self) -> None:
        self._rows: deque[dict[str, str]] = deque(maxlen=ROWS)
        self._cause = ""

    def put(self, look: Look) -> Group:
        """Takes a look; returns the table and what is wrong."""
        self._rows.extend(_cells(step) for step in look.steps)
        self._cause = (look.steps[-1].cause or "") if look.steps else self._cause
        return self.table([self._cause, look.problem, *map(str, look.failures), *(note.text for note in look.notes)])

    def table(self, remarks: Sequence[str] = ()) -> Group:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        found = Table(box=None, pad_edge=False, collapse_padding=True)  # all columns fit into 80
        names = [name for name in (self._rows[-1] if self._rows else ()) if any(row[name] for row in self._rows)]
        for name in names:
            found.add_column(name.replace(" ", "\n"), justify="right", no_wrap=True)
        for row in self._rows:
            found.add_row(*(row[name] or "–" for name in names))
        return Group(found, *(Text(printable(text)) for text in remarks if text))
