"""The commands by their names, made from their options (`trace_export.options`)."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from inspect import Parameter, Signature
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand

from trace_export import options
from trace_export.errors import TraceExportError, UsageError
from trace_export.options import PANELS, Option, checked, flags, in_words_of, options_of

NEXT = "0.3"
"""The version that knows the old spellings no more."""


@dataclass(frozen=True)
class Row:
    """A command: its file and function, the class of its options, a line of what it does, and variables of the
    environment that the table library is to find when it is loaded, unless the user has set them."""

    home: str
    kind: type
    summary: str
    environment: Mapping[str, str] = field(default_factory=dict)


GIVE_BACK = {"_RJEM_MALLOC_CONF": "dirty_decay_ms:100,muzzy_decay_ms:0"}
"""Polars returns freed tables to the system soon, not after seconds: a report of 655,360 blocks holds 743 MB for 790.
To return them at once saves up to 8 % more, and takes a fifth of the processor time of a large report."""
KEEP = {"_RJEM_MALLOC_CONF": "dirty_decay_ms:10000,muzzy_decay_ms:10000", "POLARS_MAX_THREADS": "1"}
"""A watch has small tables, beside a job; to get its pages anew for each step would take 5 % of its processor time."""

ROWS = {
    "export": Row("export.export", options.Export, "Draw the profiles in a folder (the default)."),
    "inspect": Row("inspect.inspect", options.Inspect, "Check whether a folder can be drawn; writes nothing."),
    "report": Row("report.report", options.Report, "Say why steps are slow, and what each cause costs.", GIVE_BACK),
    "compare": Row("compare.compare", options.Compare, "Compare two runs, or two steps of one, and say what differs."),
    "overview": Row("overview.overview", options.Overview, "Show any number of ranks on one page."),
    "simulate": Row("simulate.simulate_schedule", options.Simulate, "Draw the theoretical chart of a schedule."),
    "open": Row("open.open_trace", options.Open, "Show a finished trace in the Perfetto UI."),
    "watch": Row("watch.watch", options.Watch, "Follow a job that still runs.", KEEP),
    "run": Row("run.run", options.RunCommand, "Run a training command with its blocks marked for the profiler."),
    "docs": Row("docs.docs", options.Docs, "Print a guide, such as how to collect a profile, or another page."),
    "mcp": Row("mcp.mcp", options.Mcp, "Answer an agent's questions about runs (Model Context Protocol)."),
}
"""In the order of the help."""
SETTINGS = {"run": {"allow_interspersed_args": False}}


def plain(parameters: list[Any]) -> list[Any]:
    """Parameters whose values stay as they are: options check them, and Typer would load Pydantic for it, which takes a
    fifth of the time of a small run."""
    for each in parameters:
        each.process_value = partial(_as_it_is, each.callback, each)
    return parameters


def _as_it_is(callback: Callable[..., Any] | None, parameter: Any, context: Any, value: Any) -> Any:
    return value if callback is None else callback(context, parameter, value)


class Command(TyperCommand):
    """A command whose help shows what is usual, and all with `--help-all`."""

    kind: type
    everything = False

    def get_params(self, ctx: Any) -> Any:
        return plain(super().get_params(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels = defaultdict(list)
        declared = options_of(self.kind)
        for parameter in self.get_params(ctx):
            option = declared.get(parameter.name or "")
            if option is None or option.instead:
                continue
            if option.usual or not flags(parameter.name, option) or self.everything:
                panels[option.panel].append(_described(parameter.name, option))
        for panel in (panel for panel in PANELS if panel in panels):
            with formatter.section(panel):
                formatter.write_dl(panels[panel])
        with formatter.section("Help"):
            formatter.write_dl([("--help, -h", "Show the usual options."), ("--help-all", "Show all options.")])


def _described(name: str, option: Option) -> tuple[str, str]:
    """An option in the help: its spellings, its meaning."""
    value = "" if option.is_flag else f" {option.metavar}"
    default = f" [default: {option.default}]" if isinstance(option.default, str | int) and not option.is_flag else ""
    return ", ".join(flags(name, option)) + value, option.help + default


@cache
def command(name: str) -> Any:
    """The command of that name, as Typer makes it when it is first asked for: a run needs one, and `--help` none."""
    row = ROWS[name]
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    file, function = row.home.split(".")
    call = getattr(import_module(f"{__package__}.{file}"), function)
    app.command(name, cls=Command, context_settings=SETTINGS.get(name))(_as_typer_takes_it(call, row))
    made: Any = typer.main.get_command(app)
    made.kind = row.kind
    return made


def _as_typer_takes_it(call: Callable[..., None], row: Row) -> Callable[..., None]:
    """The function of a command with a parameter for each option; it is called with their checked values."""
    shown = {name: option for name, option in options_of(row.kind).items() if option.panel != options.LIBRARY}

    def run(help_all: bool, **typed: Any) -> None:
        for name, value in row.environment.items():
            os.environ.setdefault(name, value)
        try:
            values = checked(_given(typed, row.kind), row.kind)
            call(**{name: value for name, value in values.items() if name in shown})
        except TraceExportError as error:
            raise in_words_of(row.kind, error) from error.__cause__

    parameters = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=_typed(name, option))
        for name, option in shown.items()
    ]
    more = Annotated[bool, typer.Option("--help-all", help="Show all options.", callback=_help_all, is_eager=True)]
    parameters.append(Parameter("help_all", Parameter.KEYWORD_ONLY, default=False, annotation=more))
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__doc__ = call.__doc__
    run.__annotations__ = {}
    return run


def _typed(name: str, option: Option) -> Any:
    """The parameter of an option as Typer wants it described."""
    kind: Any = bool | None if option.is_flag else list[str] | None if option.many else str | None
    more: dict[str, Any] = {
        "help": option.help,
        "rich_help_panel": option.panel,
        "autocompletion": _offered(option),
        "show_default": False,
    }
    if spellings := flags(name, option):
        return Annotated[kind, typer.Option(*spellings, metavar=option.metavar, hidden=bool(option.instead), **more)]
    return Annotated[kind, typer.Argument(metavar=option.metavar, **more)]


def _offered(option: Option) -> Callable[[str], list[str]] | None:
    """The words that may follow what was typed: `svg,p` → svg,perfetto, svg,png, … in a list."""
    if not option.words:
        return None

    def offer(incomplete: str) -> list[str]:
        words = option.words() if callable(option.words) else option.words
        typed, comma, _ = incomplete.rpartition(",") if option.metavar == "LIST" else ("", "", "")
        return [f"{typed}{comma}{word}" for word in words if word not in typed.split(",")]

    return offer


def _given(typed: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """The values of the options that were typed. Raises UsageError where one is missing or cannot be understood."""
    given = {}
    for name, option in options_of(kind).items():
        value = typed.get(name)
        if value is None or value == []:
            if option.required:
                raise UsageError("is missing", f"see trace-export {_name(kind)} --help", parameter=option.name or name)
            continue
        if option.instead and not typed.get("quiet"):
            spellings = [flag for other, row in options_of(kind).items() for flag in flags(other, row)]
            old(flags(name, option)[0], option.instead if option.instead.split()[0] in spellings else "")
        given[name] = value if option.text is None else option.text(value, option.name or name)
    return given


def _name(kind: type) -> str:
    return next(name for name, row in ROWS.items() if row.kind is kind)


def _help_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        command = cast("Command", context.command)
        command.everything = True
        print(context.get_help())
        command.everything = False  # the same object may be asked for the usual options next
        raise typer.Exit


def old(spelling: str, instead: str) -> None:
    """Says what a spelling of 0.1 is now; "" where it is nothing."""
    now = f"{spelling} is now {instead}; version {NEXT} removes the old spelling"
    typer.echo(f"note: {now if instead else f'version {NEXT} removes {spelling}'}", err=True)
