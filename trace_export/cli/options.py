"""The options that several commands share, and what they become."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

LogDir = Annotated[
    Path | None,
    typer.Option("--log_dir", "--log-dir", help="Folder that holds the profiles.", show_default=False, metavar="DIR"),
]
Folder = Annotated[Path | None, typer.Argument(help="The same as --log_dir.", show_default=False, metavar="[DIR]")]
Devices = Annotated[
    str, typer.Option(help="Local worker indexes on each machine: 0,1,2,3 or 0-3 or all.", metavar="LIST")
]
MultiMachine = Annotated[
    bool,
    typer.Option(
        "--multi_machine",
        "--multi-machine",
        help="Each machine* folder is a machine (found without too; with it there must be one).",
    ),
]
Ranks = Annotated[str, typer.Option(help="Global ranks to read: 0,8-15 or all.", metavar="LIST")]
Steps = Annotated[str, typer.Option(help="Steps to draw: 2-4 or all.", metavar="LIST")]
Stages = Annotated[
    str,
    typer.Option(help="Stages to draw: 0-3 or all.", metavar="LIST"),
]
Time = Annotated[
    str | None,
    typer.Option(
        "--time",
        help="Part of the run to draw, from its first block: 1.5s-2.0s.",
        metavar="FROM-TO",
        show_default=False,
    ),
]
Pp = Annotated[int | None, typer.Option(help="Pipeline stages, where the data do not say.", min=1, show_default=False)]
Tp = Annotated[int | None, typer.Option(help="Tensor-parallel size.", min=1, show_default=False)]
Dp = Annotated[int | None, typer.Option(help="Data-parallel size.", min=1, show_default=False)]
Cp = Annotated[int | None, typer.Option(help="Context-parallel size.", min=1, show_default=False)]
Host = Annotated[bool, typer.Option("--host", help="CPU-side ranges where the default is device time.")]
Marker = Annotated[
    list[str] | None,
    typer.Option(
        help="A rule for range names, 'REGEX=>kind' with groups microbatch, chunk, stage; or a TOML file of rules.",
        metavar="RULE",
        show_default=False,
    ),
]
Align = Annotated[
    str,
    typer.Option(
        help="How to put hosts on one clock: auto, wall, none, strict, or a clock_alignment.json.", metavar="HOW"
    ),
]
Offset = Annotated[
    list[str] | None,
    typer.Option(help="Move a host's clock before aligning: node1=+3.2ms.", metavar="HOST=TIME", show_default=False),
]
MaxClockError = Annotated[
    str | None,
    typer.Option(
        "--max-clock-error",
        help="With --align strict: the largest uncertainty accepted.",
        metavar="TIME",
        show_default=False,
    ),
]
FollowLinks = Annotated[
    bool, typer.Option("--follow-links", help="Search folders outside the log_dir that links in it lead to.")
]
Jobs = Annotated[
    int | None, typer.Option(help="Processes that read; default: as many as pay off.", min=1, show_default=False)
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        help="Read on the Dask cluster of this scheduler, tcp://HOST:PORT (extra dask); the log_dir is one that its"
        " workers see too.",
        metavar="ADDRESS",
        show_default=False,
    ),
]
At = Annotated[
    list[str] | None,
    typer.Option(
        help="Instead of a log_dir: a folder on a disk of a machine of the cluster (* for each machine), or a TOML"
        " file with a table of machines and folders.",
        metavar="MACHINE:DIR",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
Strict = Annotated[bool, typer.Option("--strict", help="Any warning makes the exit code 3.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
