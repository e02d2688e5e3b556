"""The program: its commands, `trace-export DIR` as short for `trace-export export DIR`, and spellings of before."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from trace_export.cli import wrong_words
from trace_export.cli.commands import ROWS, command, old, plain
from trace_export.errors import UsageError
from trace_export.options import flags, options_of
from trace_export.sources import formats

PURPOSE = """Merges the profiles of all ranks of a pipeline-parallel run into one timeline,
and says why its steps are slow."""
MORE = """trace-export COMMAND --help shows a command's usual options, --help-all all.
Examples: trace-export logs --out chart
          trace-export report logs
          trace-export open chart/pipeline_profile.pftrace"""


def aliases() -> dict[str, list[str]]:
    """Commands of version 0.1, and what they are now."""
    return {"howto": ["docs"]} | {name: ["export", "--source", name] for name in formats.commands()}


class _Group(TyperGroup):
    """`trace-export --log_dir logs` means `trace-export export --log_dir logs`."""

    def get_params(self, ctx: Any) -> Any:
        return plain(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        return list(ROWS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return command(cmd_name) if cmd_name in ROWS else None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write("Usage: trace-export COMMAND …   (trace-export DIR draws the profiles in DIR)\n\n")
        formatter.write(f"{PURPOSE}\n\n")
        for name, row in ROWS.items():
            formatter.write(f"  {name:10}{row.summary}\n")
        names = [
            parameter.opts[-1] if parameter.opts[0] == "-h" else parameter.opts[0] for parameter in self.get_params(ctx)
        ]
        formatter.write(f"\nOptions: {', '.join(names)}\n{MORE}\n")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        spellings = {name for parameter in self.get_params(ctx) for name in parameter.opts}
        if args and args[0] not in spellings:
            args = _with_command(args)
        return super().parse_args(ctx, args)


def _with_command(args: list[str]) -> list[str]:
    """The arguments behind their command, which may come after options, be an old spelling, or not be there: then it is
    `export`. Raises UsageError for a word that looks like a command but is not one."""
    words = _words(args)
    if not words:
        return ["export", *args]
    first, rest = args[words[0]], [*args[: words[0]], *args[words[0] + 1 :]]
    if first in ROWS:
        return [first, *rest]
    if now := aliases().get(first):
        if len(words) == 1 and Path(first).is_dir() and not any(normal(word).startswith("--log-dir") for word in rest):
            hint = f"the folder {first} here is given as ./{first}, because {first} is also a command"
            raise UsageError("no folder is given", hint)
        if "--quiet" not in args:
            old(first, " ".join(now))
        return [*now, *rest]
    if not Path(first).exists():
        if first == "cluster":
            raise UsageError('there is no command "cluster"', wrong_words.STEP_TASKS)
        if meant := get_close_matches(first, [*ROWS, *aliases(), "--help"], n=1, cutoff=0.75):
            raise UsageError(f'there is no command "{first}"', f"did you mean {meant[0]}?")
    return ["export", *args]


def _valued() -> set[str]:
    """The spellings of all options that take a value."""
    return {
        normal(flag)
        for row in ROWS.values()
        for name, option in options_of(row.kind).items()
        if not option.is_flag
        for flag in flags(name, option)
    }


def _words(args: list[str]) -> list[int]:
    """Where the words are that are neither options nor their values: in `--jobs 1 report logs` at 2 and 3."""
    valued, index = _valued(), 0
    words: list[int] = []
    while index < len(args):
        name, value, _ = args[index].partition("=")
        if name == "--":
            return [*words, *range(index + 1, len(args))]
        if not name.startswith("-"):
            words.append(index)
        index += 2 if not value and normal(name) in valued else 1
    return words


def normal(option: str) -> str:
    """An option in its usual spelling."""
    return option.replace("_", "-")


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"], "token_normalize_func": normal},
)


@app.callback()
def _common(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """`--version` is answered before this is loaded."""
