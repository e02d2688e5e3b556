"""Another run, drawn under this one: its tracks below those of the same stage, its first block at the same time."""

from __future__ import annotations

import polars as pl

from trace_export.chart.block_names import block_name, has_chunks
from trace_export.chart.layout import Overlay
from trace_export.model import Profile


def beside(other: Profile, profile: Profile, name: str) -> Overlay:
    """The blocks of `other` on tracks called `stage 0 (name)`.

    One rank stands for each stage, the first. The time is moved so that both runs start together.
    """
    move = int(profile.spans["start_ns"].to_numpy().min()) - int(other.spans["start_ns"].to_numpy().min())
    drawn = other.ranks.join(other.spans, on="rank", how="semi").sort("rank").unique("stage", maintain_order=True)
    slices = (
        other.spans.drop("id")
        .join(drawn.select("rank", "stage", "host"), on="rank", how="inner", maintain_order="left")
        .with_columns(
            pl.col("start_ns", "end_ns") + move,
            block_name(has_chunks(other.spans)),
            category=pl.lit("block"),
        )
    )  # fmt: skip
    return Overlay(f"stage {{}} ({name})", slices)
