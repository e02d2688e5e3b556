"""The commands of the program, and `trace-export DIR` as short for `trace-export export DIR`."""

from __future__ import annotations

from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from trace_export.cli import compare, docs, export, howto, inspect, mcp, overview, report, run, simulate, watch
from trace_export.cli.open import open_trace
from trace_export.cli.values import convert_plainly
from trace_export.errors import UsageError


class _DefaultGroup(TyperGroup):
    """`trace-export --log_dir logs` means `trace-export export --log_dir logs`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = {name for parameter in self.params for name in parameter.opts} | {"--help"}
        before = list(takewhile(self._flags().__contains__, args))
        after = args[len(before) :]
        if after and after[0] in self.commands:
            args = [after[0], *before, *after[1:]]
        elif args and args[0] not in own:
            meant = get_close_matches(after[0], self.commands, n=1, cutoff=0.75) if after else []
            if meant and not Path(after[0]).exists():
                raise UsageError(f'there is no command "{after[0]}"', f"did you mean {meant[0]}?")
            args = ["export", *args]
        convert_plainly(self.get_params(ctx))
        return super().parse_args(ctx, args)

    def _flags(self) -> set[str]:
        """The options without a value that may stand before the command, too: `trace-export --debug report logs`."""
        return {
            name
            for option in self.commands["export"].params
            if getattr(option, "is_flag", False)
            for name in option.opts
        }

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, whose flags show no type in its help: a flag takes no value."""
        command = super().get_command(ctx, cmd_name)
        convert_plainly(command.get_params(ctx) if command else ())
        for parameter in command.get_params(ctx) if command else ():
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return command


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
        "token_normalize_func": lambda token: token.replace("_", "-"),
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


export.register(app)
app.command("inspect")(inspect.inspect)
app.command("report")(report.report)
app.command("overview")(overview.overview)
app.command("watch")(watch.watch)
app.command("simulate")(simulate.simulate)
app.command("compare")(compare.compare)
app.command("open")(open_trace)
app.command("howto")(howto.howto)
app.command("docs")(docs.docs)
app.command("mcp")(mcp.mcp)
app.command("run", context_settings={"allow_interspersed_args": False})(run.run)
