"""The way of a micro-batch's data from the last stage: to the first one, for its next chunk, or nowhere."""

from __future__ import annotations

from typing import Literal

import polars as pl

from trace_export.model import Profile
from trace_export.schedules.passes import BACKWARDS, FORWARDS

Way = Literal["line", "loop"]
QUARTER_MORE = 1.25
"""Sends that differ by less are equally many: a capture may begin or end between two."""


def way_of_messages(profile: Profile, stages: int) -> Way | None:
    """The way of the data from the last stage, as the messages show: on to the first one, in a `loop` through several
    chunks, or nowhere, at the end of a `line`. None where the messages do not tell. In a line the first and the last
    stage exchange data with others, and none with each other; of two stages, each sends about once a block of its
    busiest kind.

    Example: with four micro-batches the first of two stages sends 4 times. In two chunks with two micro-batches, which
    is the same number of blocks, it sends 6 times: after each forward, and after the backward of its chunk 1.
    """
    if stages == 2:
        return _way_by_sends(profile)
    stage = profile.ranks.select("rank", "stage")
    sides = profile.p2p.select("rank", "peer").unique().join(stage, on="rank").join(
        stage.rename({"rank": "peer", "stage": "other"}), on="peer"
    )  # fmt: skip
    low, high = (between("stage", "other") for between in (pl.min_horizontal, pl.max_horizontal))
    pairs = set(sides.select(low=low, high=high).iter_rows())
    if stages < 2 or not {stage for pair in pairs for stage in pair} >= {0, stages - 1}:
        return None
    return "loop" if (0, stages - 1) in pairs else "line"


def _way_by_sends(profile: Profile) -> Way | None:
    """The way of two stages: in a line every rank sends as many messages as it has forwards or backwards, within a
    quarter; or one sends more than the other, which then lies in the middle of a longer line."""
    sends = profile.p2p.filter(pl.col("role") != "recv").group_by("rank").agg(sends=pl.len())
    counts = profile.spans.group_by("rank").agg(most=pl.max_horizontal(FORWARDS.sum(), BACKWARDS.sum()))
    of_rank = counts.filter(pl.col("most") > 0).join(sends, on="rank", how="left")
    if of_rank["sends"].null_count() or of_rank.is_empty():
        return None
    share = (of_rank["sends"] / of_rank["most"]).to_numpy()
    least, most = share.min(), share.max()
    return "line" if most <= QUARTER_MORE or most > QUARTER_MORE * least else "loop"
