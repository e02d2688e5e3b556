"""How long transfers took that nobody recorded, from the blocks that waited for them.

A block that starts when its data are here shows how long they were on their way. There are three ways to see it:

- its rank fell idle before they were made: the gap since then;
- the gaps since they were made are all alike, also where the rank was busy for a part of them;
- the gaps since both were there, data and rank, are all alike, or vary less: the receive was posted when the rank fell
  idle.

Of that time the rank itself takes what it also takes where its data were there long before: it starts late. Where a
transfer cannot be seen, it took as long as others on its way, at most the gap.
"""

from __future__ import annotations

import polars as pl

from trace_export.ordering import group_number
from trace_export.steps.graph import Flags, Times
from trace_export.tolerances import POSTED_NS

ALIKE, MOSTLY = 0.1, 0.8
"""Gaps are alike that differ by this share from their median, in this share of the cases."""
SHARE = 0.4
"""Blocks that start late although their rank was free wait for their data, where this many on a way do."""
ENOUGH = 3
"""Starts that say how late a rank is."""
TWICE, OFTEN = 2, 0.5
"""A rank stalls now and then where so many of its blocks start late beside those on one way, and fewer than this share
of all."""
MUCH = 1.25
"""A rank whose blocks all need a transfer starts late where it takes this many transfers' time longer than others."""
WAY = ["src_rank", "dst_rank", "direction"]


def transfers(edges: pl.DataFrame, blocks: pl.DataFrame) -> tuple[Times, Times, Flags]:
    """Start and length of each transfer without a message (0 where there is one), and whether it began when its
    receiver fell idle.

    `edges`: the columns of `WAY`, src, dst (rows of `blocks`) and known, whether there is a message. `blocks`: rank,
    start, end, free (when the block before on its rank had ended, null for the first of a step), work.
    """
    made, taken = blocks["end"].gather(edges["src"]), blocks.select("start", "free")[edges["dst"]]
    way = group_number(edges, *WAY).alias("way")
    table = (
        edges.select("dst_rank", "dst", "known", way)
        .with_columns(made, taken["start"], taken["free"])
        .rename({"end": "made"})
    )
    two = (pl.len() == 2).over("dst")  # of a block of two passes: it waits for the input that is here last
    other = pl.when(two).then(pl.col("made").sum().over("dst") - pl.col("made"))
    table = table.with_columns(gap=pl.col("start") - pl.col("made"), idle=pl.col("free").fill_null(pl.col("made")))
    table = table.with_columns(free=pl.max_horizontal("idle", other))
    table = table.with_columns(seen=~pl.col("known") & (pl.col("made") >= pl.col("free")) & (pl.col("gap") >= 0))
    late = _lateness(table, blocks)
    table = table.join(late, left_on="dst_rank", right_on="rank", how="left", maintain_order="left")
    late_ns = pl.col("late").fill_null(0)
    table = table.with_columns(gap=(pl.col("gap") - late_ns).clip(0), wait=pl.col("start") - pl.col("free") - late_ns)
    # A block that starts late although its rank was free may wait for its data: where the gaps since these were made
    # are all alike, it does.
    held = ~pl.col("known") & (pl.col("seen") | ((pl.col("wait") > POSTED_NS) & (pl.col("gap") > 0)))
    middle = pl.col("gap").filter(held).median().over("way")
    near = (pl.col("gap") - middle).abs() <= pl.max_horizontal(ALIKE * middle, pl.lit(POSTED_NS))
    often = held.mean().over("way") >= SHARE  # else launches that were late by chance look so
    alike = (often & (near.filter(held).mean().over("way") >= MOSTLY)).fill_null(False)
    both = pl.min_horizontal("gap", pl.col("wait").clip(0))
    usual_both = both.filter(~pl.col("known")).median().over("way")
    near_both = (both - usual_both).abs() <= pl.max_horizontal(ALIKE * usual_both, pl.lit(POSTED_NS / 2))
    queued = ~alike | (middle > usual_both + POSTED_NS)  # the data waited for a rank that was always as busy
    varies_both = (both - usual_both).abs().filter(~pl.col("known")).median().over("way")
    varies = (pl.col("gap") - middle).abs().filter(held).median().over("way")
    steady = (near_both.filter(~pl.col("known")).mean().over("way") >= MOSTLY) | (varies_both < varies)
    posted = queued & (usual_both > POSTED_NS) & steady
    posted = (posted & ~pl.col("known")).fill_null(False)
    exposed = pl.col("gap").filter("seen").median().over("way")
    alike = alike & ~posted
    usual = pl.when(alike).then(middle).otherwise(exposed).fill_null(0)
    seen = (pl.col("seen") | (alike & held & near)).fill_null(False)
    length = (
        pl.when("known").then(0).when(posted).then(both).when(seen).then("gap")
        .otherwise(pl.min_horizontal("gap", usual))
    )  # fmt: skip
    begin = pl.when(posted).then(pl.max_horizontal("made", "idle")).otherwise("made")
    columns = {"begin": begin, "posted": posted, "length": length}
    columns["usual"] = pl.when(posted).then(usual_both).otherwise(usual)
    lazily = table.lazy().select("dst", "dst_rank", "way", "known", "made", **columns)  # each median of a way once
    found = _without_stalls(lazily.collect(), blocks.join(late, on="rank", how="left", maintain_order="left"))
    return found["begin"].to_numpy(), found["length"].to_numpy(), found["posted"].to_numpy()


def _without_stalls(table: pl.DataFrame, blocks: pl.DataFrame) -> pl.DataFrame:
    """The transfers, as long as others on their way where it is their receiver that stalled: whose blocks start late
    now and then, whatever they wait for. What a link delays now and then is late on that way alone."""
    needed = table.with_columns(here=pl.col("begin") + pl.col("usual")).group_by("dst").agg(
        pl.col("here").max(), pl.col("way").sort_by("here").last(), known=pl.col("known").any()
    )  # fmt: skip
    ready = pl.max_horizontal("free", "here") + pl.col("late").fill_null(0)
    starts = blocks.with_row_index("dst").join(needed.cast({"dst": pl.UInt32}), on="dst", how="left")
    starts = starts.filter(pl.col("work"), ~pl.col("known").fill_null(False)).drop_nulls("free")
    much = MUCH * pl.lit(float(table.select(pl.col("usual").filter(~pl.col("known")).median()).item() or 0)) + POSTED_NS
    of_way = starts.with_columns(stalls=pl.col("start") - ready > much).group_by("rank", "way").agg(
        pl.col("stalls").sum(), pl.len()
    )  # fmt: skip
    each = of_way.group_by("rank").agg(
        elsewhere=pl.col("stalls").sum() - pl.col("stalls").max(), share=pl.col("stalls").sum() / pl.col("len").sum()
    )
    stalling = each.filter(pl.col("elsewhere") >= TWICE, pl.col("share") < OFTEN)["rank"]
    stalled = pl.col("dst_rank").is_in(stalling.implode()) & (pl.col("length") > pl.col("usual") + much)
    length = pl.when(stalled & ~pl.col("known")).then("usual").otherwise("length")
    return table.with_columns(length=length.round().cast(pl.Int64))


def _lateness(table: pl.DataFrame, blocks: pl.DataFrame) -> pl.DataFrame:
    """rank, late: how long a rank usually takes to start a block whose data were there long before. Best seen in blocks
    that need nothing from another rank; in others only where those of all ways take much longer than a transfer, for
    the receive may have been posted late, and one link may be slow."""
    middle = pl.col("gap").filter("seen").median()
    needed = table.select("dst", "way", here=pl.col("made") + middle.over("way").fill_null(0)).group_by("dst").agg(
        pl.col("here").max(), pl.col("way").sort_by("here").last()
    )  # fmt: skip
    starts = blocks.with_row_index("dst").join(needed.cast({"dst": pl.UInt32}), on="dst", how="left")
    alone = pl.col("here").is_null()
    waits = starts.filter(pl.col("work"), alone | (pl.col("here") <= pl.col("free"))).select(
        "rank", "way", alone=alone, wait=(pl.col("start") - pl.col("free")).clip(0)
    ).drop_nulls("wait")  # fmt: skip
    of_way = waits.group_by("rank", "alone", "way").agg(pl.len(), late=pl.col("wait").median())
    usual = of_way.filter(pl.col("len") >= ENOUGH).group_by("rank", "alone").agg(pl.col("late").min())
    by_itself, others = (usual.filter(pl.col("alone") == sort).select("rank", "late") for sort in (True, False))
    ordinary = by_itself["late"].median()
    transfer = float(table.select(middle).item() or 0)
    others = others.join(by_itself, on="rank", how="anti")
    known = ordinary if isinstance(ordinary, float) else 0.0
    much = pl.when(pl.col("late") > known + MUCH * transfer).then("late").otherwise(known)
    return pl.concat([by_itself, others.with_columns(late=much)])
