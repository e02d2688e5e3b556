"""The chart as a picture: `svg`, `png` and `pdf` for a paper or an issue, `html` for an interactive page.

SVG and HTML are written by this package itself (`svg` and `page` say why) and need nothing beyond the core install.
PNG and PDF are the SVG rendered by resvg and svg2pdf, which come in vl-convert, the extra `picture`: one wheel without
further dependencies, with fonts inside, kept by the Vega project. A PDF embeds the fonts that it uses.
"""

from __future__ import annotations

import re
from importlib import import_module
from math import sqrt
from pathlib import Path
from typing import Any

import polars as pl

from trace_export.chart.chart import Chart
from trace_export.errors import UsageError, missing_extra
from trace_export.selection import Numbers
from trace_export.writers import mark
from trace_export.writers.pictures import svg
from trace_export.writers.pictures.figure import Figure, figure
from trace_export.writers.pictures.page import Contents, page
from trace_export.writers.pictures.style import FigureStyle

STEPS_SHOWN = 3
"""Steps in a still picture where none are selected."""

SHARPNESS = 2.0
"""Pixels of a PNG per pixel of the SVG, as long as there are not more than `MOST_PIXELS`."""

PRINTED_SHARPNESS = 300 / 96
"""The same where the width on paper is given: 300 dpi."""

MOST_PIXELS = 40_000_000

POINTS = 0.75
"""Of a CSS pixel; the renderer takes one for the other."""


def write(
    chart: Chart,
    path: Path,
    format: str,
    steps: Numbers | None = None,
    bubbles: pl.DataFrame | None = None,
    style: FigureStyle = FigureStyle(),
    contents: Contents = Contents(),
    zero_ns: int | None = None,
    lengths: pl.DataFrame | None = None,
) -> None:
    """Writes the chart's pipeline rows to `path`; `format` is svg, png, pdf or html.

    `steps`: which to show; None: all; a still picture shows the first ones. `bubbles`, `zero_ns`: see
    `figure`. `contents`: what an html page says besides. `lengths`: run, step and step_ns of steps that are drawn up to
    the next one.
    Raises UsageError where png or pdf lack their extra and where `style` asks for what cannot be,
    NothingToExportError when no block is left, OSError as `open` does.
    """
    shown = figure(chart, steps, bubbles, style, zero_ns)
    shown = shown if lengths is None else shown.with_pauses(lengths)
    write_figure(shown, path, format, STEPS_SHOWN if steps is None else None, contents)


def write_figure(
    shown: Figure, path: Path, format: str, still_steps: int | None = None, contents: Contents = Contents()
) -> None:
    """Writes a picture, a still one with at most `still_steps` of its panels, unless its style says how many. Raises as
    `write` does."""
    at_most = shown.style.steps or still_steps
    if format == "html":
        path.write_text(page(shown, contents, at_most), encoding="utf-8")
        return
    still = svg.draw(shown, at_most)
    write_still(still, path, format, SHARPNESS if shown.style.width_mm is None else PRINTED_SHARPNESS)


def write_still(still: svg.Still, path: Path, format: str, sharpness: float = SHARPNESS) -> None:
    """Writes a still picture; `format` is svg, png or pdf, `sharpness` pixels of a png for one of the picture. Raises
    as `write`."""
    if format == "svg":
        path.write_text(still.text, encoding="utf-8")
    else:
        path.write_bytes(_pdf(still) if format == "pdf" else _png(still, sharpness))


def renderer(format: str) -> Any:
    """What makes png and pdf of svg. Raises UsageError where its extra is not installed."""
    try:
        return import_module("vl_convert")
    except ImportError as error:
        raise missing_extra(f"`formats` {format}", "picture", ", or choose svg") from error


def _pdf(still: svg.Still) -> bytes:
    points = f'width="{POINTS * still.width:g}" height="{POINTS * still.height:g}"'
    svg_in_points = re.sub('width="[^"]*" height="[^"]*"', points, still.text, count=1)
    pdf: bytes = renderer("pdf").svg_to_pdf(svg_in_points)
    return mark.marked_pdf(pdf)


def _png(still: svg.Still, sharpness: float) -> bytes:
    scale = min(sharpness, sqrt(MOST_PIXELS / still.width / still.height))
    if scale < 1:
        raise UsageError(
            f"a png of {still.width:g} × {still.height:.0f} pixels is too large", "give fewer `steps`, or choose svg"
        )
    png: bytes = renderer("png").svg_to_png(still.text, scale=scale)
    return mark.marked_png(png)
