"""The options that say which part of a run is wanted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from trace_export.cli.options.words import SELECTION

_option = partial(typer.Option, rich_help_panel=SELECTION)

Devices = Annotated[str, _option(help="Local worker indexes on each machine: 0,1,2,3 or 0-3 or all.", metavar="LIST")]
RunNumber = Annotated[
    str,
    _option(
        "--run", help="Of several runs: a number (1 is the oldest), latest (complete) or all.", metavar="N|latest|all"
    ),
]
Ranks = Annotated[str, _option(help="Global ranks to read: 0,8-15 or all.", metavar="LIST")]
Steps = Annotated[str, _option(help="Steps to draw: 2-4 or all.", metavar="LIST")]
Stages = Annotated[str, _option(help="Stages to draw: 0-3 or all.", metavar="LIST")]
Time = Annotated[
    str | None,
    _option(
        "--time",
        help="Part of the run to draw, from its first block: 1.5s-2.0s.",
        metavar="FROM-TO",
        show_default=False,
    ),
]
Cache = Annotated[
    Path | None,
    _option(
        help="Keep in this folder where ranks and steps are; the next look opens only what it needs.",
        metavar="DIR",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class Selection:
    """The part of the run."""

    devices: Devices = "all"
    ranks: Ranks = "all"
    run: RunNumber = "latest"
    replica: Annotated[
        str,
        _option(help="Data-parallel copies of the pipeline, of which only the sources are opened.", metavar="LIST"),
    ] = "all"
    cache: Cache = None
    steps: Steps = "all"
    stages: Stages = "all"
    window: Time = None

    def arguments(self) -> dict[str, Any]:
        """What the API is given."""
        return dict(vars(self))
