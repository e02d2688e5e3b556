"""The pipeline chart as one interactive HTML page (zoom, tooltips), alone or above the tables of a report.

The page is self-contained: it makes no request, and its content security policy forbids any. The blocks
are drawn on a canvas from columns of numbers, because a browser is slow with a hundred thousand SVG elements.
A plotting library (Vega) would bring a script many times this page's size that makes code from text, which a strict
policy forbids. Without scripts the page shows the still picture.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

import polars as pl

from trace_export.answer import ReportTable, Sentence
from trace_export.chart.colours import DIFFERENT, TEXT
from trace_export.errors import printable
from trace_export.writers import mark
from trace_export.writers.html import digest, items, safe, script_data, table
from trace_export.writers.pictures import svg
from trace_export.writers.pictures.figure import OTHER_RUN, Figure

HELP = "Zoom: Ctrl + wheel, or W and S. Move: drag, or A and D. Everything: double-click, or 0."
_NOT_FACTS = ("panel", "row", "lane", "start_ns", "end_ns", "name", "label", "fill", "longer")


@dataclass(frozen=True)
class Focus:
    """What the chart shows first, and marks: a `step` (run, step), the rows of some `ranks`, or the `pause` after the
    step; and in words why."""

    step: tuple[int | None, int | None]
    ranks: frozenset[int] = frozenset()
    pause: bool = False
    words: str = ""


@dataclass(frozen=True)
class Contents:
    """What a report adds to the chart: its title, a line on what was measured, the answer in sentences; the tables that
    stand side by side below the chart, and those after them, perhaps `folded`; the name of a page beside it that shows
    every rank; what the chart is to show first; and `further` sentences, which are folded."""

    title: str = ""
    heading: str = ""
    sentences: Sequence[Sentence] = ()
    beside: Sequence[ReportTable] = ()
    tables: Sequence[ReportTable] = ()
    folded: bool = False
    overview: str = ""
    focus: Focus | None = None
    further: Sequence[Sentence] = ()


def page(figure: Figure, report: Contents = Contents(), still_steps: int | None = None) -> str:
    """The whole document. `still_steps`: how many steps the picture for browsers without scripts shows."""
    style, script = (files(__package__).joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    policy = (
        f"default-src 'none'; img-src data:; style-src '{digest(style)}'; script-src '{digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    title = safe(report.title or figure.title)
    first = _panel_of(figure, report.focus.step if report.focus else None) or 0
    picture = svg.draw(figure, still_steps) if report.focus is None else svg.draw(figure.only(first))
    still = base64.b64encode(picture.text.encode()).decode()
    return "\n".join([
        mark.HTML,
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<title>{title}</title><style>{style}</style></head><body class="{figure.style.theme}">',
        f"<h1>{title}</h1>{_answer(figure, report)}",
        f'<div class="bar">{"".join(_legend(figure, report.focus))}</div>',
        '<div class="bar"><label>Show <select id="step"></select></label>',
        '<span><button id="in" title="zoom in">+</button> <button id="out" title="zoom out">−</button></span>',
        f'<span class="quiet">{HELP}</span></div>',
        f'<canvas id="chart" tabindex="0" role="img" aria-label="{safe(figure.title)}"></canvas><div id="tip"></div>',
        f'<noscript><img alt="{safe(figure.title)}" src="data:image/svg+xml;base64,{still}"></noscript>',
        *(f"<p>{safe(remark)}</p>" for remark in figure.remarks),
        _side_by_side(report.beside, figure),
        _further(report.further),
        *(table(each, _links(each, figure), folded=report.folded) for each in report.tables),
        f'<script type="application/json" id="data">{script_data(_data(figure, first, report.focus))}</script>',
        f"<script>{script}</script></body></html>\n",
    ])  # fmt: skip


def _answer(figure: Figure, report: Contents) -> str:
    if not report.title:
        return ""
    every = f'<p><a href="{escape(report.overview)}">Every rank on one page</a></p>' if report.overview else ""
    return (
        f'<p>{safe(report.heading)} · {safe(figure.title)}</p><ol class="verdict">{items(report.sentences)}</ol>{every}'
    )


def _panel_of(figure: Figure, step: tuple[int | None, int | None] | None) -> int | None:
    """The panel of a step; None where it is not drawn. The panels of a single run have no number of the run."""
    keys = figure.panels.select("run", "step").rows()
    return next((n for n, key in enumerate(keys) if step and key[0] in (None, step[0]) and key[1] == step[1]), None)


def _legend(figure: Figure, focus: Focus | None) -> list[str]:
    swatches = [(_paint(fill), words) for fill, words in figure.legend]
    if focus is not None and focus.words:
        swatches.append(('class="mark"', focus.words))
    return [
        f'<span><svg viewBox="0 0 12 12"><rect {paint} width="12" height="12"/></svg>{safe(words)}</span>'
        for paint, words in swatches
    ]


def _paint(fill: str) -> str:
    return 'class="other"' if fill == OTHER_RUN else f'fill="{fill}"'


def _data(figure: Figure, first: int, focus: Focus | None) -> dict[str, Any]:
    """What the script draws, the panel `first` at first. Times are nanoseconds since the first block; a block is given
    by the time since the end of the one before it on its line and by its length; all other columns are `_coded`."""
    blocks = figure.blocks
    origin = min(figure.panels["start_ns"].to_list())
    lines = blocks.group_by("row", "lane", maintain_order=True).len()
    worked = dict(blocks.group_by("panel").agg(pl.col("end_ns").max()).iter_rows())
    before = pl.col("end_ns").shift().over("row", "lane").fill_null(origin)
    return {
        "rows": [
            {"name": printable(row.name), "lanes": row.lanes, "mark": focus is not None and row.rank in focus.ranks,
             "other": row.of_run is not None}
            for row in figure.rows
        ],
        "first": first,
        "pause": focus is not None and focus.pause,
        "steps": [
            {
                "name": name, "start": start - origin, "end": end - origin, "shares": shares,
                "worked": worked.get(number, end) - origin,
            }
            for number, (start, end, name, shares) in enumerate(
                figure.panels.select("start_ns", "end_ns", "name", "shares").iter_rows()
            )
        ],
        "bubble": figure.has_shares,
        "text": TEXT,
        "lane": figure.lane_height,
        "gap": figure.gap,
        "every": figure.names_every,
        "lines": lines.select("row", "lane").rows(),
        "offsets": [0, *lines["len"].cum_sum().to_list()],
        "wait": blocks.select(pl.col("start_ns") - before).to_series().to_numpy(),
        "length": (blocks["end_ns"] - blocks["start_ns"]).to_numpy(),
        "name": _coded(blocks["name"]),
        "label": _coded(blocks["label"]),
        "fill": _coded(blocks["fill"]),
        "mark": _coded(blocks["longer"].replace_strict(DIFFERENT, default=None, return_dtype=pl.String)),
        "facts": {name: _coded(blocks[name]) for name in blocks.columns if name not in _NOT_FACTS},
    }  # fmt: skip


def _coded(column: pl.Series) -> dict[str, Any]:
    """Its different values, and where there are several, each row's index into them."""
    values = column.unique(maintain_order=True).alias("value")
    shown = [printable(value) if isinstance(value, str) else value for value in values.to_list()]
    if len(values) == 1:
        return {"values": shown}
    index = values.to_frame().with_row_index("code")
    rows = column.alias("value").to_frame()
    codes = rows.join(index, on="value", how="left", nulls_equal=True, maintain_order="left")["code"]
    return {"values": shown, "codes": codes.to_numpy()}


def _side_by_side(tables: Sequence[ReportTable], figure: Figure) -> str:
    """Tables side by side where there is room."""
    sections = "".join(f"<section>{table(each, _links(each, figure))}</section>" for each in tables)
    return sections and f'<div class="beside">{sections}</div>'


def _further(sentences: Sequence[Sentence]) -> str:
    """Sentences besides the answer, folded under a title."""
    if not sentences:
        return ""
    said = items(sentences)
    return f'<details><summary><h2>More about this answer</h2></summary><ul class="further">{said}</ul></details>'


def _links(table: ReportTable, figure: Figure) -> dict[int, str]:
    """Links from the flagged rows of a table to the row and step of the chart, as far as they are drawn."""
    stages = [row.stage for row in figure.rows]
    links = {}
    for number, place in table.flagged.items():
        row = stages.index(place.stage) if place.stage is not None and place.stage in stages else None
        ends = (("row", row), ("step", _panel_of(figure, place.step)))
        if data := "".join(f' data-{name}="{at}"' for name, at in ends if at is not None):
            links[number] = f' <a href="#chart" class="place"{data} title="show in the chart">▸ chart</a>'
    return links
