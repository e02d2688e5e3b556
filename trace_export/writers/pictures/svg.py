"""The pipeline chart as one still SVG picture: a panel per step, stages as rows, as the papers print it.

Written by hand and not by a plotting library: a chart is rectangles and numbers, whose text has to fit into blocks of
known width, whose colours have to follow the reader's light or dark page (CSS, which Vega's SVG has not). There may be
a hundred thousand rectangles (one path for all blocks of a colour, about 30 bytes each).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil, floor, inf, log10
from textwrap import wrap
from typing import Any

import polars as pl

from trace_export.chart.colours import DIFFERENT, IDLE_GRAYS, TEXT
from trace_export.errors import UsageError
from trace_export.model import WORK_KINDS
from trace_export.units import duration
from trace_export.writers import mark
from trace_export.writers.html import safe
from trace_export.writers.pictures.figure import OTHER_RUN, Figure
from trace_export.writers.pictures.style import PIXELS_PER_MM

LEAST_WIDTH, MOST_WIDTH = 720, 1600
"""The least width of the plot and the largest of the picture, in pixels; between them the plot is as wide as the
numbers of all but odd slivers of blocks need."""

MOST_TEXT, LEAST_TEXT = 11.0, 7.0
"""Font size of the numbers in blocks, in pixels."""

LEAST_PRINTED = 8.0
"""Least font size of a picture whose width on paper is given, in pixels: 6 pt."""

LETTER = 0.64
"""Width of a digit in font sizes: what sans-serif fonts have at most, rounded up."""

WORDS = 0.56
"""Mean width of a letter of running text in font sizes."""

WIDTHS = {
    letter: width / 1000
    for width, letters in {
        222: "ijl", 278: " !,./:;Ift", 333: "()-r·", 500: "Jcksvxyz", 611: "FTZ", 667: "ABEKPSVXY", 722: "CDHNRUw",
        778: "GOQ", 833: "Mm", 889: "%", 944: "W",
    }.items()
    for letter in letters
}  # fmt: skip
"""Widths of letters in font sizes, those of Helvetica and Arial; of any other it is `WORDS`."""

APART = 1.1
"""Blocks are of about one width unless one is this many times as wide as the next narrower one."""
MOST_HIDDEN, MOST_TIGHT = 0.6, 0.1
"""By these shares of the room for a label may a block be wider and yet have none, or narrower and yet have it, so that
blocks of about one width are alike."""

HATCHES = (
    "", "M0 6L6 0", "M0 0L6 6", "M0 3H6", "M3 0V6", "M0 3H6M3 0V6", "M0 6L6 0M0 0L6 6", "M0 1.5H6M0 4.5H6",
    "M1.5 0V6M4.5 0V6",
)  # fmt: skip
"""What tells the causes of idle time apart in grey: lines in a square of six pixels, in the order of `IDLE_GRAYS`."""

MOST_NAME = 40
"""Letters of a row's name; of a longer one the beginning is shown."""

LEAST_PLOT = 120
"""Pixels; a narrower plot shows nothing."""

FONTS = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,'Liberation Sans',sans-serif"

LIGHT = (
    "text{fill:#24292f}.paper{fill:#ffffff}.idle{fill:#eef1f4}.other{fill:#f6e3c5}.grid{stroke:#d0d7de}"
    ".quiet{fill:#57606a}"
)
DARK = (
    "text{fill:#e6edf3}.paper{fill:#0d1117}.idle{fill:#1c2128}.other{fill:#443720}.grid{stroke:#373e47}"
    ".quiet{fill:#9198a1}"
)
PRINT = "text,.quiet{fill:#000000}.paper{fill:#ffffff}.idle{fill:none}.other{fill:#f0f0f0}.grid{stroke:#bdbdbd}"
INKS = {
    "auto": f"{LIGHT}@media (prefers-color-scheme:dark){{{DARK}}}",
    "light": LIGHT, "dark": DARK, "print": PRINT, "grayscale": PRINT, "colorblind": LIGHT,
}  # fmt: skip
"""Colours of all but the blocks, by theme."""


@dataclass(frozen=True)
class Still:
    """An SVG document, and its size in pixels."""

    text: str
    width: float
    height: float


def draw(figure: Figure, at_most: int | None = None) -> Still:
    """The picture; of the steps only the first `at_most` where that is given, and nothing that is of no step where
    there are steps: the picture then says so.

    Raises UsageError where the style's width leaves no room for the blocks.
    """
    numbered = figure.panels.filter(pl.col("step").is_not_null())
    every = numbered if len(numbered) else figure.panels
    shown = every.head(at_most) if at_most else every
    size = _Size.of(figure, shown)
    remarks = figure.remarks
    if len(shown) < len(every):
        remarks.append(f"The first {len(shown)} of {len(every)} steps; --steps chooses others.")
    if len(every) < len(figure.panels):
        remarks.append("Blocks outside of any step are left out.")
    parts, y = _lines(size, size.margin, [figure.title] if figure.title else [], "title", 1.25)
    below = figure.style.legend == "below"
    if not below:
        legend, y = _legend(figure, size, y)
        parts += legend
    panel = size.heading + size.tops[-1] + size.axis
    shown = shown.with_columns(top=y + size.heading + panel * pl.int_range(pl.len()))
    placed = _placed(figure, size, shown)
    parts += [*(_frame(figure, size, step) for step in shown.iter_rows(named=True)), *_fills(placed, figure.hatched)]
    parts.append(_numbers(placed, size.text))
    y += panel * len(shown)
    if below:
        legend, y = _legend(figure, size, y)
        parts += legend
    lines, y = _lines(size, y, remarks, "quiet", 1.45)
    height = y + size.margin
    return Still(_document(figure, shown, size, height, "".join([*parts, *lines])), size.page, height)


def panel(figure: Figure, span_ns: int) -> str:
    """The first panel as a picture of its own, without title, legend and remarks. The plot is at least `span_ns` wide,
    for several of them on one scale.

    Raises UsageError as `draw` does.
    """
    shown = figure.panels.head(1)
    size = _Size.of(figure, shown, span_ns)
    shown = shown.with_columns(top=pl.lit(size.heading))
    placed = _placed(figure, size, shown)
    ink = [_frame(figure, size, shown.row(0, named=True)), *_fills(placed, figure.hatched), _numbers(placed, size.text)]
    return _document(figure, shown, size, size.heading + size.tops[-1] + size.axis, "".join(ink))


@dataclass(frozen=True)
class _Size:
    """Pixels: `left` where the plot begins, `plot` its width, `page` that of the picture, `tops` of the rows below a
    panel's heading (and the end of the last), `heading` and `axis` the heights above and below the rows, `text` the
    numbers' font size, `words`, `small` and `title` the other ones; `scale` is pixels per nanosecond."""

    left: int
    plot: float
    page: float
    margin: int
    tops: tuple[float, ...]
    heading: float
    axis: float
    text: float
    words: float
    small: float
    title: float
    scale: float

    @staticmethod
    def of(figure: Figure, panels: pl.DataFrame, span_ns: int = 1) -> _Size:
        printed = figure.style.width_mm
        margin, words, small, title = (16, 12.0, 11.0, 15.0) if printed is None else (6, 8.5, LEAST_PRINTED, 10.0)
        span = max(*(panels["end_ns"] - panels["start_ns"]).to_list(), span_ns)
        narrow = _narrow(figure)
        left = margin + round(min(max(len(row.name) for row in figure.rows), MOST_NAME) * 0.58 * words) + 10
        right = margin + (round(5.4 * words) if figure.has_shares else 0)
        if printed is None:
            plot = max(min((LETTER * MOST_TEXT + 3) * span / narrow, MOST_WIDTH - left - right), LEAST_WIDTH)
        else:
            plot = printed * PIXELS_PER_MM - left - right
        if plot < LEAST_PLOT:
            room = ceil((LEAST_PLOT + left + right) / PIXELS_PER_MM)
            what = f"a picture of {printed or 0:g} mm has no room for the blocks beside the names of its rows"
            raise UsageError(what, f"give at least {room}mm", parameter="figure.width_mm")
        least = LEAST_TEXT if printed is None else LEAST_PRINTED
        text = min(max((narrow * plot / span - 3) / LETTER, least), MOST_TEXT)
        lane = figure.lane_height * words / 12
        heights = (lane * (1 if row.lanes == 1 else 0.6 * row.lanes) for row in figure.rows)
        page = left + plot + right
        return _Size(
            left, plot, round(page, 0 if printed is None else 3), margin, (0.0, *accumulate(heights)),
            2.2 * words, 2.5 * words, text, words, small, title, plot / span,
        )  # fmt: skip

    def lines(self, text: str, font: float) -> list[str]:
        """`text` in lines that fit the picture."""
        return wrap(text, max(round((self.page - 2 * self.margin) / (WORDS * font)), 10))


def _narrow(figure: Figure) -> float:
    """Nanoseconds that a letter has in a narrow block, odd slivers left out."""
    numbered = figure.blocks.filter(pl.col("kind").is_in(WORK_KINDS), pl.col("label") != "")
    letters = numbered.select((pl.col("end_ns") - pl.col("start_ns")) / pl.col("label").str.len_chars()).to_series()
    usual = letters.filter(letters >= (letters.median() or 0) / 4)  # type: ignore[operator]
    return max(usual.quantile(0.02) or 0.0, 1.0)


def _lines(size: _Size, y: float, texts: Sequence[str], style: str, spacing: float) -> tuple[list[str], float]:
    """Lines of text from the left margin down, and the y below them."""
    font = size.title if style == "title" else size.small
    ink = []
    for text in texts:
        for line in size.lines(text, font):
            y += round(spacing * font, 1)
            ink.append(text_at(size.margin, y, line, style))
    return ink, y


def _frame(figure: Figure, size: _Size, panel: dict[str, Any]) -> str:
    """A panel without its blocks: heading, axis, the rows' names and bubbles."""
    top, start, end = panel["top"], panel["start_ns"], panel["end_ns"]
    above = top - 0.75 * size.words
    length = panel.get("length") or duration(end - start)
    ink = [text_at(size.margin, above, f"{panel['name']} · {length}", "step"), _axis(size, top)]
    if figure.has_shares:
        ink.append(text_at(size.page - size.margin, above, "bubble", "quiet end"))
    rows = zip(figure.rows, size.tops, size.tops[1:], panel["shares"], strict=False)
    for index, (row, at, below, share) in enumerate(rows):
        other = " other" if row.of_run is not None else ""
        ink.append(f'<rect class="idle{other}" x="{size.left}" y="{top + at + figure.gap / 2:g}" '
                   f'width="{size.plot:g}" height="{below - at - figure.gap:g}"/>')  # fmt: skip
        if index % figure.names_every:
            continue
        middle = top + (at + below) / 2 + size.words / 3
        ink.append(text_at(size.left - 10, middle, _shortened(row.name), "end"))
        if share is not None:
            ink.append(text_at(size.page - size.margin, middle, f"{share:.1%}", "end"))
    return "".join(ink)


def _placed(figure: Figure, size: _Size, panels: pl.DataFrame) -> pl.DataFrame:
    """The blocks of `panels` with x, y, w, h in pixels. A narrow gap separates neighbours."""
    lanes = [(row, lane, *_lane(figure.gap, at, below, lane, line.lanes))
             for row, (line, at, below) in enumerate(zip(figure.rows, size.tops, size.tops[1:], strict=False))
             for lane in range(line.lanes)]  # fmt: skip
    drawn = pl.DataFrame(lanes, {"row": pl.UInt32, "lane": pl.UInt32, "y": pl.Float64, "h": pl.Float64}, orient="row")
    begins = panels.select("top", begin_ns="start_ns", panel=pl.int_range(pl.len(), dtype=pl.UInt32))
    width = (pl.col("end_ns") - pl.col("start_ns")) * size.scale
    return (
        figure.blocks.join(begins, on="panel", maintain_order="left")
        .join(drawn, on=["row", "lane"], maintain_order="left")
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


def _fills(placed: pl.DataFrame, hatched: bool) -> Iterator[str]:
    """One path per colour; then the marks of blocks that are longer or shorter than those of the other run."""
    path = pl.format("M{} {}h{}v{}h-{}z", "x", "y", "w", "h", "w")
    for fill, data in placed.group_by("fill", maintain_order=True).agg(path.str.join("")).sort("fill").iter_rows():
        yield f'<path fill="{_paint(fill, hatched)}" d="{data}"/>'
    thick = (pl.col("h") / 6).round(2)
    line = pl.format("M{} {}h{}v{}h-{}z", "x", (pl.col("y") + pl.col("h") - thick).round(2), "w", thick, "w")
    for longer, data in (
        placed.filter(pl.col("longer") != 0).group_by("longer").agg(line.str.join("")).sort("longer").iter_rows()
    ):
        yield f'<path fill="{DIFFERENT[longer]}" d="{data}"/>'


def _paint(fill: str, hatched: bool) -> str:
    """A colour, or the pattern of a cause of idle time."""
    return f"url(#{fill[1:]})" if hatched and fill in IDLE_GRAYS.values() else fill


def _patterns(figure: Figure) -> str:
    """The definitions of the patterns of the causes that are drawn."""
    drawn = set(figure.blocks["fill"].unique()) if figure.hatched else set()
    patterns = [
        f'<pattern id="{fill[1:]}" width="6" height="6" patternUnits="userSpaceOnUse"><rect width="6" height="6" '
        f'fill="{fill}"/><path d="{lines}" stroke="#404040" stroke-width="0.7" fill="none"/></pattern>'
        for fill, lines in zip(IDLE_GRAYS.values(), HATCHES, strict=True)
        if fill in drawn
    ]
    return f"<defs>{''.join(patterns)}</defs>" if patterns else ""


def _numbers(placed: pl.DataFrame, text: float) -> str:
    """The labels of blocks in which the longest label of their colour has room: blocks of about one width have all
    theirs, or none."""
    labelled = placed.filter(pl.col("label") != "")
    fitting = labelled.filter(pl.col("w") >= _least_labelled(labelled, text), pl.col("h") >= text)
    words = fitting["label"].unique(maintain_order=True)
    spelt = pl.Series([safe(word) for word in words], dtype=pl.String)
    label = pl.col("label").replace_strict(words, spelt, return_dtype=pl.String) if len(words) else pl.col("label")
    x, y = (pl.col("x") + pl.col("w") / 2).round(1), (pl.col("y") + pl.col("h") / 2 + 0.36 * text).round(1)
    texts = fitting.select(pl.format('<text x="{}" y="{}">{}</text>', x, y, label).str.join("")).item()
    return f'<g class="n">{texts}</g>'


def _least_labelled(labelled: pl.DataFrame, text: float) -> pl.Series:
    """For each block from which width on those of its colour have their labels: where the longest has room, or where
    the next gap between their widths is."""
    room = pl.col("label").str.len_chars().max() * LETTER * text + 1
    needed = labelled.group_by("fill").agg(room.alias("room"), pl.col("w").unique().sort())
    least = {fill: _gap_near(room, widths) for fill, room, widths in needed.iter_rows()}
    return labelled["fill"].replace_strict(least, return_dtype=pl.Float64)


def _gap_near(room: float, widths: list[float]) -> float:
    """`room`, moved over the nearest gap between the `widths` (sorted); as it is where there is none nearby.

    Widths of 20, 21 and 30 with room for 20.5: the gap from 21 to 30 is the nearest, so that only 30 has its label.
    """
    gaps = [(below, above) for below, above in pairwise([0.0, *widths, inf]) if above >= APART * below]
    distances = [max((below - room) / MOST_HIDDEN, (room - above) / MOST_TIGHT, 0.0) for below, above in gaps]
    nearest = min(range(len(gaps)), key=distances.__getitem__)
    return gaps[nearest][1] if distances[nearest] <= room else room


def _axis(size: _Size, top: float) -> str:
    """Grid lines behind the rows, and below them the time since the step's start."""
    span = size.plot / size.scale
    unit, factor = time_unit(span)
    bottom = top + size.tops[-1]
    ink = []
    ticks = ticks_until(span / factor, max(4, round(size.plot / (9 * size.words))))
    for tick in ticks:
        x = round(size.left + tick * factor * size.scale, 1)
        ink.append(f'<path class="grid" d="M{x:g} {top:g}V{bottom + 5:g}"/>')
        label = f"{tick:g} {unit}" if tick == ticks[-1] else f"{tick:g}"
        ink.append(text_at(x, bottom + 1.4 * size.words, label, "quiet mid"))
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


def _legend(figure: Figure, size: _Size, y: float) -> tuple[list[str], float]:
    """What the colours mean, from `y` down, and the y below it."""
    if not figure.legend:
        return [], y
    swatch, line = size.small + 1, 1.65 * size.small
    ink, x, y = [], float(size.margin), y + line
    for fill, words in figure.legend:
        letters = sum(WIDTHS.get(letter, WORDS) for letter in words) * size.small
        width = swatch + 5 + letters
        if x > size.margin and x + width > size.page - size.margin:
            x, y = float(size.margin), y + line
        corner = y - 0.83 * swatch
        paint = 'class="other"' if fill == OTHER_RUN else f'fill="{_paint(fill, figure.hatched)}"'
        ink.append(f'<rect {paint} x="{x:g}" y="{corner:g}" width="{swatch:g}" height="{swatch:g}"/>')
        ink.append(text_at(x + swatch + 5, y, words, "quiet", letters))
        x += width + 14
    return ink, y + 0.4 * line


def _document(figure: Figure, panels: pl.DataFrame, size: _Size, height: float, ink: str) -> str:
    printed, width = figure.style.width_mm, size.page
    on_paper = None if printed is None else (f"{printed:g}mm", f"{printed * height / width:.4g}mm")
    words = f"{len(figure.rows)} rows, {len(panels)} steps"
    style = _style(figure, size)
    return document((width, height), (figure.title, words), style, ink, _patterns(figure), on_paper)


def document(
    size: tuple[float, float],
    words: tuple[str, str],
    style: str,
    ink: str,
    definitions: str = "",
    on_paper: tuple[str, str] | None = None,
) -> str:
    """A picture of a size in pixels with a title and a description; `on_paper`: its size there, if it has one."""
    shown, box = (f"{size[0]:g}", f"{size[1]:g}"), f'width="{size[0]:g}" height="{size[1]:g}"'
    wide, high = on_paper or shown
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" viewBox="0 0 {" ".join(shown)}" '
        f'role="img">{mark.SVG}<title>{safe(words[0])}</title><desc>{words[1]}</desc><style>{style}</style>'
        f'{definitions}<rect class="paper" {box}/>{ink}</svg>\n'
    )


def _style(figure: Figure, size: _Size) -> str:
    """`.n` comes last: the numbers stand on the blocks' fills, which are the same in light and dark; on hatched ones
    only a white edge makes them readable."""
    edge = ";paint-order:stroke;stroke:#fff;stroke-width:3px" if _patterns(figure) else ""
    return (
        f"\ntext{{font-family:{FONTS};font-size:{size.words:g}px}}\n.grid{{stroke-width:1}}"
        f".title{{font-size:{size.title:g}px;font-weight:600}}.step{{font-weight:600}}"
        f".quiet{{font-size:{size.small:g}px}}\n.end{{text-anchor:end}}.mid{{text-anchor:middle}}\n"
        f"{INKS[figure.style.theme]}\n.n text{{text-anchor:middle;fill:{TEXT};font-size:{size.text:.1f}px{edge}}}\n"
    )


def text_at(x: float, y: float, words: str, style: str, width: float | None = None) -> str:
    """`width`: that of the words, whatever the font of the reader."""
    fitted = "" if width is None else f' textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs"'
    return f'<text x="{x:g}" y="{y:g}" class="{style}"{fitted}>{safe(words)}</text>'


def _shortened(words: str) -> str:
    return words if len(words) <= MOST_NAME else words[: MOST_NAME - 1] + "…"
