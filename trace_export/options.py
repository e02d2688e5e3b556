"""Every option of the program, declared once.

An option is a key of a TypedDict: its type is that of the library's keyword, and its `Option` says how it is checked,
what it is called on the command line, and what the help says of it. From these classes come the keywords of the library
(`Unpack`), the parameters and the help of the commands, the names in errors, the shell's completion and the page of all
commands. To add an option, add a key to a class here and use its value.
"""

# No `from __future__ import annotations`: the annotations of the classes below are read when the program runs.
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, partial
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, TypeVar, Unpack, cast, get_args

from trace_export import arguments, choices, units
from trace_export.arguments import NumberSet, optional
from trace_export.errors import TraceExportError, UsageError
from trace_export.writers.formats import BY_NAME

if TYPE_CHECKING:
    from os import PathLike
    from pathlib import Path

    from trace_export.model import Declared
    from trace_export.progress import Progress
    from trace_export.selection import Window
    from trace_export.writers.pictures.style import FigureStyle

Made = TypeVar("Made")
Function = TypeVar("Function", bound=Callable[..., Any])

ARGUMENTS, INPUT, SELECTION, OUTPUT = "Arguments", "Input", "Selection", "Output"
PICTURES, CLOCKS, BASELINE, WORKERS, TERMINAL = "Pictures", "Clocks", "Baseline and limit", "Workers", "Terminal"
PANELS = (ARGUMENTS, INPUT, SELECTION, BASELINE, OUTPUT, PICTURES, CLOCKS, WORKERS, TERMINAL)
"""The parts of a command's help, in their order."""
FORMATS = tuple(BY_NAME)
LIBRARY = ""
"""In place of a part: a keyword of the library alone."""


def as_it_is(value: object, parameter: str) -> object:
    """The check of a value that is checked where it is used."""
    return value


@dataclass(frozen=True)
class Option:
    """What is known of an option beside the name and the type of its keyword.

    `help` and `panel`: its text and its part of the help, which shows what is `usual`; `--help-all` shows the rest.
    `check` takes a value and the name that errors give it, and returns what the program works with; it raises
    UsageError. `default`: of the keyword. `text` makes a value of what was typed, where that is not the text itself.
    `flag`: the spelling on the command line, where it is not the keyword with dashes; "" for an argument without one.
    `words`: those that the shell completes, or a function that names them. `name`: what the library calls it, where it
    is a part of another parameter. `required`: a command cannot do without. `instead`: the spelling that has taken its
    place, or the word nothing; such an option is hidden, and says so when it is used.
    """

    help: str = ""
    check: Callable[[Any, str], object] = as_it_is
    panel: str = OUTPUT
    default: object = None
    text: Callable[[Any, str], object] | None = None
    flag: str | None = None
    metavar: str = "TEXT"
    usual: bool = False
    words: Sequence[str] | Callable[[], Sequence[str]] = ()
    name: str = ""
    many: bool = False
    required: bool = False
    instead: str = ""

    @property
    def is_flag(self) -> bool:
        """Whether it takes no value on the command line."""
        return self.check is arguments.flag or self.check is arguments.flag_or_none


_flag = partial(Option, check=arguments.flag, default=False)
_whole = partial(Option, check=arguments.whole_or_none, text=arguments.whole_of_text, metavar="N")
_numbers = partial(Option, check=arguments.numbers, panel=SELECTION, metavar="LIST")
_path = partial(Option, check=arguments.path_or_none, metavar="PATH")
_run = partial(Option, panel=SELECTION, metavar="N|latest|all")
_VERBOSE = _flag("Also print details, such as what was inferred in a sound run.", panel=TERMINAL)
_JSON = _flag("Print the result as JSON on stdout.", panel=TERMINAL, usual=True)
_QUIET = _flag("Print nothing but errors.", panel=TERMINAL)


def _word(literal: Any, help: str, default: str | None, **more: Any) -> Option:
    """An option that takes one word of a Literal."""
    words = get_args(literal)
    check = partial(arguments.choice, words=literal)
    return Option(
        help,
        check if default else optional(check),
        default=default,
        words=words,
        metavar="|".join(words),
        **more,
    )


def _families() -> Sequence[str]:
    from trace_export.sources.formats import commands

    return commands()


def _family(value: object, parameter: str) -> str | None:
    return None if value is None else arguments.word(value, parameter, _families())


def _marks() -> Sequence[str]:
    from trace_export.instrument.backends import KINDS_OF_MARKS

    return ("auto", *KINDS_OF_MARKS)


def _mark(value: object, parameter: str) -> str:
    return arguments.word(value, parameter, _marks())


def _schedules() -> Sequence[str]:
    from trace_export.schedules.catalogue import CATALOGUE

    return list(CATALOGUE)


class Folder(TypedDict, total=False):
    """The folder, or the files in it."""

    folder: Annotated[
        list[str],
        Option("A folder of profiles, or one or several files.", panel=ARGUMENTS, default=(), flag="",
               metavar="DIR|FILE", many=True),
    ]  # fmt: skip
    log_dir: Annotated[str, Option("The same as DIR.", panel=INPUT, flag="--log_dir", metavar="DIR")]


class Sources(TypedDict, total=False):
    """What is read, and how: what all commands on profiles share. Of the sizes it is how the ranks are arranged."""

    host_ranges: Annotated[bool, _flag("Draw CPU ranges instead of GPU time.", panel=INPUT, flag="--host")]
    markers: Annotated[
        str | Sequence[str],
        Option(
            "A rule for range names, 'REGEX=>kind' with groups microbatch, chunk, stage; or a TOML file of rules.",
            arguments.texts, INPUT, default=(), flag="--marker", metavar="RULE", many=True, usual=True,
        ),
    ]  # fmt: skip
    infer: Annotated[
        choices.Infer,
        _word(
            choices.Infer,
            "Infer passes from GPU work and its launches: auto (where no range names one), off, only.",
            "auto",
            panel=INPUT,
        ),
    ]
    pp: Annotated[
        int | None,
        _whole(
            "Pipeline stages, if the profiles do not record them; likewise --tp, --dp, --cp.", panel=INPUT, usual=True
        ),
    ]
    tp: Annotated[int | None, _whole("Tensor-parallel size.", panel=INPUT)]
    dp: Annotated[int | None, _whole("Data-parallel size.", panel=INPUT)]
    cp: Annotated[int | None, _whole("Context-parallel size.", panel=INPUT)]
    family: Annotated[
        str | None,
        Option(
            "Read this format only; default: whatever is there.",
            _family, INPUT, flag="--source", metavar="FORMAT", words=_families, usual=True,
        ),
    ]  # fmt: skip
    follow_links: Annotated[bool, _flag("Follow symbolic links to folders outside the log_dir.", panel=INPUT)]
    ranks: Annotated[NumberSet, _numbers("Read only these global ranks: 0,8-15 or all.", usual=True)]


class OneRun(TypedDict, total=False):
    """Which of several runs is read, and by how many processes."""

    run: Annotated[
        int | str,
        _run("Of several runs: a number (1 is the oldest), latest (complete) or all.", arguments.run_choice,
             default="latest"),
    ]  # fmt: skip
    jobs: Annotated[
        int | None, _whole("Reader processes; default: chosen from the size of the data.", panel=WORKERS, usual=True)
    ]


class Layout(TypedDict, total=False):
    """How the folder is laid out, where it is not as profilers write it, and which devices are read."""

    multi_machine: Annotated[
        bool,
        _flag("Require machine*/ folders, one per machine (without it they are recognised, too).", panel=INPUT,
              flag="--multi_machine"),
    ]  # fmt: skip
    devices: Annotated[NumberSet, _numbers("Local worker indexes on each machine: 0,1,2,3 or 0-3 or all.")]


class Mapped(TypedDict, total=False):
    """What the columns of another tool's table mean."""

    columns: Annotated[
        str | None,
        Option(
            "Column mapping for a span table from another tool (Parquet, CSV, Chrome JSON):"
            " rank=rank,kind=op,start=t0:s,end=t1:s; also duration, step, stage, dp, microbatch, chunk, host; units s,"
            " ms, us, ns.",
            arguments.text("a text such as rank=rank,kind=name,start=ts:us"), INPUT, metavar="MAP",
        ),
    ]  # fmt: skip


class Replica(TypedDict, total=False):
    """A part of a large run."""

    cache: Annotated[
        "str | PathLike[str] | None",
        _path("Has no effect any more.", panel=SELECTION, metavar="DIR", instead="nothing"),
    ]
    replica: Annotated[NumberSet, _numbers("Read only these data-parallel replicas.")]


class Scheduler(TypedDict, total=False):
    """The cluster that reads."""

    scheduler: Annotated[
        str | None,
        Option(
            "Read on the Dask cluster of this scheduler, tcp://HOST:PORT or tls://HOST:PORT (extra dask).",
            arguments.text("an address such as tcp://HOST:PORT"), WORKERS, metavar="ADDRESS",
        ),
    ]  # fmt: skip


class Machines(Scheduler, total=False):
    """Where the profiles are, if no folder holds them all."""

    at: Annotated[
        str | Sequence[str],
        Option(
            "Instead of a log_dir: a folder on a disk of a machine of the cluster (* for each machine), or a TOML file"
            " with a table of machines and folders.",
            arguments.texts, WORKERS, default=(), metavar="MACHINE:DIR", many=True,
        ),
    ]  # fmt: skip


class Detail(TypedDict, total=False):
    """What is read beside the blocks."""

    detail: Annotated[
        choices.Detail,
        _word(
            choices.Detail, "spans: blocks; comm: communication too; kernels: all device tasks.", "spans", usual=True
        ),
    ]


class Progressing(TypedDict, total=False):
    """Who is told how far the work is."""

    progress: Annotated["Progress | None", Option(check=arguments.progress, panel=LIBRARY)]


class Known(Progressing, total=False):
    """What a program may also say of a run."""

    declared: Annotated["Declared | None", Option(check=arguments.declared, panel=LIBRARY)]


class Steps(TypedDict, total=False):
    """Some steps."""

    steps: Annotated[NumberSet, _numbers("Only these steps: 2-4 or all.", usual=True)]


class Time(TypedDict, total=False):
    """Some of the time."""

    window: Annotated[
        "str | Window | None",
        Option(
            "Only this time, counted from the first block: 1.5s-2.0s; pictures are cut there.",
            arguments.window, SELECTION, flag="--time", metavar="FROM-TO", usual=True,
        ),
    ]  # fmt: skip


class Part(Steps, Time, total=False):
    """The part of the run."""

    stages: Annotated[NumberSet, _numbers("Only these stages: 0-3 or all.", usual=True)]


class Offsets(TypedDict, total=False):
    """What the clocks of hosts are off."""

    offsets_ns: Annotated[
        Mapping[str, int] | None,
        Option(
            "Move a host's clock before runs are told apart and clocks aligned: node1=+3.2ms.",
            arguments.times_by_name, CLOCKS, text=arguments.offsets_of_texts, flag="--offset", metavar="HOST=TIME",
            many=True,
        ),
    ]  # fmt: skip


class Reading(Sources, OneRun, Offsets, Layout, Mapped, Replica, Machines, Known, total=False):
    """What a run is read from, and how."""


class Loading(Reading, Detail, Part, total=False):
    """What `load` takes."""


class Alignment(TypedDict, total=False):
    """How the clocks of the hosts are aligned."""

    align: Annotated[
        "choices.Align | PathLike[str] | str",
        Option(
            "How to align the hosts' clocks: auto, wall, none, strict, or a clock_alignment.json.",
            arguments.alignment, CLOCKS, default="auto", metavar="HOW", words=get_args(choices.Align), usual=True,
        ),
    ]  # fmt: skip


class Corrections(Offsets, total=False):
    """What is known of the clocks."""

    max_error_ns: Annotated[
        float | None,
        Option(
            "With --align strict: the largest uncertainty accepted.",
            optional(arguments.nanoseconds), CLOCKS, text=units.nanoseconds, flag="--max-clock-error", metavar="TIME",
        ),
    ]  # fmt: skip


class Aligning(Corrections, Progressing, total=False):
    """What `Run.align` takes."""


class Clocks(Alignment, Corrections, total=False):
    """How the clocks are aligned, and what is known of them."""


class Replacing(TypedDict, total=False):
    """Which files may be replaced."""

    force: Annotated[
        bool, _flag("Replace files that trace-export did not write; inputs are never replaced.", usual=True)
    ]


class Target(TypedDict, total=False):
    """The files that are written."""

    path: Annotated[
        "str | PathLike[str] | None",
        _path("Folder or file to write to; default: the log_dir.", flag="--out", usual=True),
    ]
    formats: Annotated[
        "str | Sequence[choices.Format] | None",
        Option(
            f"Any of {', '.join(FORMATS)}; several as svg,pdf. Default: as the name of --out says, else the first"
            " two.",
            flag="--format", metavar="LIST", words=FORMATS, usual=True,
        ),
    ]  # fmt: skip


class Packing(TypedDict, total=False):
    """How traces are written."""

    gzip: Annotated[bool, _flag("Compress the traces; Perfetto opens them as they are.")]


class Bubbles(TypedDict, total=False):
    """Idle time."""

    bubbles: Annotated[bool, _flag("Draw idle time as slices named by their cause.", usual=True)]


class Drawing(Bubbles, total=False):
    """What is drawn."""

    tracks: Annotated[
        choices.Tracks,
        _word(choices.Tracks, "stage: one track per stage; rank: every rank, grouped by stage.", "stage", usual=True),
    ]
    color_by: Annotated[choices.ColorBy, _word(choices.ColorBy, "What the colour of a block shows.", "kind")]
    model: Annotated[bool, _flag("Draw the theoretical schedule under the measured one.", usual=True)]
    critical_path: Annotated[
        bool, _flag("Draw what each step waits for: a track in the colours of its blocks.", usual=True)
    ]


class Writing(Packing, Drawing, Replacing, Progressing, total=False):
    """What `Run.write` writes, and how; `figure`: how pictures look."""

    tables: Annotated[
        "str | Sequence[choices.Table]",
        Option(
            f"Tables of --format parquet: any of {', '.join(get_args(choices.Table))}.",
            partial(arguments.choices, words=choices.Table), default="blocks", flag="--table", metavar="LIST",
        ),
    ]  # fmt: skip
    max_slices: Annotated[int | None, _whole("Split a larger trace into files of whole steps.")]
    figure: Annotated["FigureStyle | None", Option(panel=LIBRARY)]


class Exporting(Loading, Clocks, Writing, total=False):
    """What `export` takes."""

    step_task_info: Annotated[
        bool, _flag("Also write the table that MindStudio Insight reads, into copies of the databases.")
    ]
    in_place: Annotated[bool, _flag("With --step-task-info: into the databases themselves.")]


class Asking(TypedDict, total=False):
    """What is asked of a run besides why its steps are slow."""

    train_log: Annotated[
        "str | PathLike[str] | None",
        Option(
            "Log of the training: say how much the profiler slowed the steps.",
            arguments.file_or_none, INPUT, metavar="FILE", usual=True,
        ),
    ]  # fmt: skip
    layers: Annotated[
        str | None,
        Option(
            "Layers of the model: 80, 20,20,20,20, a layout of Megatron-LM, or count (in ranges or kernels); say which"
            " split over the stages is best.",
            arguments.text(), INPUT, metavar="SPLIT",
        ),
    ]  # fmt: skip


class Reporting(Reading, Part, Clocks, Replacing, Asking, total=False):
    """What `report` takes."""

    detail: Annotated[
        Literal["spans", "kernels"],
        _word(
            Literal["spans", "kernels"],
            "kernels: also read device tasks, and say in which of them slow blocks lose their time.",
            "spans", panel=INPUT, usual=True,
        ),
    ]  # fmt: skip


class Figure(TypedDict, total=False):
    """How pictures look: the fields of `FigureStyle`."""

    width: Annotated[
        str,
        Option(
            "Width on paper of svg, png, pdf: 88mm for a column, 180mm for a page.",
            optional(arguments.number), PICTURES, text=units.millimetres, metavar="LENGTH", usual=True,
            name="figure.width_mm",
        ),
    ]  # fmt: skip
    theme: Annotated[
        choices.Theme,
        _word(
            choices.Theme, "Colours; auto: light or dark, as the page of the reader; print and grayscale add letters.",
            "auto", panel=PICTURES, name="figure.theme", usual=True,
        ),
    ]  # fmt: skip
    title: Annotated[
        str, Option("Title in place of the chart's own; '' for none.", arguments.text(), PICTURES,
                    name="figure.title")
    ]  # fmt: skip
    legend: Annotated[
        choices.Legend,
        _word(choices.Legend, "Where the colours are explained.", "above", panel=PICTURES, name="figure.legend"),
    ]
    first_microbatch: Annotated[
        int,
        Option(
            "Number of the first micro-batch in the blocks: 0, or 1 as in papers.",
            arguments.zero_or_one, PICTURES, 0, arguments.whole_of_text, metavar="0|1", name="figure.first_microbatch",
        ),
    ]  # fmt: skip
    letters: Annotated[
        bool | None,
        Option(
            "Letter of the kind in each block: F0, B0.", arguments.flag_or_none, PICTURES,
            flag="--letters/--no-letters", name="figure.letters",
        ),
    ]  # fmt: skip
    figure_steps: Annotated[
        int,
        _whole("Steps in a still picture.", panel=PICTURES, name="figure.steps", instead="--steps"),
    ]
    range: Annotated[
        str,
        Option("Part of the time in pictures, from the first block drawn.", arguments.window, PICTURES,
               metavar="FROM-TO", name="figure.range", instead="--time"),
    ]  # fmt: skip


class Unexplained(TypedDict, total=False):
    """A spelling of 0.1."""

    no_legend: Annotated[bool, _flag("The same as --legend none.", panel=PICTURES, instead="--legend none")]


class Tracing(TypedDict, total=False):
    """What is told of an error."""

    debug: Annotated[bool, _flag("Show the traceback of an error.", panel=TERMINAL)]


class Printing(Tracing, total=False):
    """What is printed."""

    verbose: Annotated[bool, _VERBOSE]
    strict: Annotated[bool, _flag("Exit with code 3 if there is a warning.", panel=TERMINAL)]
    json: Annotated[bool, _JSON]
    quiet: Annotated[bool, _QUIET]


class Inspecting(Sources, OneRun, Offsets, Mapped, Known, total=False):
    """What `inspect` takes."""

    full: Annotated[bool, _flag("Read large sources whole, not only their beginning.", panel=INPUT, usual=True)]


class Overviewing(
    Sources, Layout, OneRun, Mapped, Replica, Part, Replacing, Alignment, Scheduler, Progressing,
    total=False,
):  # fmt: skip
    """What `overview` takes."""


class Judging(TypedDict, total=False):
    """When a run is worse than another."""

    fail_above: Annotated[
        "str | float | None",
        Option(
            "Exit with code 4 if B is worse by more than this, beyond what the steps vary.",
            optional(arguments.share), BASELINE, metavar="PERCENT", usual=True,
        ),
    ]  # fmt: skip
    on: Annotated[
        str,
        Option("What must not be worse: step (its time), bubble (in points), slowdown, stage:N.",
               arguments.what_is_judged, BASELINE, "step", metavar="WHAT", usual=True),
    ]  # fmt: skip


class Saving(Sources, OneRun, Layout, Mapped, Part, Replacing, Alignment, Progressing, total=False):
    """What `save_baseline` takes."""


class Comparing(Saving, Judging, Packing, total=False):
    """What `compare` takes."""

    steps_a: Annotated[NumberSet, _numbers("Steps of A, if they are not those of B.", usual=True)]
    steps_b: Annotated[NumberSet, _numbers("Steps of B, if they are not those of A.", usual=True)]
    run_a: Annotated[
        int | str | None,
        _run("The run of A, if it is not that of B.", optional(arguments.run_choice)),
    ]
    run_b: Annotated[
        int | str | None,
        _run("The run of B, if it is not that of A.", optional(arguments.run_choice)),
    ]


class Watching(Sources, Layout, Detail, Drawing, Replacing, Clocks, total=False):
    """What `watch` takes, and what of a job that runs is shown and kept."""

    last: Annotated[
        int,
        Option("Steps to show.", arguments.whole, SELECTION, 5, arguments.whole_of_text, metavar="N", usual=True),
    ]
    slowdown: Annotated[bool, _flag("Also say how much stragglers cost each step (S), which takes longer.", usual=True)]
    jsonl: Annotated[
        "str | PathLike[str] | None",
        _path("Append a line of JSON for each step to this file.", metavar="FILE", usual=True),
    ]


class Export(Folder, Target, Exporting, Figure, Unexplained, Printing, total=False):
    """The options of the command `export`."""


class Answering(Printing, total=False):
    """How much of an answer is printed."""

    full: Annotated[
        bool,
        _flag("Print all sentences and tables, and what the columns mean; default: what fits on one screen.",
              panel=TERMINAL, usual=True),
    ]  # fmt: skip


class Report(Folder, Reporting, Answering, total=False):
    """The options of the command `report`."""

    format: Annotated[
        Literal["text", "markdown", "json", "html", "svg", "png"],
        _word(
            Literal["text", "markdown", "json", "html", "svg", "png"],
            "text, markdown, json: on standard output; html: one page with the chart; svg, png: the slowdown of each"
            " rank as a heat map. Default: as the name of --out says, else text.",
            None, usual=True,
        ),
    ]  # fmt: skip
    path: Annotated[
        "Path | None",
        _path("The page or heat map, or its folder; default: pipeline_report.html or pipeline_slowdown.svg in the"
              " log_dir.", flag="--out", usual=True),
    ]  # fmt: skip


class Inspect(Folder, Inspecting, Tracing, total=False):
    """The options of the command `inspect`."""

    verbose: Annotated[bool, _VERBOSE]
    json: Annotated[bool, _JSON]


class Overview(Folder, Overviewing, Printing, total=False):
    """The options of the command `overview`."""

    formats: Annotated[
        str,
        Option("Any of html,parquet: one page, its tables. Default: html; with --json alone, no file.", flag="--format",
               metavar="LIST", words=get_args(choices.OverviewFormat), usual=True),
    ]  # fmt: skip
    path: Annotated[
        "Path | None", _path("The folder to write to, or the page; default: the log_dir.", flag="--out", usual=True)
    ]


class Compare(Comparing, Answering, total=False):
    """The options of the command `compare`."""

    a: Annotated[
        str,
        Option("A folder of profiles, or a span table.", panel=ARGUMENTS, flag="", metavar="A", required=True),
    ]
    b: Annotated[
        str,
        Option("The other run; the same folder if only the steps differ.", panel=ARGUMENTS, flag="", metavar="B"),
    ]
    baseline: Annotated[
        "Path | None",
        _path("Compare with the figures in this file, instead of a run A.", panel=BASELINE, metavar="FILE", usual=True),
    ]
    save: Annotated[bool, _flag("Keep the figures of the run in the file of --baseline.", panel=BASELINE, usual=True)]
    path: Annotated[
        "Path | None",
        _path("Folder or file for one trace with both; none is written without it.", flag="--out", usual=True),
    ]
    formats: Annotated[
        str,
        Option("text, markdown or json: how the result is printed; else files of the chart, as for export.",
               flag="--format", metavar="LIST", words=("text", "markdown", "json", *FORMATS), usual=True),
    ]  # fmt: skip


class Simulate(Time, Target, Packing, Bubbles, Replacing, Figure, Unexplained, Tracing, total=False):
    """The options of the command `simulate`."""

    schedule: Annotated[
        str,
        Option(
            "gpipe, 1f1b, eager-1f1b, interleaved, zb-h1, zb-h2, zb-v, dualpipe, dualpipev, …; several, such as"
            " 1f1b,zb-h1, are drawn in one picture.",
            panel=INPUT, metavar="NAME", words=_schedules, required=True, usual=True,
        ),
    ]  # fmt: skip
    stages: Annotated[int, _whole("Ranks of the pipeline.", panel=INPUT, required=True, usual=True)]
    microbatches: Annotated[
        int,
        _whole("Micro-batches of a step.", panel=INPUT, flag="--microbatches,--micro-batches", required=True,
               usual=True),
    ]  # fmt: skip
    chunks: Annotated[int, _whole("Model chunks per rank, where the schedule has several.", panel=INPUT, usual=True)]
    times: Annotated[
        str,
        Option(
            "Duration of one block of each kind; B is the gradient of the input where W blocks exist. Default:"
            " F=10ms,B=20ms,W=10ms, but B=10ms where W blocks exist.",
            panel=INPUT, metavar="LIST", name="costs.*", usual=True,
        ),
    ]  # fmt: skip
    comm: Annotated[
        float,
        Option("Time of a transfer to another stage.", panel=INPUT, text=units.nanoseconds, metavar="TIME",
               name="costs.transfer", usual=True),
    ]  # fmt: skip
    overlap: Annotated[
        float,
        Option("Duration of a fused F/B, as a fraction of F plus B.", panel=INPUT, text=arguments.fraction_of_text,
               metavar="FRACTION", name="costs.overlap", usual=True),
    ]  # fmt: skip
    json: Annotated[bool, _JSON]
    quiet: Annotated[bool, _QUIET]


class Open(Tracing, total=False):
    """The options of the command `open`."""

    file: Annotated[
        str,
        Option("A .pftrace or .json trace, gzipped or not, or the folder of one.", panel=ARGUMENTS, flag="",
               metavar="FILE", required=True),
    ]  # fmt: skip
    offline: Annotated[bool, _flag("Use the Perfetto UI of the extra ui instead of ui.perfetto.dev.", usual=True)]
    no_browser: Annotated[bool, _flag("Print the link and open nothing.", usual=True)]
    timeout: Annotated[
        str, Option("End after this long without a request.", default="300s", metavar="TIME", usual=True)
    ]


class Watch(Folder, Watching, Tracing, total=False):
    """The options of the command `watch`."""

    port: Annotated[
        int,
        Option("Port of the page; default: 9002, or a free one.", text=arguments.whole_of_text, metavar="N",
               usual=True),
    ]  # fmt: skip
    no_browser: Annotated[bool, _flag("Print the figures in this terminal, and open no browser.", usual=True)]


class RunCommand(TypedDict, total=False):
    """The options of the command `run`."""

    command: Annotated[
        list[str],
        Option("The training command: `torchrun … train.py`.", panel=ARGUMENTS, flag="", metavar="COMMAND", many=True,
               required=True),
    ]  # fmt: skip
    marks: Annotated[
        str,
        Option("Where the marks go; auto is what fits the framework.", _mark, default="auto", metavar="KIND",
               words=_marks, usual=True),
    ]  # fmt: skip
    record: Annotated[
        "Path | None", _path("Also record the blocks to this folder, without a profiler.", metavar="DIR", usual=True)
    ]


class Docs(TypedDict, total=False):
    """The options of the command `docs`."""

    page: Annotated[
        str, Option("The page to print; default: a list of all pages.", panel=ARGUMENTS, flag="", metavar="PAGE")
    ]


class Mcp(TypedDict, total=False):
    """The options of the command `mcp`."""

    paths: Annotated[
        list[str],
        Option("Folders or files of profiles, each a run; nothing else is read.", panel=ARGUMENTS, flag="",
               metavar="DIR...", many=True, required=True),
    ]  # fmt: skip


@cache
def options_of(kind: Any) -> dict[str, Option]:
    """The options of a class of this module, by their keywords."""
    return {name: annotation.__metadata__[0] for name, annotation in kind.__annotations__.items()}


def checked(given: Mapping[str, object], kind: type) -> dict[str, Any]:
    """The value of each option of `kind`: what was given, or else its default, as the program works with it.

    Raises UsageError for a wrong value, TypeError for a keyword that `kind` does not have.
    """
    declared = options_of(kind)
    for name in given:
        if name not in declared:
            raise TypeError(f"there is no keyword {name!r}")
    return {
        name: option.check(given.get(name, option.default), option.name or name) for name, option in declared.items()
    }


def part(given: Mapping[str, object], kind: type[Made]) -> Made:
    """Those of the options that are options of `kind`."""
    declared = options_of(cast("Any", kind))
    return cast("Made", {name: value for name, value in given.items() if name in declared})


def filled(kind: Callable[..., Made], values: Mapping[str, Any], **more: Any) -> Made:
    """An object of the dataclass `kind`, whose fields have the values of their names."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in values.items() if name in names} | more)


def drawing(**given: Unpack[Drawing]) -> Drawing:
    """What is drawn, every option of it."""
    return cast("Drawing", checked(given, Drawing))


def keywords(kind: type) -> Callable[[Function], Function]:
    """Gives a function whose last parameter is `**given: Unpack[kind]` a signature that lists the keywords."""

    def signed(function: Function) -> Function:
        first = [p for p in signature(function).parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
        more = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=options_of(kind)[name].default, annotation=_written(each))
            for name, each in kind.__annotations__.items()
        ]
        function.__signature__ = signature(function).replace(parameters=[*first, *more])  # type: ignore[attr-defined]
        return function

    return signed


def _written(annotation: Any) -> object:
    """The type of a keyword, as its declaration says."""
    kind = annotation.__origin__
    return getattr(kind, "__forward_arg__", kind)


def flags(name: str, option: Option) -> list[str]:
    """The spellings of an option on the command line; none for an argument."""
    flag = f"--{name.replace('_', '-')}" if option.flag is None else option.flag
    return flag.split(",") if flag else []


def as_typed(text: str, kind: type) -> str:
    """What an error of the library says, with the spellings of a command for the parameters in backquotes."""
    return re.sub("`([a-z_.]+)`", lambda name: spelled(name[1], kind), text)


def in_words_of(kind: type, error: TraceExportError) -> TraceExportError:
    """An error of the library, with the spellings of a command for the names of its parameters."""
    error.what, error.remedy = as_typed(error.what, kind), as_typed(error.remedy, kind)
    if isinstance(error, UsageError) and error.parameter:
        error.parameter = spelled(error.parameter, kind)
    return error


def spelled(parameter: str, kind: type) -> str:
    """What the command with the options of `kind` calls a parameter of the library, or where it has none of the name,
    another command does."""
    for each in (kind, Export, Inspect, Open):
        by_name = {option.name or name: (name, option) for name, option in options_of(each).items()}
        named = by_name.get(parameter) or by_name.get(f"{parameter.partition('.')[0]}.*")
        if named:
            spellings = [named[1].instead] if named[1].instead.startswith("--") else flags(*named)
            return spellings[0].partition("/")[0] if spellings else named[1].metavar
    return parameter
