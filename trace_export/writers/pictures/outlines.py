"""The text of an SVG picture as outlines of one font, so that it looks the same with whatever fonts a reader has.

The glyphs come from fontTools (the extra `picture`): formats of fonts are a subject of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from html import unescape
from io import BytesIO
from pathlib import Path
from typing import Any

from trace_export.errors import UsageError, missing_extra
from trace_export.files import read_file

MOST_BYTES = 100_000_000
"""The largest fonts, with all Chinese characters, have some 30 MB."""

_TEXT = re.compile(
    r'<text x="([^"]+)" y="([^"]+)"(?: class="([^"]*)")?(?: textLength="([^"]+)" lengthAdjust="[^"]+")?>([^<]*)</text>'
)
_SELECTOR = re.compile(r"\btext([{,])")


def outlined(svg: str, font: Path, sizes: Mapping[str, float]) -> str:
    """`svg` as `svg.draw` makes it, its texts as paths. `sizes`: the font size of each class of text in pixels, "n" the
    size of the numbers in blocks, "" that of any other.

    Raises UsageError where the file is not a font or has no glyph for a letter, and where fontTools is not installed.
    """
    draw = _outlines(font)

    def path(match: re.Match[str]) -> str:
        x, y, style, fitted, words = match.groups()
        classes = (style or "n").split()
        size = next((sizes[name] for name in classes if name in sizes), sizes[""])
        outline, width = draw(unescape(words))
        scale = size / 1000
        shift = {"end": width, "mid": width / 2, "n": width / 2}
        left = float(x) - scale * next((shift[name] for name in classes if name in shift), 0.0)
        across = float(fitted) / width if fitted and width else scale
        transform = f"translate({left:.2f} {y}) scale({across:.5g} {-scale:.5g})"
        return f'<path class="{" ".join(["text", *classes])}" transform="{transform}" d="{outline}"/>'

    head, style, rest = svg.partition("</style>")
    return _SELECTOR.sub(r".text\1", head) + style + _TEXT.sub(path, rest)


def _outlines(file: Path) -> Any:
    """A function from words to their outline and width, in thousandths of the font size, upwards."""
    try:
        from fontTools.pens.svgPathPen import SVGPathPen
        from fontTools.pens.transformPen import TransformPen
        from fontTools.ttLib import TTFont, TTLibError
    except ImportError as error:
        raise missing_extra("`figure.font`", "picture") from error
    try:
        font = TTFont(BytesIO(read_file(file, MOST_BYTES)), fontNumber=0)
        glyphs, names, unit = font.getGlyphSet(), font.getBestCmap(), 1000 / font["head"].unitsPerEm
    except (TTLibError, OSError, KeyError) as error:
        what = f"{file} is not a font that can be read ({error})"
        raise UsageError(what, "give a .ttf or .otf file", parameter="figure.font") from error

    @cache
    def outline(words: str) -> tuple[str, float]:
        missing = sorted({letter for letter in words if ord(letter) not in names})
        if missing:
            what = f"{file} has no glyph for {' '.join(missing)}"
            raise UsageError(what, "choose a font that has them", parameter="figure.font")
        pen, at = SVGPathPen(glyphs, ntos=lambda number: f"{number:.0f}"), 0.0
        for letter in words:
            glyph = glyphs[names[ord(letter)]]
            glyph.draw(TransformPen(pen, (unit, 0, 0, unit, at, 0)))
            at += unit * glyph.width
        return pen.getCommands(), at

    return outline
