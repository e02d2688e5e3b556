"""What the pages have in common: tables, data for a script, and what a content security policy allows."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import orjson

from trace_export.answer import ReportTable, Sentence
from trace_export.errors import printable
from trace_export.units import cells_of

ROWS = 30
"""The other rows of a longer table are folded."""


def safe(words: object) -> str:
    """`words` as text of XML or HTML: markup escaped, and what XML cannot hold spelt out."""
    return escape(printable(words))


def items(sentences: Iterable[Sentence]) -> str:
    """The items of a list of sentences, below each what to do next."""
    made = []
    for said in sentences:
        then = f'<p class="next"><b>Next:</b> {safe(said.next)}</p>' if said.next else ""
        made.append(f"<li>{safe(said.text)}{then}</li>")
    return "".join(made)


def digest(text: str) -> str:
    """The source of a style or script, as a content security policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def script_data(data: dict[str, Any]) -> str:
    """JSON that may stand inside a script element: no `<`, so no tag can end or open in it."""
    return orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY).decode().replace("<", "\\u003c")


def table(table: ReportTable, links: Mapping[int, str] | None = None, *, folded: bool = False) -> str:
    """A table with its title and note; null is –. `links`: what follows in the first cell of some rows; `folded`: only
    the title is seen."""
    title, inner = f"<h2>{safe(table.title)}</h2>", f"<p>{safe(table.note)}</p>" if table.note else ""
    if not table.frame.is_empty():
        inner += _rows(table, links or {})
    if table.left_out:
        inner += f"<p>{table.left_out} more rows are in the Parquet table.</p>"
    return f"<details><summary>{title}</summary>{inner}</details>" if folded else title + inner


def _rows(table: ReportTable, links: Mapping[int, str]) -> str:
    """The rows that are seen, those that are flagged among them, and below them those that are folded."""
    numbers = [' class="number"' if column.dtype.is_numeric() else "" for column in table.frame]
    heads = [f"<th{kind}>{safe(name)}</th>" for name, kind in zip(table.frame.columns, numbers, strict=True)]
    columns = [
        [f"<td{kind}>{escape(cell)}</td>" for cell in cells_of(column, no="no")]
        for column, kind in zip(table.frame, numbers, strict=True)
    ]
    if table.bars:
        heads.insert(1, "<th></th>")
        columns.insert(1, [_bar(*ends) for ends in table.bars])
    seen: list[str] = []
    folded: list[str] = []
    for number, (first, *others) in enumerate(zip(*columns, strict=True)):
        kind = ' class="flagged"' if number in table.flagged else ""
        row = f"<tr{kind}>{first.removesuffix('</td>')}{links.get(number, '')}</td>{''.join(others)}</tr>"
        (seen if number < ROWS or number in table.flagged else folded).append(row)
    html = _grid(heads, seen)
    return html + f"<details><summary>{len(folded)} more rows</summary>{_grid(heads, folded)}</details>" * bool(folded)


def _bar(start: float, end: float) -> str:
    """A bar from one share of the whole to another; back where it takes away."""
    width = max(100 * abs(end - start), 0.4)
    left = min(100 * min(start, end), 100 - width)
    way = "more" if end >= start else "less"
    rect = f'<rect class="{way}" x="{left:.2f}" y="1" width="{width:.2f}" height="10"/>'
    return f'<td><svg class="part" viewBox="0 0 100 12" preserveAspectRatio="none" aria-hidden="true">{rect}</svg></td>'


def _grid(heads: Sequence[str], rows: Sequence[str]) -> str:
    head = "".join(heads)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
