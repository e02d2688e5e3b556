"""A table of numbers as a still SVG picture, a colour for each: stages down, replicas across."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap

from trace_export.chart.colours import TEXT
from trace_export.writers.pictures.svg import FONTS, INKS, Still, document, text_at

SHADES = ("#fff7ec", "#fee8c8", "#fdd49e", "#fdbb84", "#fc8d59", "#ef6548")
"""From the least value of the scale to the greatest (ColorBrewer's OrRd, without its darkest)."""
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


@dataclass(frozen=True)
class HeatTable:
    """`values[row][column]`; null: no value. `scale`: the values of the first and the last of `SHADES`."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float | None]]
    scale: tuple[float, float]
    row_title: str
    column_title: str
    remarks: Sequence[str] = ()


def shade(value: float | None, scale: tuple[float, float]) -> int | None:
    """The number of its shade; None where there is no value."""
    if value is None:
        return None
    share = (value - scale[0]) / (scale[1] - scale[0])
    return min(max(round(share * (len(SHADES) - 1)), 0), len(SHADES) - 1)


def draw(table: HeatTable) -> Still:
    """The picture, with the numbers in the cells where there is room for them."""
    wide = max(min(CELL, MOST_WIDTH / len(table.columns)), LEAST_CELL)
    high = max(min(HEIGHT, MOST_HEIGHT / len(table.rows)), LEAST_CELL)
    left = MARGIN + max(len(name) for name in [*table.rows, table.row_title]) * LETTER + 10
    top = MARGIN + 84.0
    ink = [text_at(MARGIN, MARGIN + 12, table.title, "title"), *_scale(table.scale, MARGIN + 34)]
    ink += _names(table, (left, top), (wide, high))
    ink += _cells(table, (left, top), (wide, high))
    y = top + high * len(table.rows) + 10
    remarks = [line for remark in table.remarks for line in wrap(remark, REMARK)]
    for remark in remarks:
        y += 16
        ink.append(text_at(MARGIN, y, remark, "quiet"))
    longest = max([len(table.title) * 1.3, *map(len, remarks)], default=0)
    width = round(max(left + wide * len(table.columns), MARGIN + longest * LETTER) + MARGIN)
    height, words = y + MARGIN, f"{len(table.rows)} × {len(table.columns)} values"
    return Still(document((width, height), (table.title, words), STYLE, "".join(ink)), width, height)


def _scale(scale: tuple[float, float], y: float) -> Iterator[str]:
    """The colours, and the values of the first and the last."""
    yield text_at(MARGIN, y, f"{scale[0]:g}", "quiet")
    x = MARGIN + 24.0
    for fill in SHADES:
        yield f'<rect fill="{fill}" x="{x:g}" y="{y - 10:g}" width="22" height="12"/>'
        x += 22
    yield text_at(x + 6, y, f"{scale[1]:g} or more", "quiet")


def _names(table: HeatTable, corner: tuple[float, float], cell: tuple[float, float]) -> Iterator[str]:
    (left, top), (wide, high) = corner, cell
    yield text_at(left - 10, top - 8, table.row_title, "quiet end")
    every = -(-max(LABEL, max(map(len, table.columns)) * LETTER) // wide)
    yield text_at(left, top - 24, table.column_title, "quiet")
    for n in range(0, len(table.columns), int(every)):
        yield text_at(left + (n + 0.5) * wide, top - 8, table.columns[n], "quiet mid")
    for n in range(0, len(table.rows), int(-(-12 // high))):
        yield text_at(left - 10, top + (n + 0.5) * high + 4, table.rows[n], "end")


def _cells(table: HeatTable, corner: tuple[float, float], cell: tuple[float, float]) -> Iterator[str]:
    (left, top), (wide, high) = corner, cell
    numbers = wide >= LABEL and high >= 12
    yield '<g class="n">'
    for row, values in enumerate(table.values):
        for column, value in enumerate(values):
            x, y, number = left + column * wide, top + row * high, shade(value, table.scale)
            if number is None:
                continue
            box = f'x="{x:.2f}" y="{y:.2f}" width="{wide - 1:.2f}" height="{high - 1:.2f}"'
            yield f'<rect fill="{SHADES[number]}" {box}/>'
            if numbers:
                yield f'<text x="{x + wide / 2:.1f}" y="{y + high / 2 + 4:.1f}">{value:.2f}</text>'
    yield "</g>"
