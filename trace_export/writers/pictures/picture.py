"""The chart as a picture: `svg` and `png` for a paper or an issue, `html` for an interactive page.

SVG and HTML are written by this package itself (`svg` and `page` say why) and need nothing beyond the core install.
PNG is the SVG rendered by resvg, which comes in vl-convert, the extra `picture`: one wheel without further
dependencies, with fonts inside, kept by the Vega project.
"""

from __future__ import annotations

from math import sqrt
from pathlib import Path

import polars as pl

from trace_export.chart.chart import Chart
from trace_export.errors import UsageError, missing_extra
from trace_export.selection import Numbers
from trace_export.writers import mark
from trace_export.writers.pictures import svg
from trace_export.writers.pictures.figure import Figure, figure
from trace_export.writers.pictures.page import Contents, page

STEPS_SHOWN = 3
"""Steps in a still picture where none are selected."""

SHARPNESS = 2.0
"""Pixels of a PNG per pixel of the SVG, as long as there are not more than `MOST_PIXELS`."""

MOST_PIXELS = 40_000_000


def write(
    chart: Chart,
    path: Path,
    format: str,
    steps: Numbers | None = None,
    bubbles: pl.DataFrame | None = None,
) -> None:
    """Writes the chart's pipeline rows to `path`; `format` is svg, png or html.

    `steps`: which to show; None: all, of which a still picture shows the first ones. `bubbles`: see `figure`.
    Raises UsageError where png lacks its extra, NothingToExportError when no block is left, OSError as `open` does.
    """
    shown = figure(chart, steps, bubbles)
    at_most = STEPS_SHOWN if steps is None else None
    if format == "html":
        path.write_text(page(shown, still_steps=at_most), encoding="utf-8")
    elif format == "svg":
        path.write_text(svg.draw(shown, at_most).text, encoding="utf-8")
    else:
        path.write_bytes(_png(shown, at_most))


def write_page(
    chart: Chart,
    path: Path,
    report: Contents,
    steps: Numbers | None = None,
    bubbles: pl.DataFrame | None = None,
) -> None:
    """Writes one self-contained HTML page: the answer, the chart to zoom, then the tables. Parameters and errors as
    `write`."""
    path.write_text(page(figure(chart, steps, bubbles), report, STEPS_SHOWN), encoding="utf-8")


def check_png() -> None:
    """Raises UsageError where the extra that png needs is not installed."""
    try:
        import vl_convert  # noqa: F401
    except ImportError as error:
        raise missing_extra("--format png", "picture", ", or choose svg") from error


def _png(shown: Figure, at_most: int | None) -> bytes:
    check_png()
    import vl_convert

    still = svg.draw(shown, at_most)
    scale = min(SHARPNESS, sqrt(MOST_PIXELS / still.width / still.height))
    if scale < 1:
        raise UsageError(
            f"a png of {still.width} × {still.height:.0f} pixels is too large", "give fewer --steps, or choose svg"
        )
    png: bytes = vl_convert.svg_to_png(still.text, scale=scale)
    return mark.marked_png(png)
