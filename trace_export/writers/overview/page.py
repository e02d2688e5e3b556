"""The page of an overview: one self-contained HTML file, whatever the number of ranks.

It makes no request, and its content security policy forbids any. The heat map is drawn on a canvas from columns of
bytes, each pixel from the ranks below it, so that it becomes finer as it is zoomed.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from string import Template

import orjson
import polars as pl

from trace_export.cells import cells_of
from trace_export.writers import mark
from trace_export.writers.overview import bands
from trace_export.writers.overview.heat_map import HeatMap
from trace_export.writers.pictures.page import Said, said_item
from trace_export.writers.pictures.svg import safe

ROWS = 30
"""A longer table is folded."""
MOST_ROWS = 500
"""More rows of a table are not in the page, whose size would grow with them."""


@dataclass(frozen=True)
class Table:
    """A table of the page. `places`: of some of its rows the rows of the map to show, the first and the one after the
    last; `traces`: a file to open."""

    title: str
    frame: pl.DataFrame
    note: str = ""
    places: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    traces: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Contents:
    """What the page shows. `warning`: what is missing in it. `bands`: stage, p5, p50, p95, max (all in ms)."""

    title: str
    heading: str
    sentences: Sequence[Said]
    warning: str
    first: Sequence[Table]
    map: HeatMap
    bands: pl.DataFrame
    tables: Sequence[Table]


def page(contents: Contents) -> str:
    """The whole document."""
    own = files(__package__)
    style = "".join(
        folder.joinpath("page.css").read_text(encoding="utf-8")
        for folder in (files("trace_export.writers.pictures"), own)
    )
    template, script = (own.joinpath(name).read_text(encoding="utf-8") for name in ("page.html", "page.js"))
    policy = f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'"
    folded = f" Each row is the largest value of {contents.map.fold} ranks." if contents.map.fold > 1 else ""
    return Template(template).substitute(
        mark=mark.HTML,
        policy=f"{policy}; base-uri 'none'; form-action 'none'",
        title=safe(contents.title),
        style=style,
        heading=safe(contents.heading),
        sentences="".join(map(said_item, contents.sentences)),
        warning=f'<p class="missing">{safe(contents.warning)}</p>' if contents.warning else "",
        first="".join(map(_table, contents.first)),
        folded=folded,
        bands=bands.picture(contents.bands),
        tables="".join(map(_table, contents.tables)),
        data=_json(contents),
        script=script,
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(contents: Contents) -> str:
    """JSON that may stand inside a script element: no `<`, so no tag can end or open in it."""
    return orjson.dumps(contents.map.data).decode().replace("<", "\\u003c")


def _table(table: Table) -> str:
    note = f"<p>{safe(table.note)}</p>" if table.note else ""
    title = f"<h2>{safe(table.title)}</h2>{note}"
    if table.frame.is_empty():
        return title
    frame = table.frame.head(MOST_ROWS)
    columns = [(column.name, cells_of(column, no="no"), column.dtype.is_numeric()) for column in frame]
    head = "".join(f"<th{_right(number)}>{safe(name)}</th>" for name, _, number in columns)
    cells = [[f"<td{_right(number)}>{escape(cell)}</td>" for cell in column] for _, column, number in columns]
    if table.places or table.traces:
        head += "<th></th>"
        cells.append([f"<td>{_links(table, row)}</td>" for row in range(frame.height)])
    rows = [f"<tr>{''.join(row)}</tr>" for row in zip(*cells, strict=True)]
    html = title + _grid(head, rows[:ROWS])
    if more := rows[ROWS:]:
        html += f"<details><summary>{len(more)} more rows</summary>{_grid(head, more)}</details>"
    if left := table.frame.height - frame.height:
        html += f"<p>{left} more rows are in the Parquet table.</p>"
    return html


def _links(table: Table, row: int) -> str:
    found = []
    if row in table.places:
        start, end = table.places[row]
        found.append(f'<a href="#map" class="place" data-from="{start}" data-to="{end}">▸ map</a>')
    if row in table.traces:
        found.append(f'<a class="place" href="{escape(table.traces[row])}" download>▸ trace</a>')
    return " ".join(found)


def _grid(head: str, rows: Sequence[str]) -> str:
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _right(number: bool) -> str:
    return ' class="number"' if number else ""
