"""Pairs the two sides of each point-to-point transfer: `pair(profile) -> Profile` with the table `messages` filled.

Sends and receives between the same two ranks of a group are first in, first out. Where the ordinals of both sides make
the ends agree they decide (a group of two ranks may number its operations alike). Elsewhere the i-th send belongs to
the (i + k)-th receive, with one k for each way: a profiler's window may open later on one rank than on the other. The k
is found by trying: under the right one the ends agree, and a message and its answer together take no less than no time.
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trace_export.model import MESSAGES, Note, Profile, conform
from trace_export.tolerances import MESSAGE_ENDS_NS, ROUND_TRIP_NS
from trace_export.window_offsets import CLEARLY, candidates, paired

CONTRADICTION = 50
"""Cost of a negative round trip, relative to that of scatter."""

LANE = ["group", "src_rank", "dst_rank", "way"]


def pair(profile: Profile) -> Profile:
    """`profile` with `messages` from its `p2p`, sorted by source, target and time; notes on what stayed unpaired.

    The cost is that of sorting the operations, and a search over at most 2 · `window_offsets.MOST` window offsets for
    those lanes (group, source, target) whose ends do not agree as they are.
    """
    sends, receives = _sides(profile.p2p)
    lanes = _lanes(sends, receives)
    if lanes.is_empty():
        return profile.with_notes(_unpaired(len(sends), len(receives), profile.p2p["peer"].null_count()))
    by_order = _placed(sends, lanes, "src_rank"), _placed(receives, lanes, "dst_rank")
    by_number = tuple(side.with_columns(at="ordinal") for side in by_order)
    numbered = _all_met(_agreeing(*_relative(*by_number), lanes.filter("numbered")), lanes).select("lane")
    counted = lanes.join(numbered, on="lane", how="anti")
    offsets = pl.concat([
        numbered.with_columns(offset=pl.lit(0, pl.Int64)), _search(*_relative(*by_order), counted)
    ])  # fmt: skip
    known = [pl.concat([n.join(numbered, on="lane"), o.join(counted.select("lane"), on="lane")])
             for n, o in zip(by_number, by_order, strict=True)]  # fmt: skip
    messages = _joined(known[0], known[1], offsets)
    found = conform(messages.sort("src_rank", "dst_rank", "send_start_ns", "recv_start_ns"), MESSAGES)
    notes = _notes(lanes, offsets)
    notes += _unpaired(len(sends) - len(found), len(receives) - len(found), profile.p2p["peer"].null_count())
    return replace(profile, messages=found).with_notes(notes)


def _sides(p2p: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The sending and the receiving sides: an operation that does both is one of each.

    Where the source does not know the peer, the other rank of a group of two is it. A group has more members than those
    that were read when a transfer's direction leads to none of them.
    """
    rows = p2p.filter(pl.col("start_ns").is_not_null() & pl.col("end_ns").is_not_null())
    outside = pl.col("peer").is_null() & pl.col("direction").is_not_null()
    two = (pl.col("rank").n_unique().over("group") == 2) & ~outside.any().over("group")
    two = pl.col("group").is_not_null() & two
    other = pl.col("rank").min().over("group") + pl.col("rank").max().over("group") - pl.col("rank")
    rows = rows.with_columns(
        peer=pl.coalesce("peer", pl.when(two).then(other)), group=pl.col("group").fill_null("")
    ).filter(pl.col("peer").is_not_null() & (pl.col("peer") != pl.col("rank")))
    sends = rows.filter(pl.col("role") != "recv").rename({"rank": "src_rank", "peer": "dst_rank"})
    receives = rows.filter(pl.col("role") != "send").rename({"rank": "dst_rank", "peer": "src_rank"})
    return sends.drop("role"), receives.drop("role")


def _lanes(sends: pl.DataFrame, receives: pl.DataFrame) -> pl.DataFrame:
    """A row per (group, source, target, way) that has both sides: how many, and whether the ordinals are unique.

    `way` is the direction where every operation between the two ranks tells it, else "".
    """
    key = LANE[:3]
    told = [side.group_by(key).agg(told=pl.col("direction").is_not_null().all()) for side in (sends, receives)]
    both = told[0].join(told[1], on=key, suffix="_recv").select(*key, told=pl.col("told") & pl.col("told_recv"))
    sides = []
    for side in (sends, receives):
        unique = pl.col("ordinal").is_not_null().all() & (pl.col("ordinal").n_unique() == pl.len())
        sides.append(_on_their_way(side, both).group_by(*LANE, "told").agg(n=pl.len(), numbered=unique))
    return (
        sides[0]
        .join(sides[1], on=[*LANE, "told"], suffix="_recv")
        .select(*LANE, "told", "n", "n_recv", numbered=pl.col("numbered") & pl.col("numbered_recv"))
        .sort(LANE)
        .with_row_index("lane")
    )


def _on_their_way(side: pl.DataFrame, told: pl.DataFrame) -> pl.DataFrame:
    way = pl.when("told").then("direction").otherwise(pl.lit(""))
    return side.join(told, on=LANE[:3]).with_columns(way=way)


def _placed(side: pl.DataFrame, lanes: pl.DataFrame, rank: str) -> pl.DataFrame:
    """One side's operations with their lane and their place `at` in it, counted by the rank's own clock."""
    rows = _on_their_way(side, lanes.select(*LANE[:3], "told").unique()).join(lanes.select("lane", *LANE), on=LANE)
    place = pl.int_range(pl.len(), dtype=pl.Int64).over("lane", order_by=["start_ns", "end_ns", "ordinal"])
    columns = ["lane", rank, "direction", "microbatch", "chunk", "start_ns", "end_ns", "bytes", "ordinal"]
    return rows.select(*columns, at=place)


def _relative(sends: pl.DataFrame, receives: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Lane, place, micro-batch and end of each side, the end counted from the rank's first stamp: so the clocks'
    difference cancels between a lane and its answer, exactly."""
    stamps = pl.concat([
        sends.select(rank="src_rank", first="start_ns"), receives.select(rank="dst_rank", first="start_ns")
    ])  # fmt: skip
    base = stamps.group_by("rank").agg(pl.col("first").min())
    sides = []
    for side, rank in ((sends, "src_rank"), (receives, "dst_rank")):
        based = side.join(base.rename({"rank": rank}), on=rank)
        sides.append(based.select("lane", "at", "microbatch", "chunk", end=pl.col("end_ns") - pl.col("first")))
    return sides[0], sides[1]


def _search(sent: pl.DataFrame, received: pl.DataFrame, lanes: pl.DataFrame) -> pl.DataFrame:
    """lane, offset (null where none can be believed) of every one of `lanes`."""
    settled = _agreeing(sent, received, lanes).select("lane", offset=pl.lit(0, pl.Int64))
    left = lanes.join(settled, on="lane", how="anti")
    if left.is_empty():
        return settled
    answers = _answers(lanes).join(left.select("lane"), on="lane")
    needed = pl.concat([left.select("lane"), answers.select(lane="answer").drop_nulls()]).unique()
    asked = lanes.join(needed, on="lane")
    sent, received = sent.join(needed, on="lane"), received.join(needed, on="lane")
    gap = left.select((pl.col("n").cast(pl.Int64) - pl.col("n_recv").cast(pl.Int64)).abs().max()).item()
    tried = pl.concat([_tried(sent, received, asked, k) for k in candidates(gap)]).filter("fits")
    fixed = settled.rename({"offset": "fixed"})
    tried = tried.join(fixed, on="lane", how="left").filter(pl.col("offset") == pl.coalesce("fixed", "offset"))
    chosen = left.select("lane").join(_best(tried, answers), on="lane", how="left")
    return pl.concat([settled, chosen])


def _agreeing(sent: pl.DataFrame, received: pl.DataFrame, lanes: pl.DataFrame) -> pl.DataFrame:
    """Those of `lanes` whose ends agree so well as they are placed that no other placing could."""
    tried = _tried(sent, received, lanes, 0)
    both = _answers(lanes).join(tried, on="lane").join(tried.select(answer="lane", back="low"), on="answer", how="left")
    close = (pl.col("low") + pl.col("back")).fill_null(0)
    return both.filter("fits", pl.col("scatter") <= MESSAGE_ENDS_NS, pl.col("n") >= 3, close >= -ROUND_TRIP_NS)


def _all_met(agreeing: pl.DataFrame, lanes: pl.DataFrame) -> pl.DataFrame:
    """Those of `agreeing` that left nothing over. In a group of more than two, each rank counts all its operations, so
    some numbers of other transfers meet by chance; in a group of two what is left over has no other side."""
    most = lanes.select(
        "lane", most=pl.min_horizontal("n", "n_recv"), two=pl.col("src_rank").n_unique().over("group") <= 2
    )
    return agreeing.join(most, on="lane").filter(pl.col("two") | (pl.col("n") >= pl.col("most")))


def _answers(lanes: pl.DataFrame) -> pl.DataFrame:
    """lane, answer: the lane that leads back, in the same group if there is one, else the fullest."""
    back = lanes.select(src_rank="dst_rank", dst_rank="src_rank", other="group", answer="lane", size="n")
    return (
        lanes.join(back, on=["src_rank", "dst_rank"], how="left")
        .with_columns(same=pl.col("other") == pl.col("group"))
        .sort("lane", "same", "size", "answer", descending=[False, True, True, False], nulls_last=True)
        .group_by("lane", maintain_order=True)
        .agg(pl.col("answer").first())
    )


def _tried(sent: pl.DataFrame, received: pl.DataFrame, lanes: pl.DataFrame, offset: int) -> pl.DataFrame:
    """How well each lane fits under a window offset: lane, n, scatter, spread, low, fits, offset.

    Of end - end in ns: scatter is that of the middle half, spread that of the earlier half (late ones tell nothing),
    low the earliest. Fits: at least half of the shorter side is paired, and known micro-batches agree.
    """
    delay = pl.col("end_right") - pl.col("end")
    same = (pl.col("microbatch") == pl.col("microbatch_right")) & pl.col("chunk").eq_missing(pl.col("chunk_right"))
    enough = pl.col("n") >= pl.col("least")
    tried = paired(
        sent, received, offset, on=["lane"], by=["lane"],
        scatter=delay.quantile(0.75) - delay.quantile(0.25),
        spread=delay.quantile(0.5) - delay.quantile(0.05),
        low=delay.quantile(0.05),
        same=same.mean().fill_null(1.0),
    )  # fmt: skip
    least = lanes.select("lane", least=pl.min_horizontal("n", "n_recv") / 2)
    return tried.join(least, on="lane").select(
        "lane", "n", "scatter", "spread", "low", "offset", fits=enough & (pl.col("same") > 0.9)
    )


def _best(tried: pl.DataFrame, answer: pl.DataFrame) -> pl.DataFrame:
    """The offset of each lane that with some offset of its answer costs least.

    Null where it is not 0 and another does nearly as well.
    """
    here = tried.select("lane", "offset", "spread", "low")
    there = tried.select(answer="lane", back_offset="offset", back_spread="spread", back="low")
    both = answer.join(here, on="lane").join(there, on="answer", how="left")
    close = pl.col("low") + pl.col("back")
    contradiction = CONTRADICTION * (-close - ROUND_TRIP_NS).clip(lower_bound=0)
    cost = (
        pl.col("spread") + pl.col("back_spread").fill_null(0) + (close.clip(lower_bound=0) + contradiction).fill_null(0)
    )
    ranked = (
        both.with_columns(cost=cost)
        .group_by("lane", "offset")
        .agg(pl.col("cost").min())
        .sort("lane", "cost", pl.col("offset").abs(), "offset")
        .group_by("lane", maintain_order=True)
        .agg(
            pl.col("offset", "cost").first(),
            second=pl.col("cost").get(1, null_on_oob=True),
        )
    )
    clear = pl.col("second").is_null() | (pl.col("second") >= CLEARLY * pl.col("cost"))
    return ranked.select("lane", offset=pl.when(clear | (pl.col("offset") == 0)).then("offset"))


def _joined(sends: pl.DataFrame, receives: pl.DataFrame, offsets: pl.DataFrame) -> pl.DataFrame:
    moved = receives.join(offsets.drop_nulls(), on="lane").with_columns(at=pl.col("at") - pl.col("offset"))
    both = sends.join(moved, on=["lane", "at"], suffix="_recv")
    known = [pl.coalesce(c, f"{c}_recv").alias(c) for c in ("direction", "microbatch", "chunk", "bytes")]
    return both.select(
        "src_rank", "dst_rank", *known, send_start_ns="start_ns", send_end_ns="end_ns",
        recv_start_ns="start_ns_recv", recv_end_ns="end_ns_recv",
    )  # fmt: skip


def _notes(lanes: pl.DataFrame, offsets: pl.DataFrame) -> list[Note]:
    named = lanes.join(offsets, on="lane").sort("lane")
    notes = []
    moved = named.filter(pl.col("offset") != 0)
    if len(moved):
        first = moved.select("src_rank", "dst_rank", "offset").head(8)
        shown = ", ".join(f"{a}→{b} {k:+d}" for a, b, k in first.iter_rows())
        text = f"messages: the recorded windows differ, receives were matched with a window offset ({shown})"
        notes.append(Note("messages-shifted", "note", text, count=len(moved)))
    unsure = named.filter(pl.col("offset").is_null())
    if len(unsure):
        shown = ", ".join(f"{a}→{b}" for a, b in unsure.select("src_rank", "dst_rank").head(8).iter_rows())
        text = f"messages: which send belongs to which receive cannot be told, left out ({shown})"
        notes.append(Note("messages-ambiguous", "warning", text, count=len(unsure)))
    return notes


def _unpaired(sends: int, receives: int, without_peer: int) -> list[Note]:
    notes = []
    if sends or receives:
        text = f"messages: {sends} sends and {receives} receives have no other side in the data"
        notes.append(Note("messages-unpaired", "note", text))
    if without_peer:
        text = f"messages: of {without_peer} sends and receives the data do not say who is on the other side"
        notes.append(Note("messages-without-peer", "note", text))
    return notes
