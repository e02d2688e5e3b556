"""The page of an overview: one self-contained HTML file, whatever the number of ranks.

It makes no request, and its content security policy forbids any. The heat map is drawn on a canvas from columns of
bytes, each pixel from the ranks below it, so that it becomes finer as it is zoomed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from string import Template

import polars as pl

from trace_export.writers import mark
from trace_export.writers.html import ROWS, Said, cells, digest, grid, safe, said_item, script_data
from trace_export.writers.overview import bands
from trace_export.writers.overview.heat_map import HeatMap

MOST_ROWS = 500
"""More rows of a table are not in the page, whose size would grow with them."""


@dataclass(frozen=True)
class Table:
    """A table of the page. `map_rows`: of some of its rows the rows of the map to show, the first and the one after the
    last."""

    title: str
    frame: pl.DataFrame
    note: str = ""
    map_rows: Mapping[int, tuple[int, int]] = field(default_factory=dict)


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
    resources = files(__package__)
    style = "".join(
        folder.joinpath("page.css").read_text(encoding="utf-8")
        for folder in (files("trace_export.writers.pictures"), resources)
    )
    template, script = (resources.joinpath(name).read_text(encoding="utf-8") for name in ("page.html", "page.js"))
    policy = f"default-src 'none'; style-src '{digest(style)}'; script-src '{digest(script)}'"
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
        data=script_data(contents.map.data),
        script=script,
    )


def _table(table: Table) -> str:
    note = f"<p>{safe(table.note)}</p>" if table.note else ""
    title = f"<h2>{safe(table.title)}</h2>{note}"
    if table.frame.is_empty():
        return title
    frame = table.frame.head(MOST_ROWS)
    head, columns = cells(frame)
    if table.map_rows:
        head += "<th></th>"
        columns.append([f"<td>{_on_map(table, row)}</td>" for row in range(frame.height)])
    rows = [f"<tr>{''.join(row)}</tr>" for row in zip(*columns, strict=True)]
    html = title + grid(head, rows[:ROWS], rows[ROWS:])
    if left := table.frame.height - frame.height:
        html += f"<p>{left} more rows are in the Parquet table.</p>"
    return html


def _on_map(table: Table, row: int) -> str:
    """The link from a row to its place on the map, "" where it has none."""
    if row not in table.map_rows:
        return ""
    start, end = table.map_rows[row]
    return f'<a href="#map" class="place" data-from="{start}" data-to="{end}">▸ map</a>'
