"""`trace-export howto SOURCE`: how to collect a profile that can be drawn; the texts are those of the documentation."""

from __future__ import annotations

import sys
from enum import StrEnum
from importlib.resources import files
from typing import Annotated

import typer


class Guide(StrEnum):
    nsys = "nsys"
    ascend = "ascend"
    mindspore = "mindspore"
    paddle = "paddle"
    kineto = "kineto"


def text(guide: Guide) -> str:
    """The guide as Markdown."""
    return files("trace_export").joinpath("docs", "collect", f"{guide}.md").read_text("utf-8")


def howto(
    source: Annotated[
        Guide | None, typer.Argument(help="Which profiler; without it the guides are listed.", show_default=False)
    ] = None,
) -> None:
    """Say how to collect a profile that can be drawn: commands, settings, what they cost, how to check the result."""
    if source is None:
        for guide in Guide:
            print(f"trace-export howto {guide:10} {text(guide).partition(chr(10))[0].removeprefix('# ')}")
    elif sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(text(source)))
    else:
        print(text(source), end="")
