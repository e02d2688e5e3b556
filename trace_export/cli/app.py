"""The commands of the program, and `trace-export DIR` as short for `trace-export export DIR`."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from trace_export.cli import wrong_words
from trace_export.cli.commands import Commands
from trace_export.cli.values import convert_plainly
from trace_export.errors import UsageError


class _DefaultGroup(TyperGroup):
    """`trace-export --log_dir logs` means `trace-export export --log_dir logs`."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = cast(Any, Commands())

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = {name for parameter in self.params for name in parameter.opts} | {"--help"}
        if args and args[0] not in own and args[0] not in self.commands:
            args = self._with_command(args)
        convert_plainly(self.get_params(ctx))
        return super().parse_args(ctx, args)

    def _with_command(self, args: list[str]) -> list[str]:
        """Arguments that do not begin with a command: it comes after options, or is `export`. Raises UsageError."""
        place = self._after_options(args)
        after = args[place:]
        if after and after[0] in self.commands:
            return [after[0], *args[:place], *after[1:]]
        if after[:1] == ["cluster"] and not Path(after[0]).exists():
            raise UsageError('there is no command "cluster"', wrong_words.STEP_TASKS)
        meant = get_close_matches(after[0], self.commands, n=1, cutoff=0.75) if after else []
        if meant and not Path(after[0]).exists():
            raise UsageError(f'there is no command "{after[0]}"', f"did you mean {meant[0]}?")
        return ["export", *args]

    def _after_options(self, args: list[str]) -> int:
        """Where the first word is that is neither an option nor its value: `trace-export --jobs 1 report logs`."""
        valued = {
            _normal(name)
            for option in self.commands["export"].params
            if not getattr(option, "is_flag", False)
            for name in option.opts
        }
        place = 0
        while place < len(args) and args[place].startswith("-") and args[place] != "--":
            name, value, _ = args[place].partition("=")
            place += 2 if not value and _normal(name) in valued else 1
        return min(place, len(args))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, whose flags show no type in its help: a flag takes no value."""
        command = super().get_command(ctx, cmd_name)
        convert_plainly(command.get_params(ctx) if command else ())
        for parameter in command.get_params(ctx) if command else ():
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return command


def _normal(option: str) -> str:
    """An option in the one of its spellings."""
    return option.replace("_", "-")


EXAMPLES = """`trace-export logs` is short for `trace-export export logs`.

Examples: `trace-export inspect logs` · `trace-export logs --out chart` · `trace-export report logs` ·
`trace-export open chart/pipeline_profile.pftrace` · `trace-export howto`
"""

app = typer.Typer(
    cls=_DefaultGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={
        "help_option_names": ["--help", "-h"],
        "token_normalize_func": _normal,
    },
    epilog=EXAMPLES,
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
    """One chart from the profiles of a pipeline-parallel training run: Paddle, Nsight Systems, rocprofv3, Ascend,
    MindSpore, torch.profiler."""
