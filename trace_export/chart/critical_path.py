"""The critical path in the chart: a track whose slices are its parts, and marks on its blocks."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from trace_export.chart.builder import Builder
from trace_export.chart.colours import IDLE_SEEDS, SEEDS

TRACK = "critical path"
WIRE_PARTS = ("sender_late", "receiver_late", "wire")
WAITS = {
    "wire": "exposed transfer", "collective": "exposed collective", "delay": "late start", "pause": "late start",
}  # fmt: skip
"""The cause of idle time whose colour a part other than work has."""


@dataclass(frozen=True)
class PathOverlay:
    """`parts`: those of the path, with the columns of `analysis.critical_path.PARTS`; `slack`: id, slack_ns of all
    blocks; `inputs`: those of `analysis.transfer_split.INPUTS`."""

    parts: pl.DataFrame
    slack: pl.DataFrame
    inputs: pl.DataFrame


def add_path(builder: Builder, path: PathOverlay, order: int) -> None:
    """The track of the path. Parts that overlap, as on clocks that disagree, begin where the one before ended."""
    named = (
        pl.when(pl.col("part") == "work").then(pl.format("{} · stage {}", "kind", "stage"))
        .when(pl.col("part") == "wire").then(pl.format("wire {} → {}", "from_stage", "stage"))
        .when(pl.col("part") == "collective").then("kind")
        .when(pl.col("part") == "delay").then(pl.format("late start · stage {}", "stage"))
        .otherwise(pl.format("{} · stage {}", "part", "stage"))
    )  # fmt: skip
    ordered = path.parts.sort("run", "step", "position")
    begun = pl.max_horizontal("start_ns", pl.col("end_ns").cum_max().shift(1).over("run", "step"))
    slices = ordered.with_columns(start_ns=begun).filter(pl.col("end_ns") > pl.col("start_ns"))
    if slices.is_empty():
        return
    seeds = {part: IDLE_SEEDS[cause] for part, cause in WAITS.items()}
    seed = (
        pl.when(pl.col("part") == "work").then(pl.col("kind").replace_strict(SEEDS, default=None))
        .otherwise(pl.col("part").replace_strict(seeds, default=None, return_dtype=pl.String))
    )  # fmt: skip
    track = builder.track(TRACK, order, description="What each step waits for, from its start to its end")
    shown = slices.select(
        "start_ns", "end_ns", pl.coalesce(named, "part").alias("name"), pl.lit(TRACK).alias("category"),
        seed.alias("seed"), pl.when(pl.col("part") == "work").then("kind").alias("kind"),
        pl.col("part").replace_strict(WAITS, default=None, return_dtype=pl.String).alias("cause"),
        "part", "step", "microbatch", "chunk", "stage", "rank", "from_rank", "from_stage",
    )  # fmt: skip
    builder.slices(shown, track)


def marked(blocks: pl.DataFrame, path: PathOverlay) -> pl.DataFrame:
    """`blocks` (id) with the argument "slack ms", those on the path with the argument "critical", and those that an
    arrow of a recorded transfer leads to with who was late for it."""
    on_path = path.parts.filter(pl.col("part") == "work").select("id", critical=pl.lit("yes")).unique("id")
    slack = path.slack.select("id", (pl.col("slack_ns") / 1e6).alias("slack ms"))
    joined = blocks.join(on_path, on="id", how="left", maintain_order="left")
    joined = joined.join(slack, on="id", how="left", maintain_order="left")
    if not path.inputs.is_empty():
        parts = {f"{part.replace('_', ' ')} ms": pl.col(f"{part}_ns") / 1e6 for part in WIRE_PARTS}
        inputs = path.inputs.select("id", pl.col("from_rank").alias("data from rank"), **parts)
        joined = joined.join(inputs, on="id", how="left", maintain_order="left")
    return joined
