"""The options that say how pictures look; see `writers.pictures.style`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trace_export import choices
from trace_export.cli.options.words import PICTURES, one_of
from trace_export.units import millimetres

if TYPE_CHECKING:
    from trace_export.api import FigureStyle

_option = partial(typer.Option, rich_help_panel=PICTURES)
_choice = partial(one_of, panel=PICTURES)


@dataclass(frozen=True)
class Figures:
    """How pictures look; see `writers.pictures.style`."""

    width: Annotated[
        str | None,
        _option(
            help="Width on paper of svg, png, pdf: 88mm for a column, 180mm for a page.",
            metavar="LENGTH",
            show_default=False,
        ),
    ] = None
    theme: Annotated[
        str,
        _choice(choices.Theme, "Colours. auto: light or dark as the reader's page; print, grayscale: with letters."),
    ] = "auto"
    title: Annotated[
        str | None, _option(help="Title in place of the chart's own; '' for none.", show_default=False)
    ] = None
    legend: Annotated[str, _choice(choices.Legend, "Where the colours are explained.")] = "above"
    no_legend: Annotated[bool, _option("--no-legend", help="The same as --legend none.")] = False
    figure_steps: Annotated[
        int | None,
        _option(
            "--figure-steps", help="Steps in a still picture; default: the selected ones, or three.", show_default=False
        ),
    ] = None
    range_: Annotated[
        str | None,
        _option(
            "--range",
            help="Only this part of the time, cut at both ends, from the first block drawn: 1.2s-1.6s.",
            metavar="FROM-TO",
            show_default=False,
        ),
    ] = None
    first_microbatch: Annotated[
        int,
        _option("--first-microbatch", help="Number of the first micro-batch in the blocks: 0, or 1 as in papers."),
    ] = 0
    letters: Annotated[
        bool | None,
        _option("--letters/--no-letters", help="Letter of the kind in each block: F0, B0.", show_default=False),
    ] = None
    font: Annotated[
        Path | None,
        _option(
            help="Font file (.ttf, .otf): svg, png and pdf have their text as its outlines.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None

    def style(self) -> FigureStyle:
        """What the API is given."""
        from trace_export import api

        return api.FigureStyle(
            width_mm=None if self.width is None else millimetres(self.width, "figure.width_mm"),
            theme=self.theme,  # type: ignore[arg-type]  # the API refuses any other word
            title=self.title,
            legend="none" if self.no_legend else self.legend,  # type: ignore[arg-type]
            steps=self.figure_steps,
            range=None if self.range_ is None else api.Window.parse(self.range_, "figure.range"),
            first_microbatch=self.first_microbatch,
            letters=self.letters,
            font=self.font,
        )
