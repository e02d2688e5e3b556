"""The cells of a table as text: the numbers of a column with the same decimals, so that they align."""

from __future__ import annotations

from math import floor, log10
from typing import TYPE_CHECKING

from trace_export.errors import printable

if TYPE_CHECKING:
    import polars as pl

NOTHING = "–"


def cells_of(column: pl.Series, yes: str = "yes", no: str = "no") -> list[str]:
    """The values of a column as text, null as –. Floats have as many decimals as show four digits of the largest;
    percentages one or two, milliseconds three at most. They are rounded here and nowhere before."""
    if column.dtype.is_float():
        least, most = (1, 2) if column.name.endswith("%") else (0, 3 if column.name.endswith("ms") else 6)
        largest = column.abs().filter(column.is_finite()).to_list()
        decimals = min(max(3 - floor(log10(max(largest, default=0) or 1)), least), most)
        return [NOTHING if value is None else f"{round(value, decimals) + 0.0:.{decimals}f}" for value in column]
    words = {None: NOTHING, True: yes, False: no} if str(column.dtype) == "Boolean" else {None: NOTHING}
    return [words[value] if value in words else printable(value) for value in column]
