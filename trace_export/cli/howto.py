"""`trace-export howto SOURCE`: how to collect a profile that can be drawn; the texts are those of the documentation."""

from __future__ import annotations

import sys
from importlib.resources import files
from typing import Annotated

import typer

from trace_export.errors import UsageError
from trace_export.sources.formats import guides


def text(guide: str) -> str:
    """The guide as Markdown."""
    return files("trace_export").joinpath("docs", "collect", f"{guide}.md").read_text("utf-8")


def howto(
    source: Annotated[
        str | None,
        typer.Argument(
            help="Which profiler; without it the guides are listed.",
            show_default=False,
            metavar=f"[{'|'.join(guides())}]",
            autocompletion=guides,
        ),
    ] = None,
) -> None:
    """Print how to collect a profile that can be drawn: commands, settings, costs, how to check the result."""
    if source is None:
        for guide in guides():
            print(f"trace-export howto {guide:10} {text(guide).partition(chr(10))[0].removeprefix('# ')}")
        return
    if source not in guides():
        raise UsageError(f'there is no guide "{source}"', f"choose one of {', '.join(guides())}")
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(text(source)))
    else:
        print(text(source), end="")
