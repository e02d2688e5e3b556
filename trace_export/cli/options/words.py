"""What the options of all parts are made with."""

from __future__ import annotations

from typing import Any, get_args

import typer

INPUT, SELECTION, OUTPUT, PICTURES = "Input", "Selection", "Output", "Pictures"
CLOCKS, WORKERS, TERMINAL = "Clocks", "Workers", "Terminal"
"""The parts of a command's help."""


def one_of(known: Any, text: str, panel: str) -> Any:
    """An option that takes one word of a Literal. The words are offered to the shell; the API refuses any other."""
    words = get_args(known)
    return typer.Option(help=text, metavar="|".join(words), autocompletion=lambda: list(words), rich_help_panel=panel)
