"""Doubles: blocks that were recorded twice, as in a log concatenated with itself, and whole ranks, as in copied
files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl

from trace_export.model import Note, Profile
from trace_export.ordering import is_ordered, ordered
from trace_export.selection import Numbers
from trace_export.units import finer_than_ms

TIMES = ["rank", "start_ns", "end_ns"]
CONTENT = ["rank", "kind", "microbatch", "chunk", "microbatch_b", "chunk_b", "marker", "start_ns", "end_ns"]
"""Blocks that agree in these columns are one block: a rank does not run two of them at the same nanoseconds."""


def without_doubles(profile: Profile) -> Profile:
    """`profile` with each block once, the first in the order of the table, and a warning where some were repeated.

    The rows of the other tables, which come from the same files, are then each there once, too.
    """
    spans = profile.spans
    if is_ordered(ordered(spans.select(TIMES).drop_nulls("start_ns"), *TIMES), *TIMES, strictly=True):
        return profile
    first = spans.select(pl.struct(CONTENT).is_first_distinct()).to_series() | spans["start_ns"].is_null()
    repeated = spans.filter(~first)
    if repeated.is_empty():
        return profile
    ranks = repeated["rank"].unique()
    frames: dict[str, Any] = {
        name: _distinct(getattr(profile, name), ranks) for name in ("p2p", "collectives", "counters")
    }
    where = profile.ranks.filter(pl.col("rank").is_in(ranks.implode()))["source"].drop_nulls()
    text = f"blocks recorded twice, with the same times, count once (on {Numbers.of(ranks).named('rank')})"
    note = Note("blocks-recorded-twice", "warning", text, where[0] if len(where) else "", len(repeated))
    return replace(profile, spans=spans.filter(first), **frames).with_notes([note])


def _distinct(frame: pl.DataFrame, ranks: pl.Series) -> pl.DataFrame:
    """`frame` with each row of `ranks` once; a sequence number does not make two operations of one."""
    content = [c for c in frame.columns if c != "sequence"]
    return frame.filter(~pl.col("rank").is_in(ranks.implode()) | pl.struct(content).is_first_distinct())


def copied_ranks(profile: Profile, work: pl.DataFrame) -> list[Note]:
    """A warning where all times of ranks in `work`, their blocks, are times of other ranks: a file or a part of it was
    copied, or lies in place of another. Replicas of a stage may have the same times where these are whole ms."""
    exact = pl.any_horizontal(finer_than_ms(pl.col("start_ns", "end_ns"))).any().over("rank")
    times = work.select("rank", exact=exact, time=pl.struct("kind", "start_ns", "end_ns").hash())
    shared = times.filter(pl.col("time").is_duplicated()).join(profile.ranks.select("rank", "stage"), on="rank")
    if shared.is_empty():
        return []
    several, stages = pl.col("rank").n_unique() > 1, pl.col("stage").n_unique()
    twice = shared.filter((several & (pl.col("exact").any() | (stages > 1))).over("time"))
    counts = twice.group_by("rank").len().join(times.group_by("rank").agg(of=pl.len()), on="rank")
    copies = counts.filter(pl.col("len") == pl.col("of"), pl.col("of") > 1).join(profile.ranks, on="rank").sort("rank")
    if copies.is_empty():
        return []
    text = f"ranks {Numbers.of(copies['rank'])} have exactly the same times as another rank, as if files were copied"
    where = copies["source"].drop_nulls()
    return [Note("ranks-identical", "warning", text, where[-1] if len(where) else "", len(copies))]
