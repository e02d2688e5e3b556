"""The options that say what is drawn, and where it is written."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from trace_export import choices
from trace_export.cli import choosing
from trace_export.cli.options.words import OUTPUT, one_of

_option = partial(typer.Option, rich_help_panel=OUTPUT)
_choice = partial(one_of, panel=OUTPUT)

Formats = Annotated[
    str | None,
    _option(
        "--format",
        help="Any of perfetto, chrome, svg, png, pdf, html, parquet, csv; several as svg,pdf."
        " Default: as the name of --out says, else the first two.",
        metavar="LIST",
        show_default=False,
        autocompletion=choosing.formats,
    ),
]
Force = Annotated[
    bool,
    _option("--force", help="Replace files that trace-export did not write; inputs are never replaced."),
]
Tables = Annotated[
    str,
    _option(
        "--table",
        help="Tables of --format parquet: any of blocks, messages, ranks, steps, critical_path.",
        metavar="LIST",
    ),
]
Gzip = Annotated[bool, _option("--gzip", help="Compress the traces; Perfetto opens them as they are.")]


@dataclass(frozen=True)
class Files:
    """The files that are written."""

    formats: Formats = None
    path: Annotated[
        Path | None,
        _option("--out", help="Folder or file to write to; default: the log_dir.", show_default=False, metavar="PATH"),
    ] = None
    force: Force = False
    gzip: Gzip = False


@dataclass(frozen=True)
class Charting:
    """What is drawn."""

    tracks: Annotated[
        str, _choice(choices.Tracks, "stage: one track per stage; rank: every rank, grouped by stage.")
    ] = "stage"
    detail: Annotated[
        str, _choice(choices.Detail, "spans: blocks only; comm: communication too; kernels: all device tasks.")
    ] = "spans"
    color_by: Annotated[
        str, _choice(choices.ColorBy, "What the colour of a block shows: kind, microbatch, rank or none.")
    ] = "kind"
    bubbles: Annotated[bool, _option("--bubbles", help="Draw idle time as slices named by their cause.")] = False
    model: Annotated[bool, _option("--model", help="Draw the theoretical schedule under the measured one.")] = False
    critical_path: Annotated[
        bool, _option("--critical-path", help="Draw what each step waits for: a track, and its blocks in colour.")
    ] = False


@dataclass(frozen=True)
class Drawing(Charting, Files):
    """What is drawn and written."""

    tables: Tables = "blocks"
    max_slices: Annotated[
        int | None,
        _option("--max-slices", help="Split a larger trace into files of whole steps.", show_default=False),
    ] = None
    step_task_info: Annotated[
        bool,
        _option(
            "--step-task-info",
            help="Also write the table that MindStudio Insight reads, into copies of the databases.",
        ),
    ] = False
    in_place: Annotated[bool, _option("--in-place", help="With --step-task-info: into the databases themselves.")] = (
        False
    )
