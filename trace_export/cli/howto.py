"""`trace-export howto SOURCE`: how to collect a profile that can be drawn; the texts are those of the documentation."""

from __future__ import annotations

from importlib.resources import files
from typing import Annotated

import typer

from trace_export.cli.choosing import INSTRUMENT
from trace_export.cli.docs import show
from trace_export.errors import UsageError
from trace_export.sources.formats import guides


def text(guide: str) -> str:
    """The guide as Markdown."""
    return files("trace_export").joinpath("docs", "collect", f"{guide}.md").read_text("utf-8")


def known() -> list[str]:
    """The guides: one for each profiler, and how to mark a training script."""
    return [*guides(), INSTRUMENT]


def howto(
    source: Annotated[
        str | None,
        typer.Argument(
            help="Which profiler, or instrument; without it the guides are listed.",
            show_default=False,
            metavar=f"[{'|'.join(known())}]",
            autocompletion=known,
        ),
    ] = None,
) -> None:
    """Print how to collect a profile that can be drawn, or how to mark the passes of a training script."""
    if source is None:
        for guide in known():
            print(f"trace-export howto {guide:10} {text(guide).partition(chr(10))[0].removeprefix('# ')}")
        return
    if source not in known():
        raise UsageError(f'there is no guide "{source}"', f"choose one of {', '.join(known())}")
    show(text(source))
