"""The page of an overview: one self-contained HTML file, whatever the number of ranks.

It makes no request, and its content security policy forbids any. The heat map is drawn on a canvas from columns of
bytes, each pixel from the ranks below it, so that it becomes finer as it is zoomed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from string import Template

import polars as pl

from trace_export.answer import ReportTable, Sentence
from trace_export.writers import mark
from trace_export.writers.html import digest, items, safe, script_data, table
from trace_export.writers.overview import bands
from trace_export.writers.overview.heat_map import HeatMap


@dataclass(frozen=True)
class Contents:
    """What the page shows. `warning`: what is missing in it. `on_map`: of some `exceptions` the rows of the map to
    show, the first and the one after the last. `bands`: stage, p5, p50, p95, max (all in ms)."""

    title: str
    heading: str
    sentences: Sequence[Sentence]
    warning: str
    causes: ReportTable
    exceptions: ReportTable
    on_map: Mapping[int, tuple[int, int]]
    map: HeatMap
    bands: pl.DataFrame
    tables: Sequence[ReportTable]


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
    links = {
        row: f' <a href="#map" class="place" data-from="{start}" data-to="{end}">▸ map</a>'
        for row, (start, end) in contents.on_map.items()
    }
    return Template(template).substitute(
        mark=mark.HTML,
        policy=f"{policy}; base-uri 'none'; form-action 'none'",
        title=safe(contents.title),
        style=style,
        heading=safe(contents.heading),
        sentences=items(contents.sentences),
        warning=f'<p class="missing">{safe(contents.warning)}</p>' if contents.warning else "",
        first=table(contents.causes) + table(contents.exceptions, links),
        folded=folded,
        bands=bands.picture(contents.bands),
        tables="".join(map(table, contents.tables)),
        data=script_data(contents.map.data),
        script=script,
    )
