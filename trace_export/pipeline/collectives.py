"""The parts of collectives that belong together, where the recordings of the members begin at different ones."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trace_export.model import COLLECTIVES, Profile, conform
from trace_export.pipeline.window_offsets import CLEARLY, candidates, fit_under
from trace_export.tolerances import COLLECTIVE_ENDS_NS

_MEMBER = ["channel", "rank"]


def number(profile: Profile) -> Profile:
    """`profile` in which all parts of a collective have one `sequence` number within (group, op): the recorded one, or,
    if the source only counts, that of the member with the most parts.

    A source that counts from the start of its recording gives other numbers to a rank whose recording begins later, or
    that began a collective before it: the search finds the window offset under which the ends agree. O(n log n) in the
    parts, and a search over 13 offsets for the members whose ends do not agree as they are.

    Example: ranks 0 and 1 end their all-reduces at 10, 25, 42 ms and at 25, 42 ms. Rank 1 has the numbers 1 and 2.
    """
    table = profile.collectives
    if table["rank"].n_unique() < 2:
        return profile
    channel = pl.struct(pl.col("group", "op").fill_null("")).rank("dense").cast(pl.Int64) - 1
    rows = table.select("rank", "sequence", "start_ns", "end_ns", channel=channel).with_row_index("row")
    rows = rows.filter(pl.col("start_ns").is_not_null() & pl.col("end_ns").is_not_null())
    rows = rows.filter(pl.col("rank").n_unique().over("channel") > 1)
    if rows.is_empty() or _agree(rows):
        return profile
    hosts = profile.ranks.select("rank", host=pl.col("host").fill_null("").rank("dense")).unique("rank", keep="first")
    rows = rows.join(hosts, on="rank", how="left", maintain_order="left")
    position = pl.int_range(pl.len(), dtype=pl.Int64).over(_MEMBER, order_by=["start_ns", "end_ns"])
    all_numbered = pl.col("sequence").is_not_null().all().over("channel")
    rows = rows.with_columns(at=pl.when(all_numbered).then("sequence").otherwise(position)).sort("channel", "at")
    offsets = _window_offsets(rows)
    numbered = rows.join(offsets, on=_MEMBER, maintain_order="left").select("row", at=pl.col("at") - pl.col("offset"))
    joined = table.with_row_index("row").join(numbered, on="row", how="left", maintain_order="left")
    return replace(
        profile, collectives=conform(joined.with_columns(sequence=pl.coalesce("at", "sequence")), COLLECTIVES)
    )


def _agree(rows: pl.DataFrame) -> bool:
    """Whether each number has parts of all members, and these mostly end together, as on one clock."""
    members = rows.group_by("channel").agg(members=pl.col("rank").n_unique())
    ends = rows.group_by("channel", "sequence").agg(
        parts=pl.len(), spread=pl.col("end_ns").max() - pl.col("end_ns").min()
    )
    agrees = (pl.col("parts") == pl.col("members")) & (pl.col("spread") <= COLLECTIVE_ENDS_NS)
    all_numbered = not rows["sequence"].has_nulls()
    return all_numbered and bool(ends.join(members, on="channel").select(agrees.all()).item())


def _window_offsets(rows: pl.DataFrame) -> pl.DataFrame:
    """The window offset of each member against the fullest member of its channel: channel, rank, offset.

    On one host the ends themselves are compared. On two hosts, whose clocks may differ, the changes from one end to the
    next are compared. Steps of one length then fit under any offset: recordings with as many collectives are not moved,
    for others that offset counts under which the clocks differ least.
    """
    counts = rows.group_by(_MEMBER).agg(n=pl.len()).sort("channel", "n", "rank", descending=[False, True, False])
    fullest = counts.group_by("channel", maintain_order=True).first()
    reference = rows.join(fullest, on=_MEMBER, how="semi").select("channel", "at", "end_ns", "host")
    sizes = counts.join(fullest.select("channel", most="n"), on="channel")
    fits = pl.col("misfit") <= COLLECTIVE_ENDS_NS
    as_they_are = _misfit(reference, rows, 0).join(sizes, on=_MEMBER)
    unclear = as_they_are.filter(~fits.fill_null(False) | ((pl.col("most") > pl.col("n")) & ~pl.col("one_host")))
    if unclear.is_empty():
        return counts.select(*_MEMBER, offset=pl.lit(0, pl.Int64))
    searched = rows.join(unclear, on=_MEMBER, how="semi")
    tried = pl.concat([_misfit(reference, searched, k) for k in candidates(0)]).join(sizes, on=_MEMBER)
    near = pl.col("misfit") <= (CLEARLY * pl.col("misfit").min().over(_MEMBER)).clip(COLLECTIVE_ENDS_NS / CLEARLY**2)
    rank = pl.when(pl.col("most") > pl.col("n")).then("apart").otherwise(0), pl.col("offset").abs()
    chosen = tried.filter(near).sort(*rank).group_by(_MEMBER, maintain_order=True).first().filter(fits)
    offsets = counts.select(_MEMBER).join(chosen.select(*_MEMBER, "offset"), on=_MEMBER, how="left")
    return offsets.with_columns(pl.col("offset").fill_null(0))


def _misfit(reference: pl.DataFrame, rows: pl.DataFrame, offset: int) -> pl.DataFrame:
    """How badly the ends of each member fit those of `reference`: channel, rank, one_host, apart, misfit (ns)
    and offset. `apart`: the median difference; `misfit`: that on one host, on two the median change of the difference
    from one collective to the next, which does not depend on the clocks nor on one that was set between two."""
    between = pl.col("end_ns_right") - pl.col("end_ns")
    fits = fit_under(
        reference, rows, offset, by=_MEMBER,
        one_host=(pl.col("host") == pl.col("host_right")).first(),
        apart=between.abs().quantile(0.5, "higher"),
        change=between.sort_by("at").diff().abs().quantile(0.5, "higher"),
    )  # fmt: skip
    return fits.with_columns(misfit=pl.when("one_host").then("apart").otherwise("change")).drop("n", "change")
