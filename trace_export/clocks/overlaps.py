"""Clocks that were set back while they were recorded, as the blocks of a single rank show: some times come twice."""

from __future__ import annotations

import polars as pl

from trace_export.clocks.clock_steps import CONTRADICTING
from trace_export.model import TEXT, TIME, WORK_KINDS, Profile, Schema, empty
from trace_export.ordering import ordered

BACK = 3
"""If steps of a rank overlap by this many of its longest blocks, its clock was set back."""
OVERLAPPING_SHARE = 0.1
"""Two blocks overlap if they have more than this share of the shorter one in common."""

SHOWN_TWICE: Schema = {"host": TEXT, "from_ns": TIME, "until_ns": TIME}
"""A host on whose clock blocks overlap between two times, by that clock."""


def set_back(profile: Profile) -> pl.DataFrame:
    """host, step, back_ns: the hosts on whose clocks a rank begins the forwards and backwards of `step`, as numbered by
    the profile, at least `back_ns` before it ends those of the step before, which is longer than any block explains.
    One block may have a wrong time.

    Example: on a clock that is set back by 5 s between the steps 1 and 2, a rank begins step 2 before step 0.
    """
    blocks = profile.spans.filter(pl.col("step").is_not_null() & pl.col("kind").is_in(["F", "B", "FB"]))
    if profile.declared.step_zeros is not None:
        blocks = blocks.clear()
    length = (pl.col("end_ns") - pl.col("start_ns")).max()
    begun = blocks.group_by("rank", "run", "step").agg(
        pl.col("start_ns").bottom_k(CONTRADICTING).max(), pl.col("end_ns").top_k(CONTRADICTING).min(), pl.len(),
        length=length
    ).sort("rank", "run", "step")  # fmt: skip
    before = pl.col("end_ns").shift().over("rank", "run")
    turned = begun.with_columns(back_ns=before - pl.col("start_ns")).filter(
        pl.col("back_ns") > BACK * pl.col("length").max().over("rank"), pl.col("len") >= CONTRADICTING
    )
    placed = turned.join(profile.ranks.select("rank", "host"), on="rank").select("host", "step", "back_ns")
    return placed.sort("host", "back_ns").unique("host", keep="last", maintain_order=True)


def overlapping(profile: Profile) -> pl.DataFrame:
    """The host (`SHOWN_TWICE`) on whose clock most blocks of each of its ranks overlap in one part of the recording, no
    longer than half of it, if no blocks overlap otherwise; at most one row.

    A clock that is set back shows some times twice. One block with a wrong time overlaps those before and after it.

    Example: a clock is set back by 30 ms between the third and the fourth block of a rank. It shows the first three at
    0–10, 12–22 and 24–34 ms, and the next ones at 6–16, 18–28 and 30–40.
    """
    blocks = ordered(profile.spans.filter(pl.col("kind").is_in(WORK_KINDS)), "rank", "start_ns")
    start, end = (pl.col(name).shift(-1).over("rank") for name in ("start_ns", "end_ns"))
    shorter = pl.min_horizontal(pl.col("end_ns") - pl.col("start_ns"), end - start)
    overlaps = ((pl.col("end_ns") - start > OVERLAPPING_SHARE * shorter) & (shorter > 0)).fill_null(value=False)
    blocks = blocks.select(
        "rank", "start_ns", "end_ns", overlaps.alias("here"), row=pl.int_range(pl.len()).over("rank")
    )
    if not blocks["here"].any():
        return empty(SHOWN_TWICE)
    here, last = pl.col("here"), pl.col("row").filter("here").max()
    first_of_two = here & (pl.int_range(pl.len()).over(here.rle_id()) % 2 == 0)
    ranks = blocks.with_columns(pair=first_of_two, meets=here | here.shift(fill_value=False)).group_by("rank").agg(
        pl.col("pair", "meets").sum(), pl.len(), length=last - pl.col("row").filter("here").min() + 2,
        from_ns=pl.col("start_ns").filter("here").min(), until_ns=pl.col("end_ns").filter("here").max(),
    )  # fmt: skip
    dense = 2 * pl.col("meets") >= pl.col("length")
    twice = (pl.col("pair") >= CONTRADICTING) & dense & (2 * pl.col("length") <= pl.col("len"))
    hosts = ranks.with_columns(twice=twice.fill_null(value=False)).join(profile.ranks.select("rank", "host"), on="rank")
    of_host = hosts.group_by("host").agg(
        pl.col("pair").max(), pl.col("twice").all(), pl.col("from_ns").min(), pl.col("until_ns").max()
    ).filter(pl.col("pair") > 0)  # fmt: skip
    return of_host.filter("twice", pl.len() == 1).select(*SHOWN_TWICE)
