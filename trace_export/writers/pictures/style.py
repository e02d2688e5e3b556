"""How a picture looks: its width on paper, its colours, what is written beside and in the blocks."""

from __future__ import annotations

from dataclasses import dataclass

from trace_export.choices import Legend, Theme
from trace_export.selection import Window

PIXELS_PER_MM = 96 / 25.4
"""CSS pixels (CSS Values 3, 5.2)."""
LETTERED = ("print", "grayscale")
"""Themes whose blocks have the letter of their kind, unless `letters` says otherwise."""


@dataclass(frozen=True)
class FigureStyle:
    """How svg, png, pdf and html pictures look.

    `width_mm`: the width on paper of a still picture, such as 88 for a column; no text is smaller than 6 pt then. None:
    as wide as the numbers in the blocks need. `theme`: auto follows the reader's light or dark page; print and
    grayscale are light and write the letter of the kind (F, B, W) into each block; colorblind has colours that people
    with any colour vision distinguish. `title`: in place of the chart's; "" leaves it out. `legend`: above or below
    the blocks, or none. `steps`: how many steps a still picture shows at most; None: the selected ones, or three.
    `range`: only that part of the time, from the first block, in one panel. `first_microbatch`: the number of the
    first micro-batch in the blocks, 0 as in the data or 1 as in most papers. `letters`: whether blocks have the letter
    of their kind; None: as the theme says.
    """

    width_mm: float | None = None
    theme: Theme = "auto"
    title: str | None = None
    legend: Legend = "above"
    steps: int | None = None
    range: Window | None = None
    first_microbatch: int = 0
    letters: bool | None = None

    @property
    def lettered(self) -> bool:
        """Whether blocks have the letter of their kind."""
        return self.theme in LETTERED if self.letters is None else self.letters
