"""The colours of a pipeline chart, as in the papers: forward blue, backward green, weight orange."""

from __future__ import annotations

FILLS = {
    "F": "#5b9bec",
    "B": "#4cb052",
    "W": "#eaa94a",
    "FB": "#c98ae0",
    "OPT": "#f0737c",
    "": "#8fb8b5",
}
"""Fill of a kind of block; "" is work that is none of these."""

IDLE = "#d3d9df"
IDLE_FILLS = {
    "warm-up": "#c5cfe0",
    "waiting for upstream": "#eed9a2",
    "exposed transfer": "#e9b99c",
    "late start": "#dcb8d2",
    "optimizer tail": "#f3c9cc",
    "cool-down": "#b9c4cf",
}
"""Fill of an idle stretch by its cause; `IDLE` for any other. Dark text on all fills here has a contrast of at least
7 : 1 (WCAG AAA)."""

TEXT = "#000000"
"""The text on a fill, on light and dark pages alike."""


def shade(kind: str, chunk: int, chunks: int) -> str:
    """The fill of a block of `kind` (or of idle time of that cause) and of model chunk `chunk` (from 0) of `chunks`:
    the first is full, later ones are lighter."""
    white = 0.5 * chunk / (chunks - 1) if chunks > 1 else 0.0
    base = FILLS.get(kind) or IDLE_FILLS.get(kind, IDLE)
    full = (int(base[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * white):02x}" for part in full)
