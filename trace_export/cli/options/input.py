"""The options that say what is read: where it is, and what the names in it mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from trace_export import choices
from trace_export.cli.options.words import INPUT, one_of
from trace_export.errors import UsageError

_option = partial(typer.Option, rich_help_panel=INPUT)
_choice = partial(one_of, panel=INPUT)

LogDir = Annotated[
    Path | None,
    _option("--log_dir", help="Folder that holds the profiles.", show_default=False, metavar="DIR"),
]
FollowLinks = Annotated[bool, _option("--follow-links", help="Follow symbolic links to folders outside the log_dir.")]
HostRanges = Annotated[bool, _option("--host", help="Draw CPU ranges instead of GPU time.")]
Markers = Annotated[
    list[str] | None,
    _option(
        "--marker",
        help="A rule for range names, 'REGEX=>kind' with groups microbatch, chunk, stage; or a TOML file of rules.",
        metavar="RULE",
        show_default=False,
    ),
]
Infer = Annotated[
    str,
    _choice(
        choices.Infer,
        "Blocks from the launches of GPU work. auto: where no pass is named; off: never; only: whatever is named.",
    ),
]
ColumnMap = Annotated[
    str | None,
    _option(
        help="What the columns of another tool's table mean, where DIR is one (Parquet, CSV, Chrome JSON):"
        " rank=rank,kind=op,start=t0:s,end=t1:s; also duration, step, stage, dp, microbatch, chunk,"
        " host; units s, ms, us, ns.",
        metavar="MAP",
        show_default=False,
    ),
]
MultiMachine = Annotated[
    bool,
    _option(
        "--multi_machine",
        help="Require machine*/ folders, one per machine (without the option they are found, too).",
    ),
]


@dataclass(frozen=True)
class Place:
    """The folder."""

    folder: Annotated[
        list[Path] | None,
        typer.Argument(
            help="The same as --log_dir; or one or several files of profiles.", show_default=False, metavar="DIR|FILE"
        ),
    ] = None
    log_dir: LogDir = None
    follow_links: FollowLinks = False

    def arguments(self) -> dict[str, Any]:
        """What the API is given."""
        given = dict(vars(self))
        return given | {"log_dir": one_folder(given.pop("folder"), self.log_dir)}


@dataclass(frozen=True)
class Source(Place):
    """The folder, and how it is laid out where it is not as profilers write it."""

    multi_machine: MultiMachine = False
    columns: ColumnMap = None


@dataclass(frozen=True)
class Passes:
    """What of the recorded ranges and launches is a pass."""

    host_ranges: HostRanges = False
    markers: Markers = None
    infer: Infer = "auto"

    def arguments(self) -> dict[str, Any]:
        """What the API is given."""
        return vars(self) | {"markers": self.markers or ()}


@dataclass(frozen=True)
class Sizes:
    """How the ranks are arranged."""

    pp: Annotated[
        int | None,
        _option(
            help="Number of pipeline stages. Any of the four sizes is enough: what you give is obeyed, else what the"
            " profiles record, else what the blocks show.",
            show_default=False,
        ),
    ] = None
    tp: Annotated[int | None, _option(help="Tensor-parallel size.", show_default=False)] = None
    dp: Annotated[int | None, _option(help="Data-parallel size.", show_default=False)] = None
    cp: Annotated[int | None, _option(help="Context-parallel size.", show_default=False)] = None

    def arguments(self) -> dict[str, Any]:
        """What the API is given."""
        return dict(vars(self))


def one_folder(positional: Sequence[Path] | None, option: Path | None) -> Path | list[Path] | None:
    """The folder or the files that were given by either spelling. Raises UsageError for two folders."""
    given = list(positional or ())
    if option is not None and given not in ([], [option]):
        raise UsageError(f"two folders given, {given[0]} and {option}", "give one")
    return option or (given[0] if len(given) == 1 else given or None)
