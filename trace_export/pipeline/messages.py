"""Messages: the two sides of each point-to-point transfer, paired.

The transfers of a channel (group, sender, receiver, direction) are first in, first out. If pairing by the recorded
sequence numbers makes the ends agree, they decide: in a group of two ranks both sides may count alike. Otherwise the
i-th send belongs to the (i + k)-th receive, with one window offset k per channel, because a profiler may start later on
one rank than on the other. The k is found by search (`message_search`).
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trace_export.model import MESSAGES, WIRE_NS, Note, Profile, conform
from trace_export.ordering import ordered
from trace_export.pipeline.message_search import agreeing, search
from trace_export.selection import Numbers

LABELS = ("direction", "microbatch", "chunk")
ENDS = ["group", "src_rank", "dst_rank"]


def pair(profile: Profile) -> Profile:
    """`profile` with `messages` from its `p2p`, sorted by source, target and time; notes on what stayed unpaired.

    The cost is that of sorting the operations, and a search over at most 2 · `window_offsets.MOST` window offsets for
    those channels whose ends do not agree as they are.
    """
    if profile.p2p.is_empty():
        return profile
    sends, receives = _sides(profile.p2p)
    sent, received = len(sends), len(receives)
    sends, receives, channels = _in_channels(sends, receives)
    if channels.is_empty():
        return profile.with_notes(_unpaired(profile, sent, received))
    by_number, numbered = _by_number(sends, receives, channels)
    by_position = channels.join(numbered, on="channel", how="anti")
    by_order, searched = _by_order(_of(sends, by_position, channels), _of(receives, by_position, channels), by_position)
    offsets = pl.concat([numbered.with_columns(offset=pl.lit(0, pl.Int64)), searched])
    messages = pl.concat([by_number, by_order]).sort(
        "src_rank", "dst_rank", "send_start_ns", "recv_start_ns", maintain_order=True
    )
    notes = _notes(channels, offsets)
    unsure = channels.join(offsets.filter(pl.col("offset").is_null()), on="channel", how="semi")
    left = (len(messages) + int(unsure[n].sum()) for n in ("n", "n_recv"))
    notes += _unpaired(profile, sent - next(left), received - next(left))
    return replace(profile, messages=conform(messages.with_columns(wire_ns=WIRE_NS), MESSAGES)).with_notes(notes)


def _by_number(
    sends: pl.DataFrame, receives: pl.DataFrame, channels: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The messages of the channels whose ends agree if they are paired by sequence number, and these channels."""
    asked = channels.filter("numbered")
    sides = [_of(side, asked, channels).with_columns(at="sequence") for side in (sends, receives)]
    met = _all_met(agreeing(*_relative(*sides), asked), channels)
    met = met.join(_in_order(sends, receives, met, channels), on="channel", how="anti").select("channel")
    numbered = [_of(side, met, asked) for side in sides]
    return _joined(numbered[0], numbered[1], met.with_columns(offset=pl.lit(0, pl.Int64))), met


def _in_order(sends: pl.DataFrame, receives: pl.DataFrame, met: pl.DataFrame, channels: pl.DataFrame) -> pl.DataFrame:
    """The channels `met` by number in which more ends agree in their order: a rank that posts a receive before a send
    counts otherwise than its peer, which sends first."""
    left = channels.filter(pl.col("n") == pl.col("n_recv")).join(met.select("channel", paired="n"), on="channel")
    left = left.filter(pl.col("paired") < pl.col("n")).drop("paired")
    sides = [_placed(_of(side, left, channels)) for side in (sends, receives)]
    return agreeing(*_relative(*sides), left) if len(left) else left


def _by_order(sends: pl.DataFrame, receives: pl.DataFrame, channels: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The messages of the other `channels`, paired by their order, and the window offset of each channel."""
    sends, receives = _placed(sends), _placed(receives)
    offsets = search(*_relative(sends, receives), channels)
    return _joined(sends, receives, offsets), offsets


def _of(side: pl.DataFrame, some: pl.DataFrame, channels: pl.DataFrame) -> pl.DataFrame:
    """The operations of a side in `some` of the `channels`."""
    return side if len(some) == len(channels) else side.join(some.select("channel"), on="channel", how="semi")


def _sides(p2p: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The sending and the receiving sides; an operation that does both is on each. `group` is a number.

    If the source does not know the peer, it is the other rank of a group of two. A group has more members than were
    read if some of its transfers have a direction but no peer among them.
    """
    rows = p2p.lazy().filter(pl.col("start_ns").is_not_null() & pl.col("end_ns").is_not_null())
    if p2p["peer"].has_nulls():
        outside = pl.col("peer").is_null() & pl.col("direction").is_not_null()
        two = (pl.col("rank").n_unique().over("group") == 2) & ~outside.any().over("group")
        two = pl.col("group").is_not_null() & two
        other = pl.col("rank").min().over("group") + pl.col("rank").max().over("group") - pl.col("rank")
        rows = rows.with_columns(peer=pl.coalesce("peer", pl.when(two).then(other)))
    names = p2p["group"].unique().drop_nulls().sort()
    numbers = pl.int_range(1, len(names) + 1, eager=True)
    group = pl.col("group").replace_strict(names, numbers, default=0) if len(names) else pl.lit(0, pl.Int64)
    kept = ("step", "direction", "microbatch", "chunk", "start_ns", "end_ns", "bytes", "sequence")
    between = rows.filter(pl.col("peer") != pl.col("rank"))
    sends = between.filter(pl.col("role") != "recv").select(*kept, src_rank="rank", dst_rank="peer", group=group)
    receives = between.filter(pl.col("role") != "send").select(*kept, src_rank="peer", dst_rank="rank", group=group)
    return sends.collect(), receives.collect()


def _in_channels(sends: pl.DataFrame, receives: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """The operations of channels with both sides, with the number of their `channel`; and a row per channel: `n` and
    `n_recv` operations, and whether their sequence numbers are unique.

    Between two ranks each direction is a channel where every operation has a direction, else both are one.

    Example: ranks 0 and 1 in one group, with directions: the sends of rank 0 and the receives of rank 1 of activations
    are one channel, those of gradients from 1 to 0 another. Sends to rank 2, which was not read, are in none.
    """
    links = [side.group_by(ENDS).agg(known=pl.col("direction").is_not_null().all()) for side in (sends, receives)]
    both = links[0].join(links[1], on=ENDS, suffix="_recv").sort(ENDS).with_row_index("link")
    both = both.select(*ENDS, "known", "known_recv", link=pl.col("link").cast(pl.Int64))
    way = pl.when(pl.col("known") & pl.col("known_recv")).then((pl.col("direction") == "F").cast(pl.Int64) + 1)
    number = (pl.col("link") * 3 + way.otherwise(0)).alias("channel")
    sides = [
        side.join(both, on=ENDS).with_columns(number).drop(both.columns[3:], "group") for side in (sends, receives)
    ]
    unique = pl.col("sequence").is_not_null().all() & (pl.col("sequence").n_unique() == pl.len())
    of_side = [side.group_by("channel").agg(n=pl.len(), numbered=unique) for side in sides]
    channels = (
        of_side[0].join(of_side[1], on="channel", suffix="_recv").with_columns(link=pl.col("channel") // 3)
        .join(both, on="link").sort("channel")
        .select("channel", *ENDS, "n", "n_recv", numbered=pl.col("numbered") & pl.col("numbered_recv"))
    )  # fmt: skip
    met = [_of(side, channels, table) for side, table in zip(sides, of_side, strict=True)]
    return met[0], met[1], channels


def _placed(side: pl.DataFrame) -> pl.DataFrame:
    """One side's operations with their position `at` in their channel, in the order of the rank's clock."""
    ordered = side.sort("channel", "start_ns", "end_ns", "sequence")
    return ordered.with_columns(at=pl.int_range(pl.len(), dtype=pl.Int64).over("channel"))


def _relative(sends: pl.DataFrame, receives: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Channel, position, micro-batch and end of each side. Ends count from the rank's first time stamp, so that the
    difference of the clocks cancels exactly in a round trip."""
    stamps = pl.concat([
        sends.select(rank="src_rank", first="start_ns"), receives.select(rank="dst_rank", first="start_ns")
    ])  # fmt: skip
    base = stamps.group_by("rank").agg(pl.col("first").min())
    sides = []
    for side, rank in ((sends, "src_rank"), (receives, "dst_rank")):
        placed = side.select(rank, "channel", "at", "step", "microbatch", "chunk", "end_ns")
        based = placed.join(base.rename({"rank": rank}), on=rank, maintain_order="left")
        relative = based.select("channel", "at", "step", "microbatch", "chunk", end=pl.col("end_ns") - pl.col("first"))
        sides.append(ordered(relative, "channel", "at"))
    return sides[0], sides[1]


def _all_met(agree: pl.DataFrame, channels: pl.DataFrame) -> pl.DataFrame:
    """The channels of `agree` in which all operations were paired, or whose group has two ranks.

    In a larger group each rank counts all its operations, so different transfers may have equal sequence numbers by
    chance. In a group of two an unpaired operation has no counterpart in the data."""
    most = channels.select(
        "channel", most=pl.min_horizontal("n", "n_recv"), two=pl.col("src_rank").n_unique().over("group") <= 2
    )
    return agree.join(most, on="channel").filter(pl.col("two") | (pl.col("n") >= pl.col("most")))


def _joined(sends: pl.DataFrame, receives: pl.DataFrame, offsets: pl.DataFrame) -> pl.DataFrame:
    """The messages (`MESSAGES`); the sides are joined as numbers of rows, because they have many columns. A send and a
    receive of different steps are not a message."""
    moved = receives.select("channel", "at").with_row_index("received").join(offsets.drop_nulls(), on="channel")
    moved = moved.select("channel", "received", at=pl.col("at") - pl.col("offset"))
    both = sends.select("channel", "at").with_row_index("sent").join(moved, on=["channel", "at"])
    other = sends["step"].gather(both["sent"]) != receives["step"].gather(both["received"])
    both = both.filter(~other.fill_null(False))
    sent, received = both["sent"], both["received"]
    return pl.DataFrame(
        [
            *(sends[c].gather(sent) for c in ("src_rank", "dst_rank")),
            *(
                pl.select(pl.coalesce(sends[c].gather(sent), receives[c].gather(received)))[c]
                for c in (*LABELS, "bytes")
            ),
            *(
                side[f"{end}_ns"].gather(rows).alias(f"{name}_{end}_ns")
                for name, side, rows in (("send", sends, sent), ("recv", receives, received))
                for end in ("start", "end")
            ),
        ]
    )


def _notes(channels: pl.DataFrame, offsets: pl.DataFrame) -> list[Note]:
    named = channels.join(offsets, on="channel").sort("channel")
    notes = []
    moved = named.filter(pl.col("offset") != 0)
    if len(moved):
        first = moved.select("src_rank", "dst_rank", "offset").head(8)
        shown = ", ".join(f"{a}→{b} {k:+d}" for a, b, k in first.iter_rows())
        text = f"messages: recordings begin at different messages, paired with a window offset ({shown})"
        notes.append(Note("messages-window-offset", "detail", text, count=len(moved)))
    unsure = named.filter(pl.col("offset").is_null())
    if len(unsure):
        shown = ", ".join(f"{a}→{b}" for a, b in unsure.select("src_rank", "dst_rank").head(8).iter_rows())
        text = f"messages: sends and receives that can be paired in more than one way, left out ({shown})"
        notes.append(Note("messages-ambiguous", "warning", text, count=len(unsure)))
    return notes


def _unpaired(profile: Profile, sends: int, receives: int) -> list[Note]:
    peers, notes = profile.p2p["peer"], []
    if sends or receives:
        absent = Numbers.of(set(peers.drop_nulls()) - set(profile.ranks["rank"]))
        why = (
            f" here: {absent.named('rank')} {'was' if absent.count() == 1 else 'were'} not read"
            if absent.ranges
            else " that fits, though the profiles of both ranks are there"
        )
        text = f"messages: {sends} sends and {receives} receives have no counterpart{why}"
        notes.append(Note("messages-unpaired", "note", text))
    if without_peer := peers.null_count():
        text = f"messages: the peer rank of {without_peer} sends and receives is not recorded"
        notes.append(Note("messages-without-peer", "note", text))
    return notes
