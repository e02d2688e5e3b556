"""The command line. Each command has a file of its own here: it parses, calls the API and prints; no logic.

Commands import what they need when they run, so that `--help` is quick and a training machine needs few packages.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from trace_export.cli import compare, export, howto, inspect, report, run, simulate
from trace_export.cli.open import open_trace
from trace_export.errors import TraceExportError, UsageError, printable

INTERRUPTED = 130
TERMINATED = 143


class _DefaultGroup(TyperGroup):
    """`trace-export --log_dir logs` means `trace-export export --log_dir logs`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = {name for parameter in self.params for name in parameter.opts} | {"--help"}
        if args and args[0] not in self.commands and args[0] not in own:
            meant = get_close_matches(args[0], self.commands, n=1, cutoff=0.75)
            if meant and not Path(args[0]).exists():
                raise UsageError(f'there is no command "{args[0]}"', f"did you mean {meant[0]}?")
            args = ["export", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_DefaultGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={
        "help_option_names": ["--help", "-h"],
        "token_normalize_func": lambda token: token.replace("_", "-"),
    },
    epilog="`trace-export --log_dir logs` is short for `trace-export export --log_dir logs`.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"trace-export {version('trace-export')}")
        raise typer.Exit


@app.callback()
def _common(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """One chart from the profiles of a pipeline-parallel training run."""


export.register(app)
app.command("inspect")(inspect.inspect)
app.command("report")(report.report)
app.command("simulate")(simulate.simulate)
app.command("compare")(compare.compare)
app.command("open")(open_trace)
app.command("howto")(howto.howto)
app.command("run", context_settings={"allow_interspersed_args": False})(run.run)


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits with the codes of the README; an error is one sentence on stderr."""
    arguments = sys.argv[1:] if arguments is None else arguments
    signal.signal(signal.SIGTERM, _terminated)
    atexit.register(gc.freeze)  # else the interpreter ends with a search for cycles, a twentieth of a second long
    gc.set_threshold(100_000, 20, 20)  # few cycles arise here, and a short run spends a twentieth on the search
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # more would only take memory: the matrices here are small
    try:
        app(arguments, prog_name="trace-export")
    except SystemExit as end:
        if end.code == INTERRUPTED:
            print("trace-export: interrupted; files already written are whole", file=sys.stderr)
        raise
    except BaseException as error:  # a panic inside Polars is no Exception
        if "--debug" in arguments or isinstance(error, KeyboardInterrupt):
            raise
        print(f"trace-export: {_sentence(error)}", file=sys.stderr)
        sys.exit(error.exit_code if isinstance(error, TraceExportError) else 1)


def _sentence(error: BaseException) -> str:
    if isinstance(error, TraceExportError):
        return str(error)
    if isinstance(error, MemoryError):
        return "there is not enough memory; choose --ranks or --steps, or read one at a time with --jobs 1"
    return f"internal error, {type(error).__name__}: {printable(error)} (--debug shows where)"


def _terminated(number: int, frame: object) -> None:
    """Ends as Ctrl-C does: workers stop, temporary files go."""
    sys.exit(TERMINATED)
