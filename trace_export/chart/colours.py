"""The colours of a pipeline chart, as in the papers: forward blue, backward green, weight orange.

Pictures have the fills below. A trace has no colour: the Perfetto UI hashes a slice's correlation id (a text of our
choice), so a fitting text gives a fitting colour. The texts are shown to the user as the argument `correlation_id`,
hence readable words.
"""

from __future__ import annotations

from zlib import crc32

import polars as pl

from trace_export.choices import ColorBy, Theme
from trace_export.model import WORD

FILLS = {
    "F": "#9cc6fa",
    "B": "#4cb052",
    "W": "#eaa94a",
    "FB": "#c98ae0",
    "OPT": "#f0737c",
    "": "#8fb8b5",
}
"""Fill of a kind of block; "" is any other work. Forward is lighter than backward, which a print in black
and white keeps."""

GRAYS = {"F": "#dedede", "B": "#b0b0b0", "W": "#969696", "FB": "#c6c6c6", "OPT": "#ececec", "": "#e4e4e4"}
IDLE_GRAYS = {
    "warm-up": "#f4f4f4",
    "waiting for forward": "#d4d4d4",
    "waiting for backward": "#e2e2e2",
    "exposed transfer": "#a9a9a9",
    "exposed collective": "#b8b8b8",
    "waiting for other ranks": "#c6c6c6",
    "late start": "#8f8f8f",
    "optimizer tail": "#ebebeb",
    "cool-down": "#dadada",
}
"""Of idle stretches in a print in black and white, where a still picture hatches each cause in its way as well."""
COLORBLIND = {
    "F": "#9ad1f5",
    "B": "#e8873a",
    "W": "#f0e442",
    "FB": "#cc85b0",
    "OPT": "#66bf9f",
    "": "#bdbdbd",
}
"""After the palette of Okabe and Ito (2008), lighter where text stands on it: sky blue, vermilion, yellow, purple,
green."""

IDLE = "#d3d9df"
IDLE_FILLS = {
    "warm-up": "#c5cfe0",
    "waiting for forward": "#eed9a2",
    "waiting for backward": "#d3c9f0",
    "exposed transfer": "#e9b99c",
    "exposed collective": "#b5dcd9",
    "waiting for other ranks": "#cfe0b4",
    "late start": "#dcb8d2",
    "optimizer tail": "#f3c9cc",
    "cool-down": "#b9c4cf",
}
"""Fill of an idle stretch by its cause; `IDLE` for any other. Dark text on all fills here has a contrast of at least
7 : 1 (WCAG AAA)."""

DIFFERENT = {1: "#c62828", -1: "#1565c0"}
"""The mark of a block that is longer (1) or shorter (-1) than the same block of another run."""

TEXT = "#000000"
"""The text on a fill, on light and dark pages alike."""


SEEDS = {
    "F": "forward-op",  # blue
    "B": "Bwd_pipeline",  # green
    "W": "W (weight-span)",  # orange
    "OPT": "optim_time",  # red
    "FB": "forward-backward compute (F+B)",  # purple
}
"""Correlation id of a kind of block."""


IDLE_SEEDS = {
    "warm-up": "pause: warm-up, no work",
    "waiting for forward": "bubble: waiting for forward (rank)",
    "waiting for backward": "empty waiting for backward bubble",
    "exposed transfer": "gap exposed transfer",
    "exposed collective": "idle: exposed collective of the rank",
    "waiting for other ranks": "wait waiting for other ranks (rank)",
    "late start": "gap: late start on the rank",
    "optimizer tail": "gap: optimizer tail (no work)",
    "cool-down": "bubble: cool-down of the rank",
    "unknown cause": "stall unknown cause (rank)",
}
"""Correlation id of an idle stretch by its cause: the lightest colours of about the hues of `IDLE_FILLS`. The UI has
one saturation for all, so they are no paler."""

NO_SEED = pl.lit(None, pl.String).alias("seed")
"""Of a slice that the UI colours by its name."""

TASK_SEEDS = ("gpu l", "task c", "task u", "device r", "gpu k", "kernel lt")
"""Correlation ids of device tasks: colours of their own, since the UI would give many a kernel, by its name, the colour
of a kind of block."""


def task_seed() -> pl.Expr:
    """The correlation id of device tasks with the column name: that of a name is the same in every trace."""

    def seeds(names: pl.Series) -> pl.Series:
        names = names.cast(WORD)  # names may be long, and there are few
        different = names.drop_nulls().unique()
        chosen = [TASK_SEEDS[crc32(name.encode()) % len(TASK_SEEDS)] for name in different]
        codes = names.to_physical()
        return codes.replace_strict(different.to_physical(), pl.Series(chosen, dtype=WORD), default=None)

    return pl.col("name").map_batches(seeds, return_dtype=WORD).alias("seed")


def shade(kind: str, chunk: int, chunks: int, theme: Theme = "auto") -> str:
    """The fill of a block of `kind` (or of idle time of that cause) and of model chunk `chunk` (from 0) of `chunks`:
    the first is full, later ones are lighter."""
    white = 0.5 * chunk / (chunks - 1) if chunks > 1 else 0.0
    fills = {"grayscale": GRAYS, "colorblind": COLORBLIND}.get(theme, FILLS)
    base = fills.get(kind) or (IDLE_GRAYS if theme == "grayscale" else IDLE_FILLS).get(kind, IDLE)
    full = (int(base[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * white):02x}" for part in full)


def idle_seed(color_by: ColorBy) -> pl.Expr:
    """The correlation id of idle stretches with the column cause; null: coloured by their names."""
    if color_by == "none":
        return NO_SEED
    return pl.col("cause").replace_strict(IDLE_SEEDS, default=None, return_dtype=pl.String).alias("seed")


def seed(color_by: ColorBy) -> pl.Expr:
    """The correlation id of each row of a frame with the columns kind, microbatch, rank; null: coloured by its name."""
    by = {
        "kind": pl.col("kind").replace_strict(SEEDS, default=None, return_dtype=pl.String),
        "microbatch": pl.format("mb{}", pl.col("microbatch")),
        "rank": pl.format("rank {}", pl.col("rank")),
        "none": NO_SEED,
    }
    return by[color_by].alias("seed")
