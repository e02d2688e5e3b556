"""The options that say what is printed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from trace_export.cli.options.words import TERMINAL

_option = partial(typer.Option, rich_help_panel=TERMINAL)

Verbose = Annotated[bool, _option("--verbose", help="Print details too, such as what a sound run had inferred.")]
Json = Annotated[bool, _option("--json", help="Print the result as JSON on stdout.")]
Quiet = Annotated[bool, _option("--quiet", help="Print nothing but errors.")]
Debug = Annotated[bool, _option("--debug", help="Show the traceback of an error.")]


@dataclass(frozen=True)
class Printing:
    """What is printed."""

    verbose: Verbose = False
    strict: Annotated[bool, _option("--strict", help="Exit with code 3 if there is a warning.")] = False
    json: Json = False
    quiet: Quiet = False
    debug: Debug = False
