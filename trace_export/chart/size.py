"""The size of a chart: which ranks get a track, how many slices a trace has, where to split it."""

from __future__ import annotations

import polars as pl

from trace_export.choices import Detail, Tracks
from trace_export.model import Profile
from trace_export.selection import Numbers, Selection, select


def drawn_ranks(profile: Profile, tracks: Tracks) -> list[int]:
    """The ranks that get a track: all, or of each stage the first, one with blocks if there is any."""
    empty = ~pl.col("rank").is_in(profile.spans["rank"].unique().implode())
    ranks = profile.ranks.sort(empty, "stage", "rank")
    first = pl.col("stage").is_null() | pl.col("stage").is_first_distinct()
    return (ranks if tracks == "rank" else ranks.filter(first))["rank"].to_list()


def slices_drawn(profile: Profile, tracks: Tracks, detail: Detail) -> int:
    """How many slices a trace of the profile has: blocks, and with a detail the device tasks of the ranks drawn."""
    drawn = _drawn(profile, tracks)
    if detail == "spans":
        return drawn.height
    ranks = set(drawn["rank"].unique())
    return drawn.height + sum(
        int(pl.scan_ipc(file.path).select(pl.len()).collect().item()) for file in profile.kernels if file.rank in ranks
    )


def pieces(
    profile: Profile, tracks: Tracks, detail: Detail, max_slices: int | None
) -> list[tuple[Numbers | None, Profile]]:
    """The profile whole, or as parts of whole steps with at most `max_slices` slices each.

    A step that alone has more is a part of its own. Device tasks are assumed to be distributed evenly over the steps.
    """
    total = slices_drawn(profile, tracks, detail) if max_slices is not None else 0
    if max_slices is None or total <= max_slices:
        return [(None, profile)]
    blocks = _drawn(profile, tracks).group_by("step").len().drop_nulls().sort("step")
    tasks_per_step = (total - int(blocks["len"].sum())) // max(blocks.height, 1)
    ranges: list[tuple[int, int]] = []
    room = 0
    for step, count in blocks.iter_rows():
        if ranges and count + tasks_per_step <= room:
            ranges[-1] = (ranges[-1][0], step)
        else:
            ranges.append((step, step))
            room = max_slices
        room -= count + tasks_per_step
    parts = [Numbers((steps,)) for steps in ranges]
    return [(part, select(profile, Selection(steps=part))) for part in parts]


def _drawn(profile: Profile, tracks: Tracks) -> pl.DataFrame:
    """The blocks of the ranks that get a track."""
    return profile.blocks.filter(pl.col("rank").is_in(drawn_ranks(profile, tracks)))
