"""The colour of a slice in the Perfetto UI.

The trace format has no colour. The UI hashes a slice's correlation id (a text of our choice), so a fitting text gives
a fitting colour. The texts are shown to the user as the argument `correlation_id`, hence readable words.
"""

from __future__ import annotations

import polars as pl

from trace_export.choices import ColorBy

SEEDS = {
    "F": "forward-op",  # blue
    "B": "Bwd_pipeline",  # green
    "W": "W (weight-span)",  # orange
    "OPT": "optim_time",  # red
    "FB": "forward-backward compute (F+B)",  # purple
}


def seed(color_by: ColorBy) -> pl.Expr:
    """The correlation id of each row of a frame with the columns kind, microbatch, rank; null: coloured by its name."""
    by = {
        "kind": pl.col("kind").replace_strict(SEEDS, default=None, return_dtype=pl.String),
        "microbatch": pl.format("mb{}", pl.col("microbatch")),
        "rank": pl.format("rank {}", pl.col("rank")),
        "none": pl.lit(None, pl.String),
    }
    return by[color_by].alias("seed")


def hue_and_lightness(text: str) -> tuple[int, int]:
    """HSLuv hue (degrees) and lightness (percent, saturation is 80) that the UI gives to `text`.

    The rule of the Perfetto UI v52 (ui/src/base/hash.ts and components/colorizer.ts), where JavaScript multiplies in
    doubles and then keeps the low 32 bits, signed.
    """
    return _hash(text, 360), _hash(text + "x", 40) + 40


def _hash(text: str, limit: int) -> int:
    value = 0x811C9DC5 & 0x0FFFFFFF
    units = text.encode("utf-16-le")
    for at in range(0, len(units), 2):
        value = _int32(value ^ int.from_bytes(units[at : at + 2], "little"))
        value = _int32(int(float(value) * 16777619.0))
    return abs(value) % limit


def _int32(value: int) -> int:
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)
