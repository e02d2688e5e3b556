"""What ties the hosts' clocks together, as arrays: messages, collectives, and the pipeline's own dependencies.

Times are taken relative to a base of each host (its first stamp here) as int64 before they become float microseconds:
so a host that is seconds off costs no precision, and shifting one host's input changes no bit of what follows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trace_export.model import MESSAGES, conform

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MESSAGE, BLOCKS = 0, 1
"""What a tie between two hosts is made of: true messages, or blocks that feed each other."""

SHIFTS = range(-6, 7)
CLEARLY = 3.0
"""How many times better another shift must fit before it is believed."""

NEAR_NS = 200_000
"""Ends of one collective lie within this of each other once the clocks' difference is taken out."""


@dataclass(frozen=True)
class Ties:
    """All that is known between `hosts` (H), sorted so that the order of the input's rows does not matter.

    Messages: one row each, sorted by directed pair; `pair` is the row's index into the directed pairs (Q), whose ends
    are `source`, `target` (host indices) and whose `kind` is MESSAGE or BLOCKS. `sent`, `received` are µs since the
    base of their own host. Collectives: one row per member; `event` numbers the collectives, `member` is the host
    index, `entered` and `left` µs since the host's base.
    """

    hosts: list[str]
    base_ns: Ints
    used: NDArray[np.bool_]
    pair: Ints
    first: Ints
    source: Ints
    target: Ints
    kind: Ints
    sent: Floats
    received: Floats
    event: Ints
    member: Ints
    entered: Floats
    left: Floats

    @property
    def span_us(self) -> float:
        """The longest window of any one host, in µs; at least 1."""
        latest = [float(x.max()) for x in (self.sent, self.received, self.left) if len(x)]
        return max([1.0, *latest])

    def thinned(self, most: int) -> Ties:
        """At most `most` messages of each directed pair, spread evenly over the window."""
        count = np.diff(np.append(self.first, len(self.pair)))
        if not len(count) or count.max() <= most:
            return self
        place = np.arange(len(self.pair)) - self.first[self.pair]
        kept = np.minimum(count, most)[self.pair]
        share = place * kept // count[self.pair]
        keep = np.flatnonzero(np.append(True, (np.diff(share) != 0) | (np.diff(self.pair) != 0)))
        pair = self.pair[keep]
        first = np.searchsorted(pair, np.arange(len(count)))
        return replace(self, pair=pair, first=first, sent=self.sent[keep], received=self.received[keep])


def block_messages(spans: pl.DataFrame, block_edges: pl.DataFrame) -> pl.DataFrame:
    """Dependencies between blocks as pseudo messages (schema `MESSAGES`): the producer's end, the consumer's start.

    `block_edges` has `src` and `dst`, rows of `spans`, and `direction`.
    """
    source = spans[block_edges["src"]].select(
        "microbatch", "chunk", src_rank="rank", send_start_ns="end_ns", send_end_ns="end_ns"
    )
    target = spans[block_edges["dst"]].select(dst_rank="rank", recv_start_ns="start_ns", recv_end_ns="start_ns")
    return conform(pl.concat([source, target, block_edges.select("direction")], how="horizontal"), MESSAGES)


def gather(
    messages: pl.DataFrame, collectives: pl.DataFrame, ranks: pl.DataFrame, edges: pl.DataFrame | None = None
) -> Ties:
    """The ties between hosts in `messages`, `collectives` and `edges` (schemas of `model`; `edges` as MESSAGES).

    `edges` count only between hosts that exchange no messages. Ties inside one host say nothing and are left out.
    """
    hosts = ranks["host"].drop_nulls().unique().sort().to_list()
    index = pl.DataFrame({"host": hosts, "h": pl.Series(range(len(hosts)), dtype=pl.Int64)})
    place = ranks.select("rank", "host").join(index, on="host").select("rank", "h").unique("rank")
    rows = _between(messages, place, MESSAGE)
    if edges is not None and not edges.is_empty():
        extra = _between(edges, place, BLOCKS).join(rows.select("lo", "hi").unique(), on=["lo", "hi"], how="anti")
        rows = pl.concat([rows, extra])
    rows = rows.sort("i", "j", "src_rank", "dst_rank", "sent", "received")
    members = _events(collectives, place)
    base, used = _bases(len(hosts), rows, members)
    i, j = rows["i"].to_numpy(), rows["j"].to_numpy()
    _, first, pair = np.unique(i * len(hosts) + j, return_index=True, return_inverse=True)
    member = members["h"].to_numpy()
    return Ties(
        hosts=hosts,
        base_ns=base,
        used=used,
        pair=pair,
        first=first,
        source=i[first],
        target=j[first],
        kind=rows["kind"].to_numpy()[first],
        sent=(rows["sent"].to_numpy() - base[i]) / 1e3,
        received=(rows["received"].to_numpy() - base[j]) / 1e3,
        event=members["event"].to_numpy(),
        member=member,
        entered=(members["start_ns"].to_numpy() - base[member]) / 1e3,
        left=(members["end_ns"].to_numpy() - base[member]) / 1e3,
    )


def _between(messages: pl.DataFrame, place: pl.DataFrame, kind: int) -> pl.DataFrame:
    """Messages between different hosts with both ends known: i, j, lo, hi (host indices), sent, received (ns)."""
    return (
        messages.select("src_rank", "dst_rank", sent="send_end_ns", received="recv_end_ns")
        .drop_nulls()
        .join(place.rename({"rank": "src_rank", "h": "i"}), on="src_rank")
        .join(place.rename({"rank": "dst_rank", "h": "j"}), on="dst_rank")
        .filter(pl.col("i") != pl.col("j"))
        .with_columns(lo=pl.min_horizontal("i", "j"), hi=pl.max_horizontal("i", "j"), kind=pl.lit(kind, pl.Int64))
    )


def _bases(count: int, rows: pl.DataFrame, members: pl.DataFrame) -> tuple[Ints, NDArray[np.bool_]]:
    """The first stamp of each host, and which hosts have any."""
    base = np.full(count, np.iinfo(np.int64).max)
    ends = ((rows, "i", "sent"), (rows, "j", "received"), (members, "h", "start_ns"))
    for frame, host, time in ends:
        firsts = frame.group_by(host).agg(pl.col(time).min())
        np.minimum.at(base, firsts[host].to_numpy(), firsts[time].to_numpy())
    used = base != np.iinfo(np.int64).max
    return np.where(used, base, 0), used


def _events(collectives: pl.DataFrame, place: pl.DataFrame) -> pl.DataFrame:
    """The members of collectives that span hosts: h, event, start_ns, end_ns, sorted by event and rank.

    Members are matched by (group, op, ordinal). Where a member's window was cut differently its ordinals are shifted:
    the shift that makes its ends agree with those of the group's fullest member is taken.
    """
    rows = (
        collectives.filter(pl.col("start_ns").is_not_null() & pl.col("end_ns").is_not_null())
        .join(place, on="rank")
        .with_columns(pl.col("group").fill_null(""), pl.col("op").fill_null(""))
        .filter((pl.col("h").n_unique() > 1).over("group", "op"))
    )
    if rows.is_empty():
        return rows.select("h", pl.lit(0, pl.Int64).alias("event"), "start_ns", "end_ns").clear()
    counted = pl.int_range(pl.len(), dtype=pl.Int64).over("group", "op", "rank", order_by=["start_ns", "end_ns"])
    known = pl.col("ordinal").is_not_null().all().over("group", "op")
    rows = rows.with_columns(ordinal=pl.when(known).then("ordinal").otherwise(counted))
    rows = rows.join(_shifts(rows), on=["group", "op", "rank"], nulls_equal=True)
    key = ["group", "op", "at"]
    return (
        rows.with_columns(at=pl.col("ordinal") - pl.col("shift"))
        .unique([*key, "rank"], keep="none")
        .filter((pl.col("h").n_unique() > 1).over(key))
        .with_columns(event=pl.struct(key).rank("dense").cast(pl.Int64) - 1)
        .sort("event", "rank")
        .select("h", "event", "start_ns", "end_ns")
    )


def _shifts(rows: pl.DataFrame) -> pl.DataFrame:
    """The shift of each member's ordinals against the group's fullest member: group, op, rank, shift."""
    member = ["group", "op", "rank"]
    counts = (
        rows.group_by(member).agg(n=pl.len()).sort(["group", "op", "n", "rank"], descending=[False, False, True, False])
    )
    fullest = counts.group_by("group", "op", maintain_order=True).first().select("group", "op", "rank")
    reference = rows.join(fullest, on=member).select("group", "op", "ordinal", end_ref="end_ns")
    at_rest = _spread(rows, reference, 0)
    unclear = at_rest.filter((pl.col("spread") > NEAR_NS) | pl.col("spread").is_null()).select(member)
    searched = rows.join(unclear, on=member)
    tried = pl.concat([_spread(searched, reference, k) for k in SHIFTS])
    best = (
        tried.sort("spread", pl.col("shift").abs(), "shift", nulls_last=True)
        .group_by(member, maintain_order=True)
        .first()
    )
    best = best.join(at_rest.select(*member, rest="spread"), on=member, how="left").filter(
        (pl.col("spread") * CLEARLY < pl.col("rest")) | (pl.col("rest").is_null() & (pl.col("spread") < NEAR_NS))
    )
    return (
        counts.select(member)
        .join(best.select(*member, "shift"), on=member, how="left")
        .with_columns(pl.col("shift").fill_null(0))
    )


def _spread(rows: pl.DataFrame, reference: pl.DataFrame, shift: int) -> pl.DataFrame:
    """How much the ends of each member and the reference's scatter with the ordinals `shift`ed: the quartiles' gap."""
    end = pl.col("end_ns") - pl.col("end_ref")
    end = end - end.min()
    gap = end.quantile(0.75, "higher") - end.quantile(0.25, "lower")
    return (
        rows.with_columns(ordinal=pl.col("ordinal") - shift)
        .join(reference, on=["group", "op", "ordinal"])
        .group_by("group", "op", "rank")
        .agg(spread=pl.when(pl.len() >= 2).then(gap), shift=pl.lit(shift, pl.Int64))
    )
