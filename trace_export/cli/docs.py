"""`trace-export docs [PAGE]`: the pages of the documentation, which the installed package contains."""

from __future__ import annotations

import sys
from importlib.resources import files
from typing import Annotated

import typer

from trace_export.cli.choosing import pages
from trace_export.errors import UsageError


def docs(
    page: Annotated[
        str | None,
        typer.Argument(
            help="Which page; without it the pages are listed.",
            show_default=False,
            metavar="[PAGE]",
            autocompletion=pages,
        ),
    ] = None,
) -> None:
    """Show a page of the documentation: definitions, formats, limits, the library."""
    if page is None:
        for name in pages():
            print(f"trace-export docs {name:20} {text(name).partition(chr(10))[0].removeprefix('# ')}")
        return
    name = page.removesuffix(".md").rpartition("/")[2]
    if name not in pages():
        raise UsageError(f'there is no page "{page}"', f"choose one of {', '.join(pages())}")
    show(text(name))


def text(page: str) -> str:
    """The page as Markdown."""
    return files("trace_export").joinpath("docs", f"{page}.md").read_text("utf-8")


def show(markdown: str) -> None:
    """A page as the terminal shows it best; as it is where nobody looks at a terminal."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(markdown))
    else:
        print(markdown, end="")
