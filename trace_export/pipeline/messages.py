"""Messages: the two sides of each point-to-point transfer, paired, with the passes that it lies between.

The transfers of a channel (group, sender, receiver, direction) are first in, first out. Where pairing by the recorded
sequence numbers makes the ends agree, they decide: in a group of two ranks both sides may count alike. Elsewhere the
i-th send belongs to the (i + k)-th receive, with one window offset k per channel, because a profiler may start later on
one rank than on the other. The k is found by search: under the right one the ends agree, and no round trip is negative.

A message then belongs to a dependency between two passes. Its labels name it, and where it has none, the pass before
the send and the pass after the receive do. No time of one rank is compared with one of the other.
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trace_export.model import MESSAGES, WIRE_NS, Note, Profile, conform
from trace_export.tolerances import GRID_NS, MESSAGE_ENDS_NS, ROUND_TRIP_NS
from trace_export.window_offsets import CLEARLY, candidates, paired

CONTRADICTION = 50
"""Cost of a negative round trip, relative to that of scatter. With 0, 96.1 % of the pairs of cut windows are found and
0.9 % of them are wrong; from 10 on, 99.5 % and 0.3 % (tests/benchmarks/calibrate_clocks.py offsets)."""

LABELS = ("direction", "microbatch", "chunk")
ENDS_OF = ["src_rank", "dst_rank"]
ENDS = ["group", *ENDS_OF]
PASSES_OF = ["src_pass", "dst_pass"]


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
        return profile.with_notes(_unpaired(sent, received, profile.p2p["peer"].null_count()))
    by_number, numbered = _by_number(sends, receives, channels)
    counted = channels.join(numbered, on="channel", how="anti")
    by_order, searched = _by_order(_of(sends, counted, channels), _of(receives, counted, channels), counted)
    offsets = pl.concat([numbered.with_columns(offset=pl.lit(0, pl.Int64)), searched])
    found = pl.concat([by_number, by_order]).sort(
        "src_rank", "dst_rank", "send_start_ns", "recv_start_ns", maintain_order=True
    )
    notes = _notes(channels, offsets)
    notes += _unpaired(sent - len(found), received - len(found), profile.p2p["peer"].null_count())
    return replace(profile, messages=conform(found.with_columns(wire_ns=WIRE_NS), MESSAGES)).with_notes(notes)


def link(profile: Profile) -> Profile:
    """`profile` with src_pass, dst_pass and ready_ns of its messages, and with direction, microbatch and chunk of those
    that lack the micro-batch; a note counts these.

    A message with a micro-batch and a direction is of the dependency between its ranks with these labels whose producer
    began last before the send ended. Of another message each end names a dependency between its ranks: the send the one
    whose producer ended last before it, the receive the one whose consumer starts next after it. It gets its labels
    only where both ends name the same dependency, no other message does, and the direction, where it is known, is the
    same. Needs `interpretation`, and the blocks that it was made of.
    """
    messages = profile.messages.with_row_index("message")
    if messages.is_empty():
        return profile
    links = _links(profile)
    named = pl.all_horizontal(pl.col("microbatch", "direction").is_not_null())
    by_labels = _by_labels(messages.filter(named), links)
    by_ends = _by_ends(_of_steps(messages.filter(pl.col("microbatch").is_null()), profile), links)
    chunk = pl.when("has_chunk").then("chunk")
    linked = links.select("link", "direction", "microbatch", chunk, *PASSES_OF, "ready_ns")
    found = pl.concat([by_labels, by_ends]).join(linked, on="link")
    joined = profile.messages.drop(*PASSES_OF, "ready_ns").with_row_index("message").join(
        found, on="message", how="left", suffix="_found", maintain_order="left"
    )  # fmt: skip
    filled = joined.with_columns(
        pl.when(pl.col("microbatch").is_null()).then(pl.coalesce(c, f"{c}_found")).otherwise(c).alias(c) for c in LABELS
    )
    text = "messages: micro-batch and direction inferred from the blocks before the send and after the receive"
    notes = [Note("message-labels-inferred", "detail", text, count=by_ends.height)] if by_ends.height else []
    return replace(profile, messages=conform(filled, MESSAGES)).with_notes(notes)


def _links(profile: Profile) -> pl.DataFrame:
    """A row per dependency between two ranks: link (its number), src_rank, dst_rank, direction, src_pass, dst_pass, the
    latter's microbatch and chunk (and has_chunk, whether its block has one), begun_ns and ready_ns (start and end of
    the producer), taken_ns and done_ns (start and end of the consumer)."""
    edges, blocks, passes = profile.edge_rows(), profile.spans, profile.interpreted.passes
    ends = {
        "src": {"rank": "src_rank", "start_ns": "begun_ns", "end_ns": "ready_ns"},
        "dst": {"rank": "dst_rank", "start_ns": "taken_ns", "end_ns": "done_ns"},
    }
    times = [
        blocks[name].gather(edges[end]).alias(shown) for end, names in ends.items() for name, shown in names.items()
    ]
    labels = [passes[name].gather(edges["dst_pass"]) for name in ("microbatch", "chunk")]
    has_chunk = blocks["chunk"].is_not_null().gather(edges["dst"]).alias("has_chunk")
    linked = edges.drop("src", "dst").with_columns(*times, *labels, has_chunk)
    return linked.filter(pl.col("src_rank") != pl.col("dst_rank")).with_row_index("link")


def _by_labels(messages: pl.DataFrame, links: pl.DataFrame) -> pl.DataFrame:
    """message, link: of `messages` with labels. The receive began before the consumer ended."""
    key = [*ENDS_OF, *LABELS]
    sent = messages.with_columns(pl.col("chunk").fill_null(0)).sort("send_end_ns")
    met = sent.join_asof(
        links.select("link", *key, "begun_ns", "done_ns").sort("begun_ns"), left_on="send_end_ns",
        right_on="begun_ns", by=key, strategy="backward", check_sortedness=False,
    )  # fmt: skip
    return met.filter(pl.col("recv_start_ns") <= pl.col("done_ns")).select("message", "link")


def _by_ends(messages: pl.DataFrame, links: pl.DataFrame) -> pl.DataFrame:
    """message, link: of those of `messages` of which both ends name the same dependency, and no other message does."""
    met = messages
    for name, own, theirs, strategy in (
        ("sent", "send_start_ns", pl.col("ready_ns") - GRID_NS, "backward"),
        ("received", "recv_end_ns", pl.col("taken_ns") + GRID_NS, "forward"),
    ):
        side = links.select(*ENDS_OF, pl.col("link").alias(name), theirs.alias(own)).sort(own)
        met = met.sort(own).join_asof(side, on=own, by=ENDS_OF, strategy=strategy, check_sortedness=False)  # type: ignore[arg-type]
    sure = met.filter((pl.col("sent") == pl.col("received")) & ~pl.col("sent").is_duplicated())
    both = sure.select("message", "direction", link="sent").join(links.select("link", of="direction"), on="link")
    return both.filter((pl.col("direction") == pl.col("of")).fill_null(True)).select("message", "link")


def _of_steps(messages: pl.DataFrame, profile: Profile) -> pl.DataFrame:
    """The `messages` before which the sender's last forward or backward is of a step and not of an evaluation."""
    if profile.evaluations.is_empty():
        return messages
    last = profile.blocks.filter(pl.col("kind") != "OPT").select(
        src_rank="rank", send_start_ns=pl.col("end_ns") - GRID_NS, step="step"
    )  # fmt: skip
    made = messages.sort("send_start_ns").join_asof(
        last.sort("send_start_ns"), on="send_start_ns", by="src_rank", check_sortedness=False
    )
    return made.filter(pl.col("step").is_not_null()).drop("step")


def _by_number(
    sends: pl.DataFrame, receives: pl.DataFrame, channels: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The messages of the channels whose ends agree if they are paired by sequence number, and these channels."""
    asked = channels.filter("numbered")
    sides = [_of(side, asked, channels).with_columns(at="sequence") for side in (sends, receives)]
    agreeing = _all_met(_agreeing(*_relative(*sides), asked), channels).select("channel")
    known = [_of(side, agreeing, asked) for side in sides]
    return _joined(known[0], known[1], agreeing.with_columns(offset=pl.lit(0, pl.Int64))), agreeing


def _by_order(sends: pl.DataFrame, receives: pl.DataFrame, channels: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The messages of the other `channels`, paired by their order, and the window offset of each channel."""
    sends, receives = _placed(sends), _placed(receives)
    offsets = _search(*_relative(sends, receives), channels)
    return _joined(sends, receives, offsets), offsets


def _of(side: pl.DataFrame, some: pl.DataFrame, channels: pl.DataFrame) -> pl.DataFrame:
    """The operations of a side in `some` of the `channels`."""
    return side if len(some) == len(channels) else side.join(some.select("channel"), on="channel", how="semi")


def _sides(p2p: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The sending and the receiving sides: an operation that does both is one of each. `group` is a number.

    Where the source does not know the peer, the other rank of a group of two is it. A group has more members than were
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
    kept = ("direction", "microbatch", "chunk", "start_ns", "end_ns", "bytes", "sequence")
    known = rows.filter(pl.col("peer") != pl.col("rank"))
    sends = known.filter(pl.col("role") != "recv").select(*kept, src_rank="rank", dst_rank="peer", group=group)
    receives = known.filter(pl.col("role") != "send").select(*kept, src_rank="peer", dst_rank="rank", group=group)
    return sends.collect(), receives.collect()


def _in_channels(sends: pl.DataFrame, receives: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """The operations of both sides with the number of their `channel`, those of channels that have both sides; and a
    row per channel: `n` and `n_recv` operations, and whether their sequence numbers are unique.

    Between two ranks each direction is a channel where every operation has a direction, else both are one.
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
        placed = side.select(rank, "channel", "at", "microbatch", "chunk", "end_ns")
        based = placed.join(base.rename({"rank": rank}), on=rank)
        relative = based.select("channel", "at", "microbatch", "chunk", end=pl.col("end_ns") - pl.col("first"))
        sides.append(relative.sort("channel", "at"))
    return sides[0], sides[1]


def _search(sent: pl.DataFrame, received: pl.DataFrame, channels: pl.DataFrame) -> pl.DataFrame:
    """channel, offset (null where none is certain) of all `channels`."""
    settled = _agreeing(sent, received, channels).select("channel", offset=pl.lit(0, pl.Int64))
    left = channels.join(settled, on="channel", how="anti")
    if left.is_empty():
        return settled
    answers = _answers(channels).join(left.select("channel"), on="channel")
    needed = pl.concat([left.select("channel"), answers.select(channel="answer").drop_nulls()]).unique()
    asked = channels.join(needed, on="channel")
    sent, received = sent.join(needed, on="channel"), received.join(needed, on="channel")
    gap = left.select((pl.col("n").cast(pl.Int64) - pl.col("n_recv").cast(pl.Int64)).abs().max()).item()
    tried = pl.concat([_tried(sent, received, asked, k) for k in candidates(gap)]).filter("fits")
    fixed = settled.rename({"offset": "fixed"})
    tried = tried.join(fixed, on="channel", how="left").filter(pl.col("offset") == pl.coalesce("fixed", "offset"))
    chosen = left.select("channel").join(_best(tried, answers), on="channel", how="left")
    return pl.concat([settled, chosen])


def _agreeing(sent: pl.DataFrame, received: pl.DataFrame, channels: pl.DataFrame) -> pl.DataFrame:
    """Those of `channels` whose ends agree so well without an offset that no other offset need be tried."""
    tried = _tried(sent, received, channels, 0)
    both = (
        _answers(channels)
        .join(tried, on="channel")
        .join(tried.select(answer="channel", back="low"), on="answer", how="left")
    )
    close = (pl.col("low") + pl.col("back")).fill_null(0)
    agrees = (pl.col("scatter") <= MESSAGE_ENDS_NS) & (close >= -ROUND_TRIP_NS)
    enough = both.filter("fits", pl.col("n") >= 3)
    left = enough.filter(~agrees)
    others = left if left.is_empty() else _agreeing_in_turn(sent, received, left)
    return pl.concat([enough.filter(agrees), others])


def _agreeing_in_turn(sent: pl.DataFrame, received: pl.DataFrame, channels: pl.DataFrame) -> pl.DataFrame:
    """Those of `channels` (with their `answer`) of which each end agrees with the one before, and each round trip is
    possible: the ends of all do not where a clock was set between."""
    delay = pl.col("end_right") - pl.col("end")
    here = sent.join(received.select("channel", "at", "end"), on=["channel", "at"], suffix="_right")
    delays = here.select("channel", "at", delay=delay).sort("channel", "at")
    change = pl.col("delay").diff()
    steady = delays.group_by("channel").agg(change=change.quantile(0.75) - change.quantile(0.25))
    trips = (
        delays.join(channels.select("channel", "answer"), on="channel")
        .join(delays.rename({"channel": "answer", "delay": "back"}), on=["answer", "at"])
        .group_by("channel")
        .agg(close=(pl.col("delay") + pl.col("back")).quantile(0.05))
    )
    agreeing = steady.filter(pl.col("change") <= MESSAGE_ENDS_NS).join(
        trips.filter(pl.col("close").abs() <= ROUND_TRIP_NS), on="channel"
    )
    return channels.join(agreeing, on="channel", how="semi")


def _all_met(agreeing: pl.DataFrame, channels: pl.DataFrame) -> pl.DataFrame:
    """Those of `agreeing` in which all operations were paired, or whose group has two ranks.

    In a larger group each rank counts all its operations, so that different transfers may have equal sequence numbers
    by chance. In a group of two an unpaired operation has no counterpart in the data."""
    most = channels.select(
        "channel", most=pl.min_horizontal("n", "n_recv"), two=pl.col("src_rank").n_unique().over("group") <= 2
    )
    return agreeing.join(most, on="channel").filter(pl.col("two") | (pl.col("n") >= pl.col("most")))


def _answers(channels: pl.DataFrame) -> pl.DataFrame:
    """channel, answer: the channel in the opposite direction, in the same group if there is one, else the largest."""
    back = channels.select(src_rank="dst_rank", dst_rank="src_rank", other="group", answer="channel", size="n")
    return (
        channels.join(back, on=["src_rank", "dst_rank"], how="left")
        .with_columns(same=pl.col("other") == pl.col("group"))
        .sort("channel", "same", "size", "answer", descending=[False, True, True, False], nulls_last=True)
        .group_by("channel", maintain_order=True)
        .agg(pl.col("answer").first())
    )


def _tried(sent: pl.DataFrame, received: pl.DataFrame, channels: pl.DataFrame, offset: int) -> pl.DataFrame:
    """How well each channel fits under a window offset: channel, n, scatter, spread, low, fits, offset.

    Of end - end in ns: scatter is that of the middle half, spread that of the earlier half (a late end may be due to
    waiting), low the earliest. Fits: at least half of the shorter side is paired, and known micro-batches agree.
    """
    delay = pl.col("end_right") - pl.col("end")
    same = (pl.col("microbatch") == pl.col("microbatch_right")) & pl.col("chunk").eq_missing(pl.col("chunk_right"))
    enough = pl.col("n") >= pl.col("least")
    tried = paired(
        sent, received, offset, on=["channel"], by=["channel"],
        scatter=delay.quantile(0.75) - delay.quantile(0.25),
        spread=delay.quantile(0.5) - delay.quantile(0.05),
        low=delay.quantile(0.05),
        same=same.mean().fill_null(1.0),
    )  # fmt: skip
    least = channels.select("channel", least=pl.min_horizontal("n", "n_recv") / 2)
    return tried.join(least, on="channel").select(
        "channel", "n", "scatter", "spread", "low", "offset", fits=enough & (pl.col("same") > 0.9)
    )


def _best(tried: pl.DataFrame, answer: pl.DataFrame) -> pl.DataFrame:
    """The offset of each channel that, with some offset of the opposite channel, has the lowest cost.

    Null where it is not 0 and another offset has nearly the same cost.
    """
    here = tried.select("channel", "offset", "spread", "low")
    there = tried.select(answer="channel", back_offset="offset", back_spread="spread", back="low")
    both = answer.join(here, on="channel").join(there, on="answer", how="left")
    close = pl.col("low") + pl.col("back")
    contradiction = CONTRADICTION * (-close - ROUND_TRIP_NS).clip(lower_bound=0)
    cost = (
        pl.col("spread") + pl.col("back_spread").fill_null(0) + (close.clip(lower_bound=0) + contradiction).fill_null(0)
    )
    ranked = (
        both.with_columns(cost=cost)
        .group_by("channel", "offset")
        .agg(pl.col("cost").min())
        .sort("channel", "cost", pl.col("offset").abs(), "offset")
        .group_by("channel", maintain_order=True)
        .agg(
            pl.col("offset", "cost").first(),
            second=pl.col("cost").get(1, null_on_oob=True),
        )
    )
    clear = pl.col("second").is_null() | (pl.col("second") >= CLEARLY * pl.col("cost"))
    return ranked.select("channel", offset=pl.when(clear | (pl.col("offset") == 0)).then("offset"))


def _joined(sends: pl.DataFrame, receives: pl.DataFrame, offsets: pl.DataFrame) -> pl.DataFrame:
    """The messages of `MESSAGES`; the sides are joined as numbers of rows, for their columns are many."""
    moved = receives.select("channel", "at").with_row_index("received").join(offsets.drop_nulls(), on="channel")
    moved = moved.select("channel", "received", at=pl.col("at") - pl.col("offset"))
    both = sends.select("channel", "at").with_row_index("sent").join(moved, on=["channel", "at"])
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


def _unpaired(sends: int, receives: int, without_peer: int) -> list[Note]:
    notes = []
    if sends or receives:
        text = f"messages: {sends} sends and {receives} receives have no counterpart; are profiles of ranks missing?"
        notes.append(Note("messages-unpaired", "note", text))
    if without_peer:
        text = f"messages: the peer rank of {without_peer} sends and receives is not recorded"
        notes.append(Note("messages-without-peer", "note", text))
    return notes
