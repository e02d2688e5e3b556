"""The parts of collectives that belong together, where the recordings of the members begin at different ones."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trace_export.model import COLLECTIVES, Profile, conform
from trace_export.tolerances import COLLECTIVE_ENDS_NS
from trace_export.window_offsets import CLEARLY, candidates, paired

_MEMBER = ["channel", "rank"]


def number(profile: Profile) -> Profile:
    """`profile` whose `collectives` have one `sequence` number for the parts of each: of (group, op), that which the
    source recorded, or where it only counts, that of the member with the most of them.

    A source that counts from the start of its recording gives other numbers to a rank whose recording begins later, or
    to one that began a collective before it: the window offset is searched for under which the ends agree. O(n log n)
    in the parts, and a search over 13 offsets for the members whose ends do not agree as they are.

    Example: ranks 0 and 1 end their all-reduces at 10, 25, 42 ms and at 25, 42 ms. Rank 1 has the numbers 1 and 2.
    """
    table = profile.collectives
    if table["rank"].n_unique() < 2:
        return profile
    channel = pl.struct(pl.col("group", "op").fill_null("")).rank("dense").cast(pl.Int64) - 1
    rows = table.select("rank", "sequence", "start_ns", "end_ns", channel=channel).with_row_index("row")
    rows = rows.filter(pl.col("start_ns").is_not_null() & pl.col("end_ns").is_not_null())
    rows = rows.filter(pl.col("rank").n_unique().over("channel") > 1)
    if rows.is_empty():
        return profile
    counted = pl.int_range(pl.len(), dtype=pl.Int64).over(_MEMBER, order_by=["start_ns", "end_ns"])
    known = pl.col("sequence").is_not_null().all().over("channel")
    rows = rows.with_columns(at=pl.when(known).then("sequence").otherwise(counted)).sort("channel", "at")
    offsets = _window_offsets(rows)
    numbered = rows.join(offsets, on=_MEMBER, maintain_order="left").select("row", at=pl.col("at") - pl.col("offset"))
    joined = table.with_row_index("row").join(numbered, on="row", how="left", maintain_order="left")
    return replace(
        profile, collectives=conform(joined.with_columns(sequence=pl.coalesce("at", "sequence")), COLLECTIVES)
    )


def _window_offsets(rows: pl.DataFrame) -> pl.DataFrame:
    """The window offset of each member against the fullest member of its channel: channel, rank, offset."""
    counts = rows.group_by(_MEMBER).agg(n=pl.len()).sort("channel", "n", "rank", descending=[False, True, False])
    fullest = counts.group_by("channel", maintain_order=True).first().select(_MEMBER)
    reference = rows.join(fullest, on=_MEMBER, how="semi").select("channel", "at", "end_ns")
    as_they_are = _scatter(reference, rows, 0)
    unclear = as_they_are.filter((pl.col("scatter") > COLLECTIVE_ENDS_NS) | pl.col("scatter").is_null())
    if unclear.is_empty():
        return counts.select(*_MEMBER, offset=pl.lit(0, pl.Int64))
    searched = rows.join(unclear, on=_MEMBER, how="semi")
    tried = pl.concat([_scatter(reference, searched, k) for k in candidates(0)])
    best = (
        tried.sort("scatter", pl.col("offset").abs(), "offset", nulls_last=True)
        .group_by(_MEMBER, maintain_order=True)
        .first()
        .join(as_they_are.select(*_MEMBER, rival="scatter"), on=_MEMBER, how="left")
    )
    clear = (pl.col("scatter") * CLEARLY < pl.col("rival")).fill_null(True) & (pl.col("scatter") < COLLECTIVE_ENDS_NS)
    chosen = counts.select(_MEMBER).join(best.filter(clear).select(*_MEMBER, "offset"), on=_MEMBER, how="left")
    return chosen.with_columns(pl.col("offset").fill_null(0))


def _scatter(reference: pl.DataFrame, rows: pl.DataFrame, offset: int) -> pl.DataFrame:
    """How much the ends of each member scatter against those of `reference`: the median change from one collective to
    the next, in ns.

    The clocks' difference does not matter, nor that one of them was set between two collectives.
    """
    change = (pl.col("end_ns_right") - pl.col("end_ns")).sort_by("at").diff().abs().quantile(0.5, "higher")
    return paired(reference, rows, offset, on=["channel"], by=_MEMBER, scatter=change)
