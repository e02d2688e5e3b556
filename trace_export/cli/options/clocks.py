"""The options that say how the clocks of the hosts are aligned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer

from trace_export.cli.options.words import CLOCKS
from trace_export.errors import UsageError, path_text
from trace_export.units import nanoseconds

_option = partial(typer.Option, rich_help_panel=CLOCKS)

Align = Annotated[
    str,
    _option(
        help="How to align the clocks of the hosts: auto, wall, none, strict, or a clock_alignment.json.", metavar="HOW"
    ),
]


@dataclass(frozen=True)
class Clocks:
    """How clocks are aligned."""

    align: Align = "auto"
    offsets_ns: Annotated[
        list[str] | None,
        _option(
            "--offset",
            help="Move a host's clock before aligning: node1=+3.2ms.",
            metavar="HOST=TIME",
            show_default=False,
        ),
    ] = None
    max_error_ns: Annotated[
        str | None,
        _option(
            "--max-clock-error",
            help="With --align strict: the largest uncertainty accepted.",
            metavar="TIME",
            show_default=False,
        ),
    ] = None

    def arguments(self) -> dict[str, Any]:
        """What the API is given."""
        error = self.max_error_ns
        return vars(self) | {
            "offsets_ns": offsets(self.offsets_ns or ()),
            "max_error_ns": None if error is None else nanoseconds(error, "max_error_ns"),
        }


def offsets(texts: Sequence[str]) -> dict[str, int]:
    """`node1=+3.2ms` → {"node1": 3200000}. Raises UsageError."""
    result = {}
    for text in texts:
        host, equals, time = text.rpartition("=")
        if not equals or not host:
            raise UsageError(f'"{text}" is not HOST=TIME', "write it like node1=+3.2ms", parameter="offsets_ns")
        result[path_text(host)] = nanoseconds(time, "offsets_ns")
    return result
