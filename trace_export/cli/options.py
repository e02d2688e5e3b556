"""The options of the commands: groups that several commands share, with the names of the API's parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from trace_export import choices
from trace_export.cli import choosing
from trace_export.errors import UsageError, path_text
from trace_export.units import millimetres, nanoseconds

if TYPE_CHECKING:
    from trace_export.api import FigureStyle

LogDir = Annotated[
    Path | None,
    typer.Option("--log_dir", "--log-dir", help="Folder that holds the profiles.", show_default=False, metavar="DIR"),
]
Folder = Annotated[
    list[Path] | None,
    typer.Argument(
        help="The same as --log_dir; or one or several files of profiles.", show_default=False, metavar="DIR|FILE"
    ),
]
Pp = Annotated[
    int | None,
    typer.Option(help="Number of pipeline stages, where the profiles do not record it.", show_default=False),
]
Tp = Annotated[int | None, typer.Option(help="Tensor-parallel size.", show_default=False)]
Dp = Annotated[int | None, typer.Option(help="Data-parallel size.", show_default=False)]
Cp = Annotated[int | None, typer.Option(help="Context-parallel size.", show_default=False)]
Formats = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="Any of perfetto,chrome,perfetto-archive,svg,png,pdf,html,parquet,csv; default: as the name of --out says,"
        " else the first two.",
        metavar="LIST",
        show_default=False,
        autocompletion=choosing.formats,
    ),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Replace files that trace-export did not write; inputs are never replaced."),
]
Gzip = Annotated[bool, typer.Option("--gzip", help="Compress the traces; Perfetto opens them as they are.")]
Align = Annotated[
    str,
    typer.Option(
        help="How to align the clocks of the hosts: auto, wall, none, strict, or a clock_alignment.json.", metavar="HOW"
    ),
]
FollowLinks = Annotated[
    bool, typer.Option("--follow-links", help="Follow symbolic links to folders outside the log_dir.")
]
Jobs = Annotated[
    int | None,
    typer.Option(help="Number of reader processes; default: chosen from the size of the data.", show_default=False),
]
Devices = Annotated[
    str, typer.Option(help="Local worker indexes on each machine: 0,1,2,3 or 0-3 or all.", metavar="LIST")
]
Stages = Annotated[str, typer.Option(help="Stages to draw: 0-3 or all.", metavar="LIST")]
Time = Annotated[
    str | None,
    typer.Option(
        "--time",
        help="Part of the run to draw, from its first block: 1.5s-2.0s.",
        metavar="FROM-TO",
        show_default=False,
    ),
]
Ranks = Annotated[str, typer.Option(help="Global ranks to read: 0,8-15 or all.", metavar="LIST")]
HostRanges = Annotated[bool, typer.Option("--host", help="Draw CPU ranges instead of GPU time.")]
Markers = Annotated[
    list[str] | None,
    typer.Option(
        "--marker",
        help="A rule for range names, 'REGEX=>kind' with groups microbatch, chunk, stage; or a TOML file of rules.",
        metavar="RULE",
        show_default=False,
    ),
]
ColumnMap = Annotated[
    str | None,
    typer.Option(
        help="What the columns of another tool's table mean, where DIR is one (Parquet, CSV, Chrome JSON):"
        " rank=rank,kind=optype,start=start_ts:s,end=end_ts:s; also duration, step, stage, dp, microbatch, chunk,"
        " host; units s, ms, us, ns.",
        metavar="MAP",
        show_default=False,
    ),
]
MultiMachine = Annotated[
    bool,
    typer.Option(
        "--multi_machine",
        "--multi-machine",
        help="Require machine*/ folders, one per machine (without the option they are found, too).",
    ),
]
Steps = Annotated[str, typer.Option(help="Steps to draw: 2-4 or all.", metavar="LIST")]
Cache = Annotated[
    Path | None,
    typer.Option(
        help="Keep in this folder where ranks and steps are; the next look opens only what it needs.",
        metavar="DIR",
        show_default=False,
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Print details too, such as what a sound run had inferred.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def _one_of(known: Any, text: str) -> Any:
    """An option that takes one word of a Literal. The words are offered to the shell; the API refuses any other."""
    words = get_args(known)
    return typer.Option(help=text, metavar="|".join(words), autocompletion=lambda: list(words))


Infer = Annotated[
    str,
    _one_of(
        choices.Infer,
        "Blocks from the launches of GPU work. auto: where no pass is named; off: never; only: whatever is named.",
    ),
]


@dataclass(frozen=True)
class Source:
    """The folder, and the part of it that is wanted."""

    folder: Folder = None
    log_dir: LogDir = None
    devices: Devices = "all"
    multi_machine: MultiMachine = False
    follow_links: FollowLinks = False
    ranks: Ranks = "all"
    replica: Annotated[
        str,
        typer.Option(
            help="Data-parallel copies of the pipeline, of which only the sources are opened.", metavar="LIST"
        ),
    ] = "all"
    cache: Cache = None
    steps: Steps = "all"
    stages: Stages = "all"
    window: Time = None
    pp: Pp = None
    tp: Tp = None
    dp: Dp = None
    cp: Cp = None

    def arguments(self) -> dict[str, Any]:
        """What the API is given."""
        given = dict(vars(self))
        return given | {"log_dir": one_folder(given.pop("folder"), self.log_dir)}


@dataclass(frozen=True)
class Drawing:
    """What is written."""

    formats: Formats = None
    path: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder or file to write to; default: the log_dir.", show_default=False, metavar="PATH"
        ),
    ] = None
    force: Force = False
    gzip: Gzip = False
    tracks: Annotated[
        str, _one_of(choices.Tracks, "stage: one track per stage; rank: every rank, grouped by stage.")
    ] = "stage"
    detail: Annotated[
        str, _one_of(choices.Detail, "spans: blocks only; comm: communication too; kernels: all device tasks.")
    ] = "spans"
    color_by: Annotated[
        str, _one_of(choices.ColorBy, "What the colour of a block shows: kind, microbatch, rank or none.")
    ] = "kind"
    bubbles: Annotated[bool, typer.Option("--bubbles", help="Draw idle time as slices named by their cause.")] = False
    model: Annotated[bool, typer.Option("--model", help="Draw the theoretical schedule under the measured one.")] = (
        False
    )
    critical_path: Annotated[
        bool, typer.Option("--critical-path", help="Draw what each step waits for: a track, and its blocks in colour.")
    ] = False
    states: Annotated[
        bool, typer.Option("--states", help="Draw what each stage does as state tracks, for Perfetto 57 and later.")
    ] = False
    tables: Annotated[
        str,
        typer.Option(
            "--table",
            help="Tables of --format parquet: any of blocks,messages,ranks,steps,critical_path.",
            metavar="LIST",
        ),
    ] = "blocks"
    max_slices: Annotated[
        int | None,
        typer.Option("--max-slices", help="Split a larger trace into files of whole steps.", show_default=False),
    ] = None
    step_task_info: Annotated[
        bool,
        typer.Option(
            "--step-task-info",
            help="Also write the table that MindStudio Insight reads, into copies of the databases.",
        ),
    ] = False
    in_place: Annotated[
        bool, typer.Option("--in-place", help="With --step-task-info: into the databases themselves.")
    ] = False


@dataclass(frozen=True)
class Figures:
    """How pictures look; see `writers.pictures.style`."""

    width: Annotated[
        str | None,
        typer.Option(
            help="Width on paper of svg, png, pdf: 88mm for a column, 180mm for a page.",
            metavar="LENGTH",
            show_default=False,
        ),
    ] = None
    theme: Annotated[
        str,
        _one_of(choices.Theme, "Colours. auto: light or dark as the reader's page; print, grayscale: with letters."),
    ] = "auto"
    title: Annotated[
        str | None, typer.Option(help="Title in place of the chart's own; '' for none.", show_default=False)
    ] = None
    legend: Annotated[str, _one_of(choices.Legend, "Where the colours are explained.")] = "above"
    no_legend: Annotated[bool, typer.Option("--no-legend", help="The same as --legend none.")] = False
    figure_steps: Annotated[
        int | None,
        typer.Option(
            "--figure-steps", help="Steps in a still picture; default: the selected ones, or three.", show_default=False
        ),
    ] = None
    range_: Annotated[
        str | None,
        typer.Option(
            "--range",
            help="Only this part of the time, cut at both ends, from the first block drawn: 1.2s-1.6s.",
            metavar="FROM-TO",
            show_default=False,
        ),
    ] = None
    first_microbatch: Annotated[
        int,
        typer.Option("--first-microbatch", help="Number of the first micro-batch in the blocks: 0, or 1 as in papers."),
    ] = 0
    letters: Annotated[
        bool | None,
        typer.Option("--letters/--no-letters", help="Letter of the kind in each block: F0, B0.", show_default=False),
    ] = None
    font: Annotated[
        Path | None,
        typer.Option(
            help="Font file (.ttf, .otf): svg, png and pdf have their text as its outlines.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None

    def style(self) -> FigureStyle:
        """What the API is given."""
        from trace_export import api

        return api.FigureStyle(
            width_mm=None if self.width is None else millimetres(self.width, "figure.width_mm"),
            theme=self.theme,  # type: ignore[arg-type]  # the API refuses any other word
            title=self.title,
            legend="none" if self.no_legend else self.legend,  # type: ignore[arg-type]
            steps=self.figure_steps,
            range=None if self.range_ is None else api.Window.parse(self.range_, "figure.range"),
            first_microbatch=self.first_microbatch,
            letters=self.letters,
            font=self.font,
        )


@dataclass(frozen=True)
class Reading:
    """How profiles are read and aligned, and by whom."""

    host_ranges: HostRanges = False
    markers: Markers = None
    infer: Infer = "auto"
    columns: ColumnMap = None
    align: Align = "auto"
    offsets_ns: Annotated[
        list[str] | None,
        typer.Option(
            "--offset",
            help="Move a host's clock before aligning: node1=+3.2ms.",
            metavar="HOST=TIME",
            show_default=False,
        ),
    ] = None
    max_error_ns: Annotated[
        str | None,
        typer.Option(
            "--max-clock-error",
            help="With --align strict: the largest uncertainty accepted.",
            metavar="TIME",
            show_default=False,
        ),
    ] = None
    jobs: Jobs = None
    scheduler: Annotated[
        str | None,
        typer.Option(
            help="Read on the Dask cluster of this scheduler, tcp://HOST:PORT or tls://HOST:PORT (extra dask); the"
            " log_dir is one that its workers see too.",
            metavar="ADDRESS",
            show_default=False,
        ),
    ] = None
    at: Annotated[
        list[str] | None,
        typer.Option(
            help="Instead of a log_dir: a folder on a disk of a machine of the cluster (* for each machine), or a TOML"
            " file with a table of machines and folders.",
            metavar="MACHINE:DIR",
            show_default=False,
        ),
    ] = None

    def arguments(self) -> dict[str, Any]:
        """What the API is given."""
        error = self.max_error_ns
        return vars(self) | {
            "markers": self.markers or (),
            "at": self.at or (),
            "offsets_ns": offsets(self.offsets_ns or ()),
            "max_error_ns": None if error is None else nanoseconds(error, "max_error_ns"),
        }


@dataclass(frozen=True)
class Printing:
    """What is printed."""

    verbose: Verbose = False
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 3 if there is a warning.")] = False
    json: Json = False
    quiet: Quiet = False
    debug: Debug = False


GROUPS = (Source, Drawing, Figures, Reading, Printing)
PANELS = {
    "Input": (
        "log_dir",
        "multi_machine",
        "follow_links",
        "host_ranges",
        "markers",
        "infer",
        "columns",
        "pp",
        "tp",
        "dp",
        "cp",
    ),
    "Selection": ("devices", "ranks", "replica", "cache", "steps", "stages", "window"),
    "Clocks": ("align", "offsets_ns", "max_error_ns"),
    "Workers": ("jobs", "scheduler", "at"),
    "Output": tuple(field.name for field in fields(Drawing)),
    "Pictures": tuple(field.name for field in fields(Figures)),
    "Terminal": tuple(field.name for field in fields(Printing)),
}
"""The options of each part of a command's help."""


PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command as Typer takes it: each parameter of the type of a group is replaced by the group's fields."""
    hints = get_type_hints(command, include_extras=True)
    flat: list[Parameter] = []
    for name, parameter in signature(command).parameters.items():
        if is_dataclass(kind := hints[name]):
            types = get_type_hints(kind, include_extras=True)
            for field in fields(kind):
                flat.append(_keyword(field.name, field.default, types[field.name]))
        else:
            flat.append(_keyword(name, parameter.default, hints[name]))

    def run(**values: Any) -> None:
        for name, kind in hints.items():
            if name != "return" and is_dataclass(kind):
                values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})  # type: ignore[operator]
        command(**values)

    run.__doc__ = command.__doc__
    run.__signature__ = Signature(flat)  # type: ignore[attr-defined]
    run.__annotations__ = {}
    return run


def _keyword(name: str, default: object, annotation: Any) -> Parameter:
    """A parameter with its part of the help."""
    if name in PANEL_OF:
        annotation.__metadata__[0].rich_help_panel = PANEL_OF[name]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def spelled(parameter: str) -> str:
    """The option that stands for a parameter of the API."""
    if parameter.startswith("figure."):
        name = parameter.removeprefix("figure.")
        return {"width_mm": "--width", "steps": "--figure-steps"}.get(name, f"--{name.replace('_', '-')}")
    if parameter.startswith("costs."):
        return {"costs.transfer": "--comm", "costs.overlap": "--overlap"}.get(parameter, "--times")
    for group in GROUPS:
        hint = get_type_hints(group, include_extras=True).get(parameter)
        info = hint.__metadata__[0] if hint is not None else None
        names = [name for name in (info.default, *(info.param_decls or ())) if isinstance(name, str)] if info else []
        if names:
            return names[0]
    return f"--{parameter.replace('_', '-')}"


def one_folder(positional: Sequence[Path] | None, option: Path | None) -> Path | list[Path] | None:
    """The folder or the files that were given by either spelling. Raises UsageError for two folders."""
    given = list(positional or ())
    if option is not None and given not in ([], [option]):
        raise UsageError(f"two folders given, {given[0]} and {option}", "give one")
    return option or (given[0] if len(given) == 1 else given or None)


def offsets(texts: Sequence[str]) -> dict[str, int]:
    """`node1=+3.2ms` → {"node1": 3200000}. Raises UsageError."""
    result = {}
    for text in texts:
        host, equals, time = text.rpartition("=")
        if not equals or not host:
            raise UsageError(f'"{text}" is not HOST=TIME', "write it like node1=+3.2ms", parameter="offsets_ns")
        result[path_text(host)] = nanoseconds(time, "offsets_ns")
    return result
