"""Clocks in two levels: the hosts of each replica by its messages, the replicas among each other by collectives.

Replicas exchange nothing but gradients. So each is aligned by itself (`align`), and its common axis is a single unknown
clock of the second level, whose observations are the collectives that several replicas take part in. The system has as
many unknowns as there are replicas, instead of hosts.
"""

from __future__ import annotations

import polars as pl

from trace_export.clocks import apply
from trace_export.clocks.fit import fit_clocks
from trace_export.model import CLOCKS, COLLECTIVES, MESSAGES, RANKS, TEXT, TIME, Profile, Schema, conform, empty

ENDS: Schema = {"axis": TEXT, "group": TEXT, "op": TEXT, "sequence": TIME, "start_ns": TIME, "end_ns": TIME}
"""The members of a collective on one axis, in the times of that axis."""
ALIGNED = ("fitted", "confirmed", "single-host")
"""The status of hosts whose axis is not placed yet; the others were placed by the user."""
MOST_OF_GROUP = 64
"""At most this many collectives of a group are kept: every second, fourth … by sequence number, so that all replicas
keep the same ones."""


def axes(clocks: pl.DataFrame, name: str) -> pl.DataFrame:
    """host, axis: the common axis of each host of `clocks` (`CLOCKS`), as text that begins with `name`. A host that
    nothing constrains has an axis for itself; all hosts that the user placed are on the axis ""."""
    component = pl.col("component").fill_null(0).cast(TEXT)
    axis = (
        pl.when(pl.col("status").is_in(ALIGNED)).then(pl.format("{}.{}", pl.lit(name), component))
        .when((pl.col("status") == "wall") & pl.lit(clocks["status"].is_in(ALIGNED).any()))
        .then(pl.format("{} {}", pl.lit(name), "host"))
        .otherwise(pl.lit(""))
    )  # fmt: skip
    return clocks.select("host", axis=axis)


def shared_ends(profile: Profile, axis_of_host: pl.DataFrame) -> pl.DataFrame:
    """The collectives (`ENDS`) of an aligned `profile` that reach beyond its replicas: of each replica a single rank is
    in their group. `axis_of_host` as from `axes`. Where a group has no sequence numbers they are counted."""
    ranks = profile.ranks.join(axis_of_host, on="host").select("rank", "axis", replica=pl.col("dp").fill_null(0))
    position = pl.int_range(pl.len(), dtype=TIME).over("group", "op", "rank", order_by=["start_ns", "end_ns"])
    numbered = pl.col("sequence").is_not_null().all().over("group", "op")
    rows = profile.collectives.drop_nulls(["group", "start_ns", "end_ns"]).join(ranks, on="rank")
    rows = rows.with_columns(sequence=pl.when(numbered).then("sequence").otherwise(position))
    alone = pl.col("rank").n_unique().over("group") == pl.struct("axis", "replica").n_unique().over("group")
    crowd = pl.col("sequence").n_unique().over("group", "op") / MOST_OF_GROUP
    stride = 2 ** crowd.clip(lower_bound=1).log(2).ceil().cast(TIME)
    kept = rows.filter(alone).filter(pl.col("sequence") % stride == 0)
    ends = kept.group_by("axis", "group", "op", "sequence").agg(pl.col("start_ns").max(), pl.col("end_ns").max())
    return conform(ends.sort("axis", "group", "op", "sequence"), ENDS)


def fit_axes(ends: pl.DataFrame) -> pl.DataFrame:
    """The correction (`CLOCKS`, with the axis as `host`) of every axis in `ends` (`ENDS`)."""
    if ends.is_empty():
        return empty(CLOCKS)
    names = ends["axis"].unique().sort()
    ranks = conform(pl.DataFrame({"host": names}).with_row_index("rank"), RANKS)
    members = ends.join(ranks.select("rank", axis="host"), on="axis", maintain_order="left")
    return fit_clocks(empty(MESSAGES), conform(members, COLLECTIVES), ranks).clocks


def combined(hosts: pl.DataFrame, placed: pl.DataFrame) -> pl.DataFrame:
    """`hosts` (`CLOCKS` and `axis`, each corrected to its axis) corrected to the axis that all share, by `placed`, the
    corrections of the axes as `fit_axes` gives them. The errors of both levels add up. Of a clock that was set only the
    time before is kept; a note says when it was."""
    second = placed.select("offset_ns", "drift", "reference_ns", "sd_ns", "bound_ns", axis="host")
    both = hosts.join(second, on="axis", how="left", suffix="_2", maintain_order="left")
    on_axis = pl.col("reference_ns") - pl.col("offset_ns")
    moved = pl.col("offset_ns_2") + (pl.col("drift_2") * (on_axis - pl.col("reference_ns_2"))).round().cast(TIME)
    is_placed = pl.col("offset_ns_2").is_not_null()
    total = both.with_columns(
        offset_ns=pl.when(is_placed).then(pl.col("offset_ns") + moved).otherwise("offset_ns"),
        drift=pl.when(is_placed)
        .then(pl.col("drift") + pl.col("drift_2") - pl.col("drift") * pl.col("drift_2"))
        .otherwise("drift"),
        sd_ns=pl.when(is_placed)
        .then((pl.col("sd_ns").fill_null(0) ** 2 + pl.col("sd_ns_2") ** 2).sqrt())
        .otherwise("sd_ns"),
        bound_ns=pl.when(is_placed).then(pl.col("bound_ns").fill_null(0) + pl.col("bound_ns_2")).otherwise("bound_ns"),
    )
    return total.with_columns(steps=pl.lit(None, CLOCKS["steps"])).select(*CLOCKS, "axis")


def on_shared_axis(times: pl.DataFrame, columns: list[str], placed: pl.DataFrame) -> pl.DataFrame:
    """`times` with the time `columns`, which are those of the column `axis`, on the axis that all share."""
    second = placed.select("offset_ns", "drift", "reference_ns", axis="host")
    joined = times.join(second, on="axis", how="left", maintain_order="left")
    clock = [pl.col(name).fill_null(0) for name in apply.CLOCK]
    return joined.with_columns(apply.corrected_time(pl.col(c), *clock) for c in columns).select(times.columns)
