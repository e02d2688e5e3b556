"""The size of a chart: which ranks get a track, and how many slices a trace has."""

from __future__ import annotations

import polars as pl

from trace_export.choices import Detail, Tracks
from trace_export.model import Profile


def drawn_ranks(profile: Profile, tracks: Tracks) -> list[int]:
    """The ranks that get a track: all, or of each stage the first, one with blocks if there is any."""
    empty = ~pl.col("rank").is_in(profile.spans["rank"].unique().implode())
    ranks = profile.ranks.sort(empty, "stage", "rank")
    first = pl.col("stage").is_null() | pl.col("stage").is_first_distinct()
    return (ranks if tracks == "rank" else ranks.filter(first))["rank"].to_list()


def slices_drawn(profile: Profile, tracks: Tracks, detail: Detail) -> int:
    """How many slices a trace of the profile has: blocks, and with a detail the device tasks of the ranks drawn."""
    drawn = profile.blocks.filter(pl.col("rank").is_in(drawn_ranks(profile, tracks)))
    if detail == "spans":
        return drawn.height
    ranks = set(drawn["rank"].unique())
    return drawn.height + sum(
        int(pl.scan_ipc(file.path).select(pl.len()).collect().item()) for file in profile.kernels if file.rank in ranks
    )
