"""Split hosts whose ranks do not share a clock: machines (or containers) of one name."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trace_export.clocks.observations import hosts_of_ranks, with_hosts
from trace_export.model import HOSTS, Note, Profile, conform
from trace_export.selection import Numbers
from trace_export.tolerances import SAME_CLOCK_NS, STEADY_NS

IMPOSSIBLE_SHARE = 0.25
"""Single messages that were paired wrongly do not explain a larger share of impossible messages."""


def by_clock(profile: Profile) -> Profile:
    """`profile` with each host split whose ranks' messages contradict one common clock, and a note for each. The tool
    that recorded every operation has aligned the clocks itself, so its times stay.

    Ranks stay on one host if messages without contradiction join them. A rank without messages inside the host goes
    with the previous rank.
    """
    links = _links(profile)
    wrong = links.filter("contradicts")
    if wrong.is_empty():
        return profile
    if profile.declared.every_operation:
        parts = ", ".join(wrong["host"].unique().sort())
        text = f"clock of {parts}: its ranks contradict each other; the times are kept as the table has them"
        return profile.with_notes([Note("clock-kept", "note", text)])
    ranks, hosts, notes = profile.ranks, profile.hosts, []
    for host in wrong["host"].unique().sort():
        here = ranks.filter(pl.col("host") == host)["rank"].unique().sort()
        names = _names(host, here, _parts(here, links.filter(pl.col("host") == host)))
        moved = pl.DataFrame({"rank": here, "part": names})
        ranks = (
            ranks.join(moved, on="rank", how="left", maintain_order="left")
            .with_columns(host=pl.coalesce("part", "host"))
            .drop("part")
        )
        hosts = _renamed(hosts, host, names)
        parts = ", ".join(dict.fromkeys(names))
        text = f"clock of {host}: its ranks contradict each other, treated as several machines: {parts}"
        notes.append(Note("clock-host-split", "warning", text))
    return replace(profile, ranks=ranks, hosts=hosts).with_notes(notes)


def _links(profile: Profile) -> pl.DataFrame:
    """The pairs of ranks of one host that exchange messages: host, a, b, contradicts.

    They contradict each other where many messages arrive before they were sent, or where most arrive steadily before
    their sender had finished (a sender that waits for something else varies), while the round trip is not negative:
    messages that were paired wrongly do not look like that.
    """
    delay = pl.col("recv_end_ns") - pl.col("send_end_ns")
    impossible = pl.col("recv_end_ns") < pl.col("send_start_ns") - SAME_CLOCK_NS
    steady = (delay.median() < -SAME_CLOCK_NS) & (delay.quantile(0.75) - delay.quantile(0.25) < STEADY_NS)
    directions = (
        with_hosts(profile.messages, hosts_of_ranks(profile.ranks))
        .filter(pl.col("src_host") == pl.col("dst_host"))
        .group_by("src_rank", "dst_rank", host="src_host")
        .agg(contradicts=(pl.len() >= 3) & ((impossible.mean() > IMPOSSIBLE_SHARE) | steady), low=delay.quantile(0.05))
    )
    return (
        directions.with_columns(
            a=pl.min_horizontal("src_rank", "dst_rank"), b=pl.max_horizontal("src_rank", "dst_rank")
        )
        .group_by("host", "a", "b")
        .agg(pl.col("contradicts").any() & (pl.len() == 2) & (pl.col("low").sum() > -SAME_CLOCK_NS))
        .sort("host", "a", "b")
    )


def _parts(ranks: pl.Series, links: pl.DataFrame) -> list[int]:
    """A number per rank; ranks of one number share a clock. If agreeing ranks lead to a contradiction, each is
    alone."""
    at = {rank: index for index, rank in enumerate(ranks)}
    a, b, wrong = (links[c].to_list() for c in ("a", "b", "contradicts"))
    label = list(range(len(ranks)))
    for x, y, w in zip(a, b, wrong, strict=True):
        if not w:
            one, other = label[at[x]], label[at[y]]
            label = [one if part == other else part for part in label]
    if any(label[at[x]] == label[at[y]] for x, y, w in zip(a, b, wrong, strict=True) if w):
        label = list(range(len(ranks)))
    linked = set(a) | set(b)
    for index, rank in enumerate(ranks):
        if rank not in linked and index:
            label[index] = label[index - 1]
    return label


def _names(host: str, ranks: pl.Series, parts: list[int]) -> list[str]:
    members: dict[int, list[int]] = {}
    for rank, part in zip(ranks, parts, strict=True):
        members.setdefault(part, []).append(rank)
    word = {part: f"{host} ({Numbers.of(each).named('rank')})" for part, each in members.items()}
    return [word[part] for part in parts]


def _renamed(hosts: pl.DataFrame, host: str, names: list[str]) -> pl.DataFrame:
    """The table of hosts with a row for each part in place of `host`, machines numbered anew."""
    parts = pl.DataFrame({"host": [host], "part": [list(dict.fromkeys(names))]})
    rows = hosts.join(parts, on="host", how="left", maintain_order="left").explode("part")
    return conform(
        rows.with_columns(
            host=pl.coalesce("part", "host"), label=pl.coalesce("part", "label"), machine=pl.int_range(pl.len())
        ),
        HOSTS,
    )
