"""Slowdowns as a still SVG picture, a colour for each: stages down, replicas across."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

import polars as pl

from trace_export.chart.colours import TEXT
from trace_export.writers.pictures.svg import FONTS, INKS, Still, document, text_at

SHADES = ("#fff7ec", "#fee8c8", "#fdd49e", "#fdbb84", "#fc8d59", "#ef6548")
"""From the least value of the scale to the greatest (ColorBrewer's OrRd, without its darkest)."""
LEAST, MOST = 1.1, 1.5
"""The scale goes from 1 to the largest slowdown, within these limits (the second as in the straggler study)."""
CELL, LEAST_CELL, HEIGHT = 46.0, 6.0, 26.0
"""Pixels: a cell that holds a number, the narrowest cell, and the height of a row."""
MOST_WIDTH, MOST_HEIGHT = 1600, 1200
MARGIN, LABEL, LETTER = 16, 30, 6.5
"""Pixels around the picture, and those that the name of a column and a letter need."""
REMARK = 110
"""Letters of a line below the picture."""
TITLE, WORDS, SMALL = 15, 12, 11
"""Font sizes."""
STYLE = (
    f"text{{font-family:{FONTS};font-size:{WORDS}px}}.title{{font-size:{TITLE}px;font-weight:600}}"
    f".quiet{{font-size:{SMALL}px}}.end{{text-anchor:end}}.mid{{text-anchor:middle}}{INKS['auto']}"
    f".n text{{text-anchor:middle;fill:{TEXT};font-size:{SMALL}px}}"
)


def shade(value: float, top: float) -> str:
    """The colour of a value on a scale from 1 to `top`."""
    share = (value - 1) / (top - 1)
    return SHADES[min(max(round(share * (len(SHADES) - 1)), 0), len(SHADES) - 1)]


def draw(title: str, grid: pl.DataFrame, remarks: Sequence[str] = ()) -> Still:
    """The picture of `grid` (stage, and a column for each replica, null where it has no value), with the numbers in the
    cells where there is room for them, and the `remarks` below."""
    stages, replicas = [str(stage) for stage in grid["stage"]], grid.columns[1:]
    wide = max(min(CELL, MOST_WIDTH / len(replicas)), LEAST_CELL)
    high = max(min(HEIGHT, MOST_HEIGHT / len(stages)), LEAST_CELL)
    left, top = MARGIN + max(map(len, [*stages, "stage"])) * LETTER + 10, MARGIN + 84.0
    values = grid.drop("stage")
    largest = max((value for column in values for value in column.drop_nulls()), default=1.0)
    ink = [text_at(MARGIN, MARGIN + 12, title, "title"), *_scale(MARGIN + 34, largest)]
    ink += _names(stages, replicas, (left, top), (wide, high))
    ink += _cells(values, _top(largest), (left, top), (wide, high))
    y = top + high * len(stages) + 10
    lines = [line for remark in remarks for line in wrap(remark, REMARK)]
    for line in lines:
        y += 16
        ink.append(text_at(MARGIN, y, line, "quiet"))
    longest = max([len(title) * 1.3, *map(len, lines)], default=0)
    width = round(max(left + wide * len(replicas), MARGIN + longest * LETTER) + MARGIN)
    height, words = y + MARGIN, f"{len(stages)} × {len(replicas)} values"
    return Still(document((width, height), (title, words), STYLE, "".join(ink)), width, height)


def _top(largest: float) -> float:
    """The end of the scale."""
    return min(max(largest, LEAST), MOST)


def _scale(y: float, largest: float) -> Iterator[str]:
    """The colours, and the values of the first and the last."""
    yield text_at(MARGIN, y, "1", "quiet")
    x = MARGIN + 24.0
    for fill in SHADES:
        yield f'<rect fill="{fill}" x="{x:g}" y="{y - 10:g}" width="22" height="12"/>'
        x += 22
    yield text_at(x + 6, y, f"{_top(largest):.3g}{' or more' if largest > MOST else ''}", "quiet")


def _names(
    stages: Sequence[str], replicas: Sequence[str], corner: tuple[float, float], cell: tuple[float, float]
) -> Iterator[str]:
    (left, top), (wide, high) = corner, cell
    yield text_at(left - 10, top - 8, "stage", "quiet end")
    every = -(-max(LABEL, max(map(len, replicas)) * LETTER) // wide)
    yield text_at(left, top - 24, "replica", "quiet")
    for n in range(0, len(replicas), int(every)):
        yield text_at(left + (n + 0.5) * wide, top - 8, replicas[n], "quiet mid")
    for n in range(0, len(stages), int(-(-12 // high))):
        yield text_at(left - 10, top + (n + 0.5) * high + 4, stages[n], "end")


def _cells(
    grid: pl.DataFrame, scale_top: float, corner: tuple[float, float], cell: tuple[float, float]
) -> Iterator[str]:
    (left, top), (wide, high) = corner, cell
    numbers = wide >= LABEL and high >= 12
    yield '<g class="n">'
    for row, values in enumerate(grid.rows()):
        for column, value in enumerate(values):
            if value is None:
                continue
            x, y = left + column * wide, top + row * high
            box = f'x="{x:.2f}" y="{y:.2f}" width="{wide - 1:.2f}" height="{high - 1:.2f}"'
            yield f'<rect fill="{shade(value, scale_top)}" {box}/>'
            if numbers:
                yield f'<text x="{x + wide / 2:.1f}" y="{y + high / 2 + 4:.1f}">{value:.2f}</text>'
    yield "</g>"
