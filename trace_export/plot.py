"""The interactive chart of a run in a notebook.

A notebook shows what `_repr_html_` returns. The page goes there whole, in a frame of its own: it needs no network, its
style does not reach the notebook, and its script runs without access to it (the `sandbox` of HTML's iframe).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from html import escape

import polars as pl

from trace_export.draw import Content, draw
from trace_export.options import Drawing
from trace_export.selection import Numbers, Selection, select
from trace_export.writers.pictures import page, svg
from trace_export.writers.pictures.figure import Figure, figure
from trace_export.writers.pictures.style import FigureStyle

MOST_BLOCKS = 100_000
"""More would make a notebook of tens of megabytes; a plot shows the first steps up to this many."""
AROUND = 190
"""Pixels of the page beside the rows: title, legend, buttons, axis, one remark."""
LEAST_HEIGHT, MOST_HEIGHT = 240, 800


@dataclass(frozen=True, eq=False)
class Plot:
    """A picture of a run. A notebook shows it as the interactive chart; `html` is that page and `svg` the still picture
    as text."""

    _figure: Figure

    @cached_property
    def html(self) -> str:
        return page.page(self._figure, still_steps=self._figure.style.steps)

    @cached_property
    def svg(self) -> str:
        return svg.draw(self._figure, self._figure.style.steps).text

    def panel(self, span_ns: int) -> str:
        """The picture of one step without title and legend, as SVG; it is as wide as those of other steps of the run
        whose `span_ns` is given, too."""
        return svg.panel(self._figure, span_ns)

    @property
    def legend(self) -> list[tuple[str, str]]:
        """The colours in the picture, with what they mean."""
        return self._figure.legend

    @property
    def remarks(self) -> list[str]:
        """What is said below the picture."""
        return self._figure.remarks

    def _repr_html_(self) -> str:
        lanes = sum(1 if row.lanes == 1 else 0.6 * row.lanes for row in self._figure.rows)
        height = round(min(max(AROUND + lanes * self._figure.lane_height, LEAST_HEIGHT), MOST_HEIGHT))
        return (
            f'<iframe title="{escape(self._figure.title)}" sandbox="allow-scripts" srcdoc="{escape(self.html)}" '
            f'style="width:100%;height:{height}px;border:0"></iframe>'
        )


def plot(content: Content, drawing: Drawing, style: FigureStyle) -> Plot:
    """The plot of what is drawn of a run. Raises as `picture.write` does."""
    steps, measured = content.part.steps, content.measured
    if style.range is None and content.profile.spans.height > MOST_BLOCKS:
        steps = first_steps(content.profile.spans)
        content = replace(content, measured=measured.of(select(content.profile, Selection(steps=steps))))
    return Plot(figure(draw(content, drawing, for_picture=True), steps, measured.windows, style))


def first_steps(spans: pl.DataFrame) -> Numbers:
    """The first steps that have `MOST_BLOCKS` blocks together, at least one."""
    counts = spans.drop_nulls("step").group_by("step").len().sort("step")
    within = counts.filter((pl.col("len").cum_sum() <= MOST_BLOCKS) | (pl.int_range(pl.len()) == 0))
    return Numbers.of(within["step"])
