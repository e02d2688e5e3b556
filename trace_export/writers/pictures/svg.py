"""The pipeline chart as one still SVG picture: a panel per step, stages as rows, as the papers print it.

Written by hand and not by a plotting library: a chart is rectangles and numbers, whose text has to fit into blocks of
known width, whose colours have to follow the reader's light or dark page (CSS, which Vega's SVG has not), and of which
there may be a hundred thousand (one path for all blocks of a colour, about 30 bytes each).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import accumulate
from math import floor, log10
from typing import Any

import polars as pl

from trace_export.chart.colours import TEXT
from trace_export.errors import printable
from trace_export.model import WORK_KINDS
from trace_export.writers import mark
from trace_export.writers.pictures.figure import Figure

MARGIN = 16
LEAST_WIDTH, MOST_WIDTH = 720, 1600
"""Of the plot itself, in pixels; between them it is as wide as the numbers of all but odd slivers of blocks need."""

MOST_TEXT, LEAST_TEXT = 11.0, 7.0
"""Font size of the numbers in blocks, in pixels."""

LETTER = 0.64
"""Width of a digit in font sizes: what sans-serif fonts have at most, rounded up."""

HEADING, AXIS = 26, 30
FONTS = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,'Liberation Sans',sans-serif"

STYLE = f"""
text{{font-family:{FONTS};font-size:12px;fill:#24292f}}
.paper{{fill:#ffffff}}.idle{{fill:#eef1f4}}.grid{{stroke:#d0d7de;stroke-width:1}}
.title{{font-size:15px;font-weight:600}}.step{{font-weight:600}}.quiet{{fill:#57606a;font-size:11px}}
.end{{text-anchor:end}}.mid{{text-anchor:middle}}
@media (prefers-color-scheme:dark){{text{{fill:#e6edf3}}.paper{{fill:#0d1117}}.idle{{fill:#1c2128}}
.grid{{stroke:#373e47}}.quiet{{fill:#9198a1}}}}
.n text{{text-anchor:middle;fill:{TEXT};font-size:%.1fpx}}
"""
"""`.n` comes last: the numbers stand on the blocks' fills, which are the same in light and dark."""


@dataclass(frozen=True)
class Still:
    """An SVG document, and its size in pixels."""

    text: str
    width: int
    height: float


def draw(figure: Figure, at_most: int | None = None) -> Still:
    """The picture; of the steps only the first `at_most` where that is given, and nothing that is of no step where
    there are steps: the picture then says so."""
    numbered = figure.steps.filter(pl.col("step").is_not_null())
    every = numbered if len(numbered) else figure.steps
    steps = every.head(at_most) if at_most else every
    size = _Size.of(figure, steps)
    legend, y = _legend(figure, size)
    panel = HEADING + size.tops[-1] + AXIS
    steps = steps.with_columns(top=y + HEADING + panel * pl.int_range(pl.len()))
    placed = _placed(figure, size, steps)
    parts = [legend, *(_frame(figure, size, step) for step in steps.iter_rows(named=True)), *_fills(placed)]
    parts.append(_numbers(placed, size.text))
    y += panel * len(steps)
    remarks = figure.remarks
    if len(steps) < len(every):
        remarks.append(f"The first {len(steps)} of {len(every)} steps; --steps chooses others.")
    if len(every) < len(figure.steps):
        remarks.append("Blocks outside of any step are left out.")
    for remark in remarks:
        y += 16
        parts.append(_text(MARGIN, y, remark, "quiet"))
    height = y + MARGIN
    return Still(_document(figure, steps, size, height, "".join(parts)), size.page, height)


@dataclass(frozen=True)
class _Size:
    """Pixels: `left` where the plot begins, `plot` its width, `tops` of the rows below a panel's heading (and the end
    of the last), `text` the numbers' font size; `scale` is pixels per nanosecond."""

    left: int
    plot: float
    page: int
    tops: tuple[float, ...]
    text: float
    scale: float

    @staticmethod
    def of(figure: Figure, steps: pl.DataFrame) -> _Size:
        span = max(*(steps["end_ns"] - steps["start_ns"]).to_list(), 1)
        numbered = figure.blocks.filter(pl.col("kind").is_in(WORK_KINDS), pl.col("label") != "")
        letters = numbered.select((pl.col("end_ns") - pl.col("start_ns")) / pl.col("label").str.len_chars()).to_series()
        usual = letters.filter(letters >= (letters.median() or 0) / 4)  # type: ignore[operator]
        narrow = max(usual.quantile(0.02) or 0.0, 1.0)
        plot = min(max((LETTER * MOST_TEXT + 3) * span / narrow, LEAST_WIDTH), MOST_WIDTH)
        text = min(max((narrow * plot / span - 3) / LETTER, LEAST_TEXT), MOST_TEXT)
        heights = (figure.lane_height * (1 if row.lanes == 1 else 0.6 * row.lanes) for row in figure.rows)
        left = MARGIN + min(max(len(row.name) for row in figure.rows), 40) * 7 + 10
        right = MARGIN + (64 if figure.bubbles is not None else 0)
        return _Size(left, plot, round(left + plot + right), (0.0, *accumulate(heights)), text, plot / span)


def _frame(figure: Figure, size: _Size, step: dict[str, Any]) -> str:
    """A step's panel without its blocks: heading, axis, the rows' names and bubbles."""
    top, start, end = step["top"], step["start_ns"], step["end_ns"]
    ink = [_text(MARGIN, top - 9, f"{step['name']} · {_duration(end - start)}", "step"), _axis(size, top)]
    if figure.bubbles is not None:
        ink.append(_text(size.page - MARGIN, top - 9, "bubble", "quiet end"))
    shares = figure.shares(step["run"], step["step"])
    for index, (row, at, below, share) in enumerate(zip(figure.rows, size.tops, size.tops[1:], shares, strict=False)):
        ink.append(f'<rect class="idle" x="{size.left}" y="{top + at + figure.gap / 2:g}" '
                   f'width="{size.plot:g}" height="{below - at - figure.gap:g}"/>')  # fmt: skip
        if index % figure.names_every:
            continue
        middle = top + (at + below) / 2 + 4
        ink.append(_text(size.left - 10, middle, _shortened(row.name), "end"))
        if share is not None:
            ink.append(_text(size.page - MARGIN, middle, f"{share:.1%}", "end"))
    return "".join(ink)


def _placed(figure: Figure, size: _Size, steps: pl.DataFrame) -> pl.DataFrame:
    """The blocks of `steps` with x, y, w, h in pixels. A narrow gap separates neighbours."""
    lanes = [(row, lane, *_lane(figure.gap, at, below, lane, line.lanes))
             for row, (line, at, below) in enumerate(zip(figure.rows, size.tops, size.tops[1:], strict=False))
             for lane in range(line.lanes)]  # fmt: skip
    places = pl.DataFrame(lanes, {"row": pl.UInt32, "lane": pl.UInt32, "y": pl.Float64, "h": pl.Float64}, orient="row")
    begins = steps.select("run", "step", "top", begin_ns="start_ns")
    width = (pl.col("end_ns") - pl.col("start_ns")) * size.scale
    return (
        figure.blocks.join(begins, on=["run", "step"], nulls_equal=True, maintain_order="left")
        .join(places, on=["row", "lane"], maintain_order="left")
        .with_columns(
            x=(size.left + (pl.col("start_ns") - pl.col("begin_ns")) * size.scale).round(2),
            y=(pl.col("y") + pl.col("top")).round(2),
            w=(width - (0.15 * width).clip(upper_bound=1.0)).clip(lower_bound=0.3).round(2),
        )
    )


def _lane(gap: float, at: float, below: float, lane: int, lanes: int) -> tuple[float, float]:
    """Top and height of a lane in the row from `at` to `below`."""
    height = (below - at - gap) / lanes
    return at + gap / 2 + lane * height, round(height - (0.5 if lanes > 1 else 0), 2)


def _fills(placed: pl.DataFrame) -> Iterator[str]:
    """One path per colour."""
    path = pl.format("M{} {}h{}v{}h-{}z", "x", "y", "w", "h", "w")
    for fill, data in placed.group_by("fill", maintain_order=True).agg(path.str.join("")).sort("fill").iter_rows():
        yield f'<path fill="{fill}" d="{data}"/>'


def _numbers(placed: pl.DataFrame, text: float) -> str:
    """The labels that fit into their blocks."""
    fitting = placed.filter(
        pl.col("label") != "",
        pl.col("label").str.len_chars() * LETTER * text + 1 <= pl.col("w"),
        pl.col("h") >= text,
    )
    words = fitting["label"].unique(maintain_order=True)
    spelt = pl.Series([safe(word) for word in words], dtype=pl.String)
    label = pl.col("label").replace_strict(words, spelt, return_dtype=pl.String) if len(words) else pl.col("label")
    x, y = (pl.col("x") + pl.col("w") / 2).round(1), (pl.col("y") + pl.col("h") / 2 + 0.36 * text).round(1)
    texts = fitting.select(pl.format('<text x="{}" y="{}">{}</text>', x, y, label).str.join("")).item()
    return f'<g class="n">{texts}</g>'


def _axis(size: _Size, top: float) -> str:
    """Grid lines behind the rows, and below them the time since the step's start."""
    span = size.plot / size.scale
    unit, factor = time_unit(span)
    bottom = top + size.tops[-1]
    ink = []
    ticks = ticks_until(span / factor, max(4, round(size.plot / 110)))
    for tick in ticks:
        x = round(size.left + tick * factor * size.scale, 1)
        ink.append(f'<path class="grid" d="M{x:g} {top:g}V{bottom + 5:g}"/>')
        label = f"{tick:g} {unit}" if tick == ticks[-1] else f"{tick:g}"
        ink.append(_text(x, bottom + 17, label, "quiet mid"))
    return "".join(ink)


def time_unit(span_ns: float) -> tuple[str, int]:
    """The unit that suits a duration, and its nanoseconds."""
    for unit, factor in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if span_ns >= 2 * factor:
            return unit, factor
    return "ns", 1


def ticks_until(end: float, count: int) -> list[float]:
    """About `count` round numbers from 0 up to `end`: steps of 1, 2 or 5 times a power of ten."""
    rough = end / count
    power = 10.0 ** floor(log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    return [index * step for index in range(int(end / step + 1e-9) + 1)]


def _duration(span_ns: int) -> str:
    unit, factor = time_unit(span_ns)
    return f"{span_ns / factor:.4g} {unit}"


def _legend(figure: Figure, size: _Size) -> tuple[str, float]:
    """Title, and what the colours mean; with the y below them."""
    ink = [_text(MARGIN, MARGIN + 12, figure.title, "title")]
    x, y = float(MARGIN), MARGIN + 34.0
    for fill, words in figure.legend:
        if x + 24 + len(words) * 7 > size.page - MARGIN:
            x, y = float(MARGIN), y + 18
        ink.append(f'<rect fill="{fill}" x="{x:g}" y="{y - 10:g}" width="12" height="12"/>')
        ink.append(_text(x + 17, y, words, "quiet"))
        x += 17 + len(words) * 6.2 + 14
    return "".join(ink), y + 14


def _document(figure: Figure, steps: pl.DataFrame, size: _Size, height: float, ink: str) -> str:
    width = size.page
    words = f"{len(figure.rows)} rows, {len(steps)} steps"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:g}" viewBox="0 0 {width} {height:g}" '
        f'role="img">{mark.SVG}<title>{safe(figure.title)}</title><desc>{words}</desc>'
        f"<style>{STYLE % size.text}</style>"
        f'<rect class="paper" width="{width}" height="{height:g}"/>{ink}</svg>\n'
    )


def _text(x: float, y: float, words: str, style: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{style}">{safe(words)}</text>'


def safe(words: object) -> str:
    """`words` as text of XML or HTML: markup escaped, and what XML cannot hold spelt out."""
    return escape(printable(words))


def _shortened(words: str) -> str:
    return words if len(words) <= 40 else words[:39] + "…"
