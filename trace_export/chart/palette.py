"""The colours of a pipeline chart, as the papers have them: forward blue, backward green, weight orange."""

from __future__ import annotations

FILLS = {
    "F": "#5b9bec",
    "B": "#4cb052",
    "W": "#eaa94a",
    "FB": "#c98ae0",
    "OPT": "#f0737c",
    "": "#8fb8b5",
    "idle": "#d3d9df",
}
"""Fill of a kind of block ("": work that is none of these; "idle": a stretch without any). Dark text on each has a contrast of at least 7 : 1 (WCAG AAA)."""

TEXT = "#000000"
"""The text on a fill, on light and dark pages alike."""


def shade(kind: str, chunk: int, chunks: int) -> str:
    """The fill of a block of model chunk `chunk` (from 0) of `chunks`: the first is full, later ones are lighter."""
    white = 0.6 * chunk / (chunks - 1) if chunks > 1 else 0.0
    full = (int(FILLS[kind][at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * white):02x}" for part in full)
