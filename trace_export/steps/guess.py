"""The lengths of transfers that nobody recorded, from the blocks that waited for them.

A block that starts when its data are here shows how long they were on their way. There are three ways to see it:

- its rank fell idle before they were made: the gap since then;
- the gaps since they were made are all alike, also where the rank was busy for a part of them;
- the gaps since both were there, data and rank, are all alike, or vary less: the receive was posted when the rank fell
  idle.

A part of that time is a late start: as much as the rank also takes when its data were there long before. A transfer
that cannot be seen took as long as others on its way, at most the gap. One that the first block of a step waits for
took as long as others of its link, because the rank may have paused before that block.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from trace_export.ordering import packed, repeated, rows_by, rows_of
from trace_export.steps.graph import Flags, Floats, Times
from trace_export.tolerances import FIFTH, POSTED_NS

ALIKE, MOSTLY = 0.1, 0.8
"""Gaps are alike that differ by this share from their median, in this share of the cases."""
SHARE = 0.4
"""Blocks that start late although their rank was free wait for their data if this share of those on a way do."""
ENOUGH = 3
"""At least this many starts say how late a rank is."""
TWICE, OFTEN = 2, 0.5
"""A rank stalls now and then if at least this many of its blocks on other ways start late, too, and fewer than this
share of all."""
MUCH = 1.25
"""A rank whose blocks all need a transfer starts late if it takes longer than others by the time of this many
transfers."""
WAY = ["src_rank", "dst_rank", "direction"]


def transfers(edges: pl.DataFrame, blocks: pl.DataFrame, hosts: pl.DataFrame) -> tuple[Times, Times, Flags]:
    """Start and length of each transfer without a message (0 where there is one), and whether it began when its
    receiver fell idle.

    `edges`: the columns of `WAY`, src, dst (rows of `blocks`) and timed, whether there is a message. `blocks`: rank,
    start, end, ended (when its rank was done with what was before, 0 at the begin of a recording), free (when it was
    within a step, null for the first block of one: its rank may have paused before), work (not where its input was not
    recorded). `hosts`: rank, host.
    """
    forward = (edges["direction"] == "F").to_numpy().astype(np.int64)
    number = packed(edges["src_rank"].to_numpy(), edges["dst_rank"].to_numpy(), forward)
    rows = rows_by(number)  # way by way: each is a run of rows, which is grouped in a third of the time
    edges = edges.select(*WAY[:2], "src", "dst", "timed")[rows]
    first = np.flatnonzero(np.diff(number[rows], prepend=-1))
    sizes = np.diff(first, append=len(rows))
    way = pl.Series("way", np.repeat(np.arange(1, len(first) + 1, dtype=np.int32), sizes)).set_sorted()
    links = edges.select(*WAY[:2])[first]
    table = _gaps(edges.with_columns(way), blocks)
    del edges, number
    late = _lateness(table, blocks, hosts)
    of_way = links.join(late, left_on="dst_rank", right_on="rank", how="left", maintain_order="left")["late"]
    table = _waits(table, repeated(of_way.fill_null(0), pl.Series(sizes)))
    ways = _ways(table).with_columns(links).with_columns(of_link=pl.col("usual").max().over(links.columns))
    table = table.with_columns(*ways.drop(links.columns)[way.to_numpy() - 1])
    table = table.with_columns(usual=pl.when("opening").then("of_link").otherwise("usual"))
    within = ~pl.col("opening")  # before the first block of a step its rank may have paused
    seen = within & (pl.col("seen") | (pl.col("alike") & pl.col("held") & _near("gap", "middle", POSTED_NS)))
    posted = within & pl.col("posted") & ~pl.col("timed")
    length = (
        pl.when("timed").then(0).when(posted).then("both").when(seen).then("gap")
        .otherwise(pl.min_horizontal("gap", "usual"))
    )  # fmt: skip
    begin = pl.when(posted).then(pl.max_horizontal("made", "idle")).otherwise("made")
    table = table.select("dst", "dst_rank", "way", "timed", "usual", begin=begin, length=length, posted=posted)
    took = _without_stalls(table, blocks, late)
    unsorted = np.empty(len(rows), np.int32)
    unsorted[rows] = np.arange(len(rows), dtype=np.int32)
    columns = table["begin"], took, table["posted"]
    begins, lengths, at_idle = (column.to_numpy()[unsorted] for column in columns)
    return begins, lengths, at_idle


def _gaps(edges: pl.DataFrame, blocks: pl.DataFrame) -> pl.DataFrame:
    """Of each edge dst_rank, dst, timed, way (a number from 1 on), start, made (when its data were), idle (when its
    rank was, whatever it waits for), free (when but these data nothing was missing), the gap since the data were made,
    opening (whether its block is the first of a step), and whether the gap is seen: the rank waited for these data.

    Example: rank 1 ends a block at 30 and starts the next at 45, whose data rank 0 made at 40: idle and free 30, gap 5,
    seen. Had rank 1 been busy until 42, the gap would be 5 as well, but not be seen.
    """
    made, taken = blocks["end"].gather(edges["src"]), blocks.select("start", "ended", "free")[edges["dst"]]
    dst, both_made = edges["dst"].to_numpy(), np.zeros(len(blocks), np.int64)
    np.add.at(both_made, dst, made.to_numpy())
    two = pl.Series(np.bincount(dst)[dst] == 2)  # of a block of two passes: it waits for the input that is here last
    other = pl.when(two).then(pl.Series(both_made[dst]) - pl.col("made"))
    return (
        edges.lazy().select("dst_rank", "dst", "timed", "way", made.alias("made"), *taken)
        .with_columns(
            gap=pl.col("start") - pl.col("made"), idle=pl.coalesce("free", pl.max_horizontal("made", "ended")),
            opening=pl.col("free").is_null(),
        )
        .with_columns(free=pl.max_horizontal("idle", other))
        .with_columns(seen=~pl.col("timed") & (pl.col("made") >= pl.col("free")) & (pl.col("gap") >= 0))
        .drop("ended").collect()
    )  # fmt: skip


def _waits(table: pl.DataFrame, late: pl.Series) -> pl.DataFrame:
    """`_gaps` less the lateness of the receiver, `late`: gap, and both, the gap since data and rank were there. held:
    whether the block may have waited for its data.

    A block that starts late although its rank was free may wait for its data; if the gaps since these were made are all
    alike, it does.
    """
    wait = pl.col("start") - pl.col("free") - pl.col("late")
    from_late = table.lazy().with_columns(late.alias("late"))
    from_late = from_late.with_columns(gap=(pl.col("gap") - pl.col("late")).clip(0), wait=wait)
    held = ~pl.col("timed") & (pl.col("seen") | ((pl.col("wait") > POSTED_NS) & (pl.col("gap") > 0)))
    both = pl.min_horizontal("gap", pl.col("wait").clip(0))
    return from_late.select(
        "dst", "dst_rank", "way", "timed", "made", "idle", "gap", "seen", "opening", held=held, both=both
    ).collect()


def _ways(table: pl.DataFrame) -> pl.DataFrame:
    """For each way, in their order: whether receives are posted when their rank falls idle, else whether the gaps since
    the data were made are alike; their middle, and the usual length of a transfer."""
    guessed = ~pl.col("timed")
    within = ~pl.col("opening")  # before the first block of a step its rank may have paused
    ways = table.select(
        "way", "held", gap=pl.when("held").then("gap"), both=pl.when(guessed).then("both"),
        exposed=pl.when("seen").then("gap"), within=pl.when(within & pl.col("seen")).then("gap"),
        most=pl.when(within & guessed).then("gap"),
    ).group_by("way").agg(
        pl.col("held").mean(), pl.col("exposed", "within").median(), pl.col("most").quantile(FIFTH, "lower"),
        middle=pl.col("gap").median(), usual=pl.col("both").median(),
    ).sort("way")  # fmt: skip
    opening = pl.when(pl.col("exposed") > pl.col("most")).then("most").otherwise("exposed")
    # Of a link that takes long every transfer does: none takes longer than another's gap.
    ways = ways.with_columns(exposed=pl.coalesce("within", opening)).drop("within", "most")
    beside = table.with_columns(ways.select("middle", "usual")[table["way"].to_numpy() - 1])
    off, off_both = (pl.col("gap") - pl.col("middle")).abs(), (pl.col("both") - pl.col("usual")).abs()
    near, near_both = _near("gap", "middle", POSTED_NS), _near("both", "usual", POSTED_NS / 2)
    spread = beside.select(
        "way", near=pl.when("held").then(near), off=pl.when("held").then(off),
        near_both=pl.when(guessed).then(near_both), off_both=pl.when(guessed).then(off_both),
    ).group_by("way").agg(pl.col("near", "near_both").mean(), pl.col("off", "off_both").median())  # fmt: skip
    ways = ways.with_columns(spread.sort("way").drop("way"))
    often = pl.col("held") >= SHARE  # else launches that were late by chance look so
    alike = (often & (pl.col("near") >= MOSTLY)).fill_null(False)
    queued = ~alike | (pl.col("middle") > pl.col("usual") + POSTED_NS)  # data waited for a rank always as busy
    steady = (pl.col("near_both") >= MOSTLY) | (pl.col("off_both") < pl.col("off"))
    posted = (queued & (pl.col("usual") > POSTED_NS) & steady).fill_null(False)
    posted = posted | _posted_as_others(ways, posted, alike)
    usual = pl.when(posted).then("usual").when(alike).then("middle").otherwise("exposed").fill_null(0)
    return ways.select("middle", posted=posted, alike=alike & ~posted, usual=usual)


def _near(value: str, middle: str, least: float) -> pl.Expr:
    """Whether a value differs from the middle by the share `ALIKE` of it at most, or by `least`."""
    return (pl.col(value) - pl.col(middle)).abs() <= pl.max_horizontal(ALIKE * pl.col(middle), pl.lit(least))


def _posted_as_others(ways: pl.DataFrame, posted: pl.Expr, alike: pl.Expr) -> pl.Series:
    """The ways on which data always come after their receiver fell idle, so that nothing tells when the receive was
    posted. They are taken to be as most others, because all ranks run one program."""
    steady = (pl.col("near_both") >= MOSTLY).fill_null(False)
    waits = ways.select(
        posted=posted, early=alike & ~posted & ~steady, open=alike & steady & (pl.col("usual") > POSTED_NS)
    )
    return waits["open"] & (waits["posted"].sum() > waits["early"].sum())


def _without_stalls(table: pl.DataFrame, blocks: pl.DataFrame, late: pl.DataFrame) -> pl.Series:
    """The lengths of the transfers; those whose receiver stalled are as long as others on their way. A receiver stalls
    if its blocks start late now and then, whatever they wait for; a link that stalls delays the blocks on its way
    alone."""
    fed = np.zeros(len(blocks), np.bool_)
    fed[table["dst"].filter(table["timed"]).to_numpy()] = True
    late = late.sort("rank")
    usual = np.append(late["late"].to_numpy(), 0)[rows_of(late["rank"].to_numpy(), blocks["rank"].to_numpy())]
    ready = pl.max_horizontal("free", "here") + pl.Series(usual)
    here = _needed(table, (table["begin"] + table["usual"]).to_numpy(), len(blocks))
    much = MUCH * pl.lit(float(table.select(pl.col("usual").filter(~pl.col("timed")).median()).item() or 0)) + POSTED_NS
    starts = blocks.lazy().with_columns(here).with_columns(stalls=pl.col("start") - ready > much)
    starts = starts.filter(pl.col("work") & ~pl.Series(fed)).drop_nulls("free")
    of_way = starts.group_by(_INPUT).agg(pl.col("rank").first(), pl.col("stalls").sum(), pl.len()).collect()
    each = of_way.group_by("rank").agg(
        elsewhere=pl.col("stalls").sum() - pl.col("stalls").max(), share=pl.col("stalls").sum() / pl.col("len").sum()
    )
    stalling = each.filter(pl.col("elsewhere") >= TWICE, pl.col("share") < OFTEN)["rank"]
    stalled = pl.col("dst_rank").is_in(stalling.implode()) & (pl.col("length") > pl.col("usual") + much)
    length = pl.when(stalled & ~pl.col("timed")).then("usual").otherwise("length")
    return table.select(length.round().cast(pl.Int64)).to_series()


_INPUT = pl.when(pl.col("way") > 0).then("way").otherwise(-1 - pl.col("rank")).alias("input")
"""A number for the rank of a block and the way of its input: a way is into one rank."""


def _needed(table: pl.DataFrame, here: Floats, count: int) -> pl.DataFrame:
    """way, here: of each of `count` blocks when the last of its inputs is there, and on which way it came; way 0 and
    minus infinity without inputs. `here`: of the transfers in `table`."""
    way, dst = table["way"].to_numpy(), table["dst"].to_numpy()
    last, at = np.zeros(count, way.dtype), np.full(count, -np.inf)
    np.maximum.at(at, dst, here)
    of_last = here == at[dst]
    last[dst[of_last]] = way[of_last]
    return pl.DataFrame({"way": last, "here": at})


def _lateness(table: pl.DataFrame, blocks: pl.DataFrame, hosts: pl.DataFrame) -> pl.DataFrame:
    """rank, late: how long a rank usually takes to start a block whose data were there long before. Blocks that need
    nothing from another rank show it best. Other blocks show it only if those of all ways take much longer than a
    transfer, and longer than on the ranks that take least: the receive may have been posted late, or one link may be
    slow. A rank that always waits for data is as late as the other ranks of its host, if these are late and it never
    starts sooner."""
    of_ways = table.select("way", gap=pl.when("seen").then("gap")).group_by("way").agg(pl.col("gap").median())
    gaps = of_ways.sort("way")["gap"].fill_null(0).to_numpy()
    here = _needed(table, table["made"].to_numpy() + gaps[table["way"].to_numpy() - 1], len(blocks))
    waits = blocks.lazy().with_columns(here).filter(
        pl.col("work"), (pl.col("way") == 0) | (pl.col("here") <= pl.col("free"))
    ).select("rank", _INPUT, wait=(pl.col("start") - pl.col("free")).clip(0)).drop_nulls("wait")  # fmt: skip
    of_way = waits.group_by("input").agg(
        pl.col("rank").first(), pl.len(), alone=pl.col("input").first() < 0, late=pl.col("wait").median()
    ).collect()  # fmt: skip
    usual = of_way.filter(pl.col("len") >= ENOUGH).group_by("rank", "alone").agg(pl.col("late").min())
    by_itself, others = (usual.filter(pl.col("alone") == sort).select("rank", "late") for sort in (True, False))
    least, transfer = lowest(by_itself["late"]), lowest(pl.Series(gaps[gaps > 0]))
    soonest = _soonest(table, blocks)
    others = others.join(by_itself, on="rank", how="anti").join(soonest, on="rank", how="left")
    others = others.select("rank", late=pl.min_horizontal("late", "soonest"))
    posted = lowest(others["late"]) - least  # what a receive takes that is posted when its rank falls idle
    posted = posted if 0 < posted <= MUCH * transfer else 0.0
    much = pl.when(pl.col("late") > least + posted + MUCH * transfer).then(pl.col("late") - posted).otherwise(least)
    seen = pl.concat([by_itself, others.with_columns(late=much)])
    of_host = seen.join(hosts, on="rank").group_by("host").agg(pl.col("late").min()).filter(pl.col("late") > least)
    rest = hosts.join(seen, on="rank", how="anti").join(soonest, on="rank").join(of_host, on="host")
    return pl.concat([seen, rest.filter(pl.col("soonest") >= pl.col("late")).select("rank", "late")])


def lowest(values: pl.Series) -> float:
    """The value at the lowest fifth: of ranks, half may be late; 0 where there is none."""
    return float(values.quantile(FIFTH, "lower") or 0)


def _soonest(table: pl.DataFrame, blocks: pl.DataFrame) -> pl.DataFrame:
    """rank, soonest: how long a rank takes to start a block once its data are made and it is free, on the way on which
    it takes least: it is late by no more than that, whatever one slow link does."""
    here = _needed(table, table["made"].to_numpy().astype(np.float64), len(blocks))
    starts = blocks.lazy().with_columns(here).filter(pl.col("work"), pl.col("way") > 0).drop_nulls("free")
    took = (pl.col("start") - pl.max_horizontal("free", "here")).clip(0)
    of_way = starts.select("rank", "way", took=took).group_by("way").agg(
        pl.col("rank").first(), pl.len(), soonest=pl.col("took").median()
    ).filter(pl.col("len") >= ENOUGH).collect()  # fmt: skip
    return of_way.group_by("rank").agg(pl.col("soonest").min())
