"""What the values of options become, without Pydantic where nothing needs it.

Typer converts each value by Pydantic, also the default of each option that is not given. To load it and to make the
converters takes a tenth of the time of a short run. A default is of its type already, and a text, a path and a plain
number are made without it; whatever is wrong or unusual goes to Typer, with its sentence for the user.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

DIGITS = 9
"""Of a number that is converted here; Typer knows how many are too many."""


def convert_plainly(parameters: Iterable[Any]) -> None:
    """Makes the parameters of a command of Typer convert plain values themselves."""
    for parameter in parameters:
        if "process_value" not in vars(parameter):
            _convert_plainly(parameter)


def _convert_plainly(parameter: Any) -> None:
    convert = parameter.process_value
    kind = parameter.type_descriptor.annotation
    many = parameter.multiple or parameter.nargs == -1
    (kind,) = get_args(kind) if many else (kind,)

    def process_value(context: Any, value: Any) -> Any:
        if value is None or value == ():
            plain = not parameter.required
        elif many:
            plain = isinstance(value, (list, tuple)) and all(_is_plain(each, kind) for each in value)
            value = [_made(each, kind) for each in value] if plain else value
        else:
            plain = _is_plain(value, kind)
            value = _made(value, kind) if plain else value
        if not plain:
            return convert(context, value)
        return parameter.callback(context, parameter, value) if parameter.callback else value

    parameter.process_value = process_value


def _is_plain(value: Any, kind: Any) -> bool:
    """Whether `kind(value)` is what Typer would make of it."""
    if not isinstance(kind, type):  # Literal
        return False
    if isinstance(value, kind) or not isinstance(value, str):
        return isinstance(value, kind)
    if kind is Path:
        return os.access(value, os.R_OK) or not os.path.exists(value)  # noqa: PTH110, which raises nothing
    return kind is int and value.isascii() and value.isdecimal() and len(value) <= DIGITS


def _made(value: Any, kind: type) -> Any:
    return value if isinstance(value, kind) else kind(value)
