"""The options that say who reads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer

from trace_export.cli.options.words import WORKERS

_option = partial(typer.Option, rich_help_panel=WORKERS)

Jobs = Annotated[
    int | None,
    _option(help="Number of reader processes; default: chosen from the size of the data.", show_default=False),
]
Scheduler = Annotated[
    str | None,
    _option(
        help="Read on the Dask cluster of this scheduler, tcp://HOST:PORT or tls://HOST:PORT (extra dask); the"
        " log_dir is one that its workers see too.",
        metavar="ADDRESS",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class Workers:
    """Who reads."""

    jobs: Jobs = None
    scheduler: Scheduler = None
    at: Annotated[
        list[str] | None,
        _option(
            help="Instead of a log_dir: a folder on a disk of a machine of the cluster (* for each machine), or a TOML"
            " file with a table of machines and folders.",
            metavar="MACHINE:DIR",
            show_default=False,
        ),
    ] = None

    def arguments(self) -> dict[str, Any]:
        """What the API is given."""
        return vars(self) | {"at": self.at or ()}
