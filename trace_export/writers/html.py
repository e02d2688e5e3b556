"""What the pages have in common: tables, data for a script, and what a content security policy allows."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from typing import Any, Protocol

import orjson
import polars as pl

from trace_export.errors import printable
from trace_export.units import cells_of

ROWS = 30
"""The other rows of a longer table are folded."""


class Said(Protocol):
    """A sentence of the answer, and what to do `next`, if something is to be done."""

    @property
    def text(self) -> str: ...

    @property
    def next(self) -> str: ...


def safe(words: object) -> str:
    """`words` as text of XML or HTML: markup escaped, and what XML cannot hold spelt out."""
    return escape(printable(words))


def said_item(said: Said) -> str:
    """A sentence in a list, and below it what to do next."""
    then = f'<p class="next"><b>Next:</b> {safe(said.next)}.</p>' if said.next else ""
    return f"<li>{safe(said.text)}{then}</li>"


def digest(text: str) -> str:
    """The source of a style or script, as a content security policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def script_data(data: dict[str, Any]) -> str:
    """JSON that may stand inside a script element: no `<`, so no tag can end or open in it."""
    return orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY).decode().replace("<", "\\u003c")


def cells(frame: pl.DataFrame) -> tuple[str, list[list[str]]]:
    """The head of a table, and of each column the cells of its rows; null is –."""
    numbers = [' class="number"' if column.dtype.is_numeric() else "" for column in frame]
    head = "".join(f"<th{number}>{safe(name)}</th>" for name, number in zip(frame.columns, numbers, strict=True))
    return head, [
        [f"<td{number}>{escape(cell)}</td>" for cell in cells_of(column, no="no")]
        for column, number in zip(frame, numbers, strict=True)
    ]


def grid(head: str, seen: Sequence[str], folded: Sequence[str]) -> str:
    """A table of the rows that are seen, and below it one of those that are folded."""
    html = _grid(head, seen)
    return html + f"<details><summary>{len(folded)} more rows</summary>{_grid(head, folded)}</details>" * bool(folded)


def _grid(head: str, rows: Sequence[str]) -> str:
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
