"""The busy times of all stages as a small picture: bar from P5 to P95, line at the median, dot at the longest."""

from __future__ import annotations

import polars as pl

from trace_export.writers.pictures.svg import ticks_until

WIDTH, HEIGHT, LEFT, BELOW, ABOVE = 900, 220, 60, 26, 10
LABELS = 24
"""This many stages are numbered at most."""
LEAST = 1e-6
"""The axis ends at this time in ms, or a later one."""


def picture(bands: pl.DataFrame) -> str:
    """An SVG element of `bands` (stage, p5, p50, p95, max, in ms)."""
    if bands.is_empty():
        return ""
    most, bottom = max([LEAST, *bands["max"].to_list()]), HEIGHT - BELOW
    ticks = ticks_until(1.5 * most, 6)
    top = next(tick for tick in ticks if tick >= most)
    step = (WIDTH - LEFT) / bands.height
    width = min(step * 0.6, 26)

    def y(value: float) -> float:
        return bottom - (bottom - ABOVE) * value / top

    every = -(-bands.height // LABELS)
    parts = [f'<svg class="bands" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="busy time of the stages">']
    for tick in (tick for tick in ticks if tick <= top):
        at = y(tick)
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH}"/>')
        parts.append(_text(LEFT - 6, at + 4, f"{tick:g}", "end"))
    for n, (stage, p5, p50, p95, longest) in enumerate(bands.select("stage", "p5", "p50", "p95", "max").iter_rows()):
        middle = LEFT + step * (n + 0.5)
        left, high, low = middle - width / 2, y(p95), y(p5)
        words = f"stage {stage}: P5 {p5:.4g} ms, P50 {p50:.4g} ms, P95 {p95:.4g} ms, longest {longest:.4g} ms"
        bar = f'x="{left:.1f}" y="{high:.1f}" width="{width:.1f}" height="{max(low - high, 1):.1f}"'
        line = f'<path class="middle" d="M{left:.1f} {y(p50):.1f}h{width:.1f}"/>'
        dot = f'<circle cx="{middle:.1f}" cy="{y(longest):.1f}" r="3"/>'
        parts.append(f"<g><title>{words}</title><rect {bar}/>{line}{dot}</g>")
        if n % every == 0:
            parts.append(_text(middle, HEIGHT - 8, str(stage), "middle"))
    return "".join([*parts, "</svg>"])


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'
