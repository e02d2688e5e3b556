"""Observations that constrain the clock offsets of hosts, as arrays: messages, dependencies of blocks, collectives.

Times are taken relative to a base of each host (its first observation) as int64 before they become float microseconds:
so a host that is seconds off costs no precision, and shifting one host's input changes no bit of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trace_export.model import INT, MESSAGES, STEP_KEY, WORK_KINDS, Profile, conform, empty
from trace_export.tolerances import FIFTH, OVERLAP_NS, ROUND_TRIP_NS, STEADY_NS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ENOUGH = 3
"""At least this many blocks, at their lowest fifth, show how soon a rank starts its blocks."""
LONG = 2
"""A collective that takes this many times as long as all others of its rank and kind may have a wrong end."""
MESSAGE, BLOCKS = 0, 1
"""Kinds of observations between two hosts: true messages, or dependencies between blocks."""


@dataclass(frozen=True)
class Observations:
    """All observations between `hosts` (H), sorted so that the order of the input's rows does not matter.

    A host whose clock was set is there again for each time after that.

    Messages: one row each, sorted by directed pair; `pair` is the row's index into the directed pairs (Q), whose ends
    are `source`, `target` (host indices) and whose `kind` is MESSAGE or BLOCKS; `first` is the first row of each pair.
    `sent`, `received` are µs since the base of their own host. Collectives: one row per member; `event` numbers the
    collectives, `member` is the host index, `entered` and `left` µs since the host's base. `observed`: whether a host
    has any observation.
    """

    hosts: list[str]
    base_ns: Ints
    observed: NDArray[np.bool_]
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

    @property
    def events(self) -> int:
        """The number of collectives."""
        return int(self.event.max()) + 1 if len(self.event) else 0

    def thinned(self, most: int) -> Observations:
        """At most `most` messages of each directed pair, spread evenly over the window."""
        count = np.diff(np.append(self.first, len(self.pair)))
        if not len(count) or count.max() <= most:
            return self
        index = np.arange(len(self.pair)) - self.first[self.pair]
        kept = np.minimum(count, most)[self.pair]
        share = index * kept // count[self.pair]
        keep = np.flatnonzero(np.append(True, (np.diff(share) != 0) | (np.diff(self.pair) != 0)))
        pair = self.pair[keep]
        first = np.searchsorted(pair, np.arange(len(count)))
        return replace(self, pair=pair, first=first, sent=self.sent[keep], received=self.received[keep])


def hosts_of_ranks(ranks: pl.DataFrame) -> pl.DataFrame:
    """rank, host; each rank once."""
    return ranks.select("rank", "host").unique("rank")


def with_hosts(messages: pl.DataFrame, host_of_rank: pl.DataFrame) -> pl.DataFrame:
    """`messages` whose two ranks are in `host_of_rank` (rank, host), with the columns `src_host` and `dst_host`."""
    source, target = (
        host_of_rank.select(pl.col("rank").alias(f"{end}_rank"), pl.col("host").alias(f"{end}_host"))
        for end in ("src", "dst")
    )
    return messages.join(source, on="src_rank").join(target, on="dst_rank")


def violations(messages: pl.DataFrame) -> int:
    """How many of the messages (schema `MESSAGES`) arrive before they were sent."""
    return int((messages["recv_end_ns"] < messages["send_start_ns"]).sum())


def first_times(profile: Profile) -> pl.DataFrame:
    """host, first: the first time (ns) of each host in the tables of its events."""
    times = [
        frame.group_by("rank").agg(first=pl.col("start_ns").min())
        for frame in (profile.spans, profile.p2p, profile.collectives)
    ]
    by_host = pl.concat(times).join(hosts_of_ranks(profile.ranks), on="rank").group_by("host")
    return by_host.agg(pl.col("first").min()).drop_nulls().sort("host")


def block_messages(profile: Profile, *, prompt: bool = False) -> pl.DataFrame:
    """Dependencies between blocks on different hosts as pseudo messages (schema `MESSAGES`): the producer's end, the
    consumer's start; with `prompt` that of a rank that starts no later than others.

    There are none if the profile has not been interpreted.
    """
    if profile.interpretation is None:
        return empty(MESSAGES)
    edges, spans = profile.edge_rows(), profile.spans
    hosts = profile.ranks.select("rank", host=pl.col("host").rank("dense").cast(INT)).unique("rank").drop_nulls()
    host = spans["rank"].replace_strict(hosts["rank"], hosts["host"], default=None, return_dtype=INT)
    edges = edges.filter(host.gather(edges["src"]) != host.gather(edges["dst"]))
    sides = spans.select("microbatch", "chunk", src_rank="rank", send_end_ns="end_ns")
    source = sides[edges["src"]].with_columns(send_start_ns="send_end_ns")
    target = spans.select(dst_rank="rank", recv_end_ns="start_ns")[edges["dst"]]
    if prompt:
        late = _lateness(profile)
        by = target["dst_rank"].replace_strict(late["rank"], late["late"], default=0)
        way = source.select("src_rank", "send_end_ns").hstack(target).with_columns(
            run=spans["run"][edges["src"]], step=spans["step"][edges["src"]], late=by
        )  # fmt: skip
        by = by * ~target["dst_rank"].is_in(_prompt_after_all(way).implode())
        target = target.with_columns(recv_end_ns=pl.col("recv_end_ns") - by)
    target = target.with_columns(recv_start_ns="recv_end_ns")
    return conform(pl.concat([source, target, edges.select("direction")], how="horizontal"), MESSAGES)


def _prompt_after_all(way: pl.DataFrame) -> pl.Series:
    """The ranks that cannot be as `late` as they seem: without that, data would take less than no time to them and back
    in most steps. `way`: src_rank, dst_rank, run, step, send_end_ns, recv_end_ns and late, a row per dependency."""
    takes = pl.col("recv_end_ns") - pl.col("late") - pl.col("send_end_ns")
    least = way.group_by("src_rank", "dst_rank", *STEP_KEY).agg(takes=takes.min(), late=pl.col("late").first())
    back = least.select(src_rank="dst_rank", dst_rank="src_rank", back="takes", **{name: name for name in STEP_KEY})
    trips = least.join(back, on=["src_rank", "dst_rank", *STEP_KEY], nulls_equal=True)
    trips = trips.group_by("src_rank", "dst_rank").agg(
        (pl.col("takes") + pl.col("back")).median(), pl.col("late").first()
    )
    return trips.filter(pl.col("late") > 0, pl.col("takes") < -ROUND_TRIP_NS)["dst_rank"].unique()


def _lateness(profile: Profile) -> pl.DataFrame:
    """rank, late: how much longer than others a rank takes to start blocks that need nothing from another rank; if it
    has no such blocks, the ranks of its host. It starts other blocks as late after their data are here, as if its clock
    were off by a half of that."""
    edges, rank = profile.edge_rows(), profile.spans["rank"]
    fed = edges.filter(rank.gather(edges["src"]) != rank.gather(edges["dst"]))["dst"]
    gap = pl.col("start_ns") - pl.col("end_ns").shift().over("rank", *STEP_KEY)
    each = (
        profile.spans.lazy().with_row_index("row").filter(pl.col("kind").is_in(WORK_KINDS)).sort("rank", "start_ns")
        .with_columns(gap=gap).filter(~pl.col("row").is_in(fed.implode())).drop_nulls("gap").group_by("rank")
        .agg(pl.len(), soonest=pl.col("gap").quantile(FIFTH, "lower")).filter(pl.col("len") >= ENOUGH).collect()
    )  # fmt: skip
    late = pl.col("soonest") - pl.col("soonest").quantile(FIFTH, "lower")
    each = each.select("rank", late=pl.when(late > STEADY_NS).then(late).otherwise(0).cast(pl.Int64))
    ranks = profile.ranks.select("rank", "host").unique("rank").join(each, on="rank", how="left")
    return ranks.select("rank", late=pl.coalesce("late", pl.col("late").min().over("host")).fill_null(0))


def gather(
    messages: pl.DataFrame,
    collectives: pl.DataFrame,
    ranks: pl.DataFrame,
    edges: pl.DataFrame | None = None,
    steps: Sequence[tuple[str, int]] = (),
) -> Observations:
    """The observations in `messages`, `collectives` and `edges` (schemas of `model`; `edges` as MESSAGES). `steps`: the
    hosts whose clocks were set, and since when each shows another time, sorted.

    `edges` count only between hosts that exchange no messages. Observations inside one host constrain nothing and are
    left out. So are collectives without a group, unless all ranks are of one stage: of several stages each reduces its
    gradients, and equal names are not one collective.
    """
    if ranks["stage"].drop_nulls().n_unique() > 1:
        collectives = collectives.filter(pl.col("group").is_not_null())
    hosts = ranks["host"].drop_nulls().unique().sort().to_list()
    index = pl.DataFrame({"host": hosts, "h": pl.Series(range(len(hosts)), dtype=pl.Int64)})
    host_of_rank = hosts_of_ranks(ranks).join(index, on="host").select("rank", host="h")
    rows = _between(messages, host_of_rank, MESSAGE)
    if edges is not None and not edges.is_empty():
        extra = _between(edges, host_of_rank, BLOCKS).join(
            rows.select("lo", "hi").unique(), on=["lo", "hi"], how="anti"
        )
        rows = pl.concat([rows, extra])
    members = _events(collectives, host_of_rank)
    rows = rows.with_columns(i_0="i", j_0="j")
    members = members.with_columns(host_0="host")
    for number, (host, since) in enumerate(steps, len(hosts)):
        here = hosts.index(host)
        moved = _after_step("i", "sent", here, since, number), _after_step("j", "received", here, since, number)
        rows = rows.with_columns(moved)
        members = members.with_columns(_after_step("host", "end_ns", here, since, number))
    hosts += [host for host, _ in steps]
    rows = rows.sort("i", "j", "src_rank", "dst_rank", "sent", "received")
    base, observed = _bases(len(hosts), rows, members)
    i, j = rows["i"].to_numpy(), rows["j"].to_numpy()
    _, first, pair = np.unique(i * len(hosts) + j, return_index=True, return_inverse=True)
    member = members["host"].to_numpy()
    return Observations(
        hosts=hosts,
        base_ns=base,
        observed=observed,
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


def _after_step(host: str, time: str, stepped: int, since: int, number: int) -> pl.Expr:
    """The column `host` with `number` for `stepped` from the `time` on, in place of an earlier step's."""
    return pl.when((pl.col(f"{host}_0") == stepped) & (pl.col(time) >= since)).then(number).otherwise(host).alias(host)


def _between(messages: pl.DataFrame, host_of_rank: pl.DataFrame, kind: int) -> pl.DataFrame:
    """Messages between different hosts with both ends known: i, j, lo, hi (host indices), sent, received (ns)."""
    complete = messages.select("src_rank", "dst_rank", sent="send_end_ns", received="recv_end_ns").drop_nulls()
    return (
        with_hosts(complete, host_of_rank)
        .rename({"src_host": "i", "dst_host": "j"})
        .filter(pl.col("i") != pl.col("j"))
        .with_columns(lo=pl.min_horizontal("i", "j"), hi=pl.max_horizontal("i", "j"), kind=pl.lit(kind, pl.Int64))
    )


def _bases(count: int, rows: pl.DataFrame, members: pl.DataFrame) -> tuple[Ints, NDArray[np.bool_]]:
    """The first time of each host, and which hosts have one."""
    base = np.full(count, np.iinfo(np.int64).max)
    ends = ((rows, "i", "sent"), (rows, "j", "received"), (members, "host", "start_ns"))
    for frame, host, time in ends:
        firsts = frame.group_by(host).agg(pl.col(time).min())
        np.minimum.at(base, firsts[host].to_numpy(), firsts[time].to_numpy())
    observed = base != np.iinfo(np.int64).max
    return np.where(observed, base, 0), observed


def _events(collectives: pl.DataFrame, host_of_rank: pl.DataFrame) -> pl.DataFrame:
    """The members of collectives that span hosts: host, event, start_ns, end_ns, sorted by event and rank.

    Members are matched by (group, op, sequence number), which `pipeline.collectives` makes the same for all of them.
    One whose end cannot be says nothing (`_with_possible_ends`).
    """
    rows = (
        collectives.filter(pl.col("start_ns").is_not_null() & pl.col("end_ns").is_not_null())
        .join(host_of_rank, on="rank")
        .with_columns(pl.col("group").fill_null(""), pl.col("op").fill_null(""))
        .filter((pl.col("host").n_unique() > 1).over("group", "op"))
    )
    if rows.is_empty():
        return rows.select("host", pl.lit(0, pl.Int64).alias("event"), "start_ns", "end_ns").clear()
    rows = _with_possible_ends(rows)
    key = ["group", "op", "sequence"]
    return (
        rows.unique([*key, "rank"], keep="none")
        .filter((pl.col("host").n_unique() > 1).over(key))
        .with_columns(event=pl.struct(key).rank("dense").cast(pl.Int64) - 1)
        .sort("event", "rank")
        .select("host", "event", "start_ns", "end_ns")
    )


def _with_possible_ends(collectives: pl.DataFrame) -> pl.DataFrame:
    """The members but for those that take LONG times as long as all others of their rank and kind, and end after its
    next one began, or, as the last, take longer than all that the rank did before: their end is a wrong record, which
    would be taken for a drift.

    Example: a rank begins all-reduces at 0, 50 and 100 ms that last 2 ms, and the first is said to end at 3 s.
    """
    kind = ["rank", "group", "op"]
    length, two = pl.col("end_ns") - pl.col("start_ns"), pl.col("length").top_k(2)
    rows = collectives.with_columns(length=length)
    odd = rows.group_by(kind).agg(longest=two.max(), usual=two.min(), number=pl.len()).filter(
        pl.col("number") > 1, pl.col("longest") > LONG * pl.max_horizontal("usual", OVERLAP_NS)
    )  # fmt: skip
    if odd.is_empty():
        return collectives
    begun = rows.group_by("rank").agg(begun=pl.col("start_ns").min())
    rows = rows.join(odd, on=kind, how="left").join(begun, on="rank").sort("start_ns")
    following = pl.col("start_ns").shift(-1).over(kind)
    past = pl.col("end_ns") - following > OVERLAP_NS
    last = following.is_null() & (pl.col("length") > pl.col("start_ns") - pl.col("begun"))
    wrong = (pl.col("length") == pl.col("longest")) & (past | last)
    return rows.filter(~wrong.fill_null(False)).select(collectives.columns)
