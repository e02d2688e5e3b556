"""Tables of an analysis on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trace_export.errors import printable

if TYPE_CHECKING:
    from trace_export.analysis.report import ReportTable

WIDE = 240
"""Columns where nobody looks at a terminal: a line of a table stays one line in a file or a pipe."""


def show(tables: Sequence[ReportTable]) -> None:
    """Each table with its title above and its note below."""
    from rich.console import Console
    from rich.table import Table

    out = Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)
    for item in tables:
        table = Table(title=item.title, title_justify="left", title_style="bold", box=None, pad_edge=False)
        for name, dtype in item.frame.schema.items():
            table.add_column(name, justify="right" if dtype.is_numeric() else "left")
        for row in item.frame.iter_rows():
            table.add_row(*(_cell(value) for value in row))
        out.print(table)
        if item.note:
            out.print(printable(item.note), style="dim", markup=False)
        out.print()


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else ""
    return printable(value)
