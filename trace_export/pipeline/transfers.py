"""What the source of a point-to-point transfer leaves out: which block it belongs to, and who is on its other side."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trace_export.model import INT, P2P, Profile, conform
from trace_export.schedules.schedule import virtual_stage
from trace_export.tolerances import GRID_NS

LABELS = ("direction", "microbatch", "chunk")


def name_peers(profile: Profile) -> Profile:
    """`profile` with `p2p.peer` where the source says its number in the group: the rank that has this number in any
    source. A number that two ranks claim is nobody's."""
    names = profile.members.unique(["group", "member"], keep="none").rename({"rank": "named"})
    if names.is_empty():
        return profile
    found = profile.p2p.join(names, on=["group", "member"], how="left", maintain_order="left")
    return replace(profile, p2p=conform(found.with_columns(peer=pl.coalesce("peer", "named")), P2P))


def label(profile: Profile) -> Profile:
    """`profile` with `p2p.direction`, microbatch and chunk for transfers that lack both direction and peer.

    What a rank sends is the result of the forward or backward that ended last before; what it receives is the input of
    the one that starts next, of those that give or take anything. Transfers that do both, and ranks with overlapped
    pairs, are left as they are.
    """
    rows = profile.p2p.with_row_index("row")
    pairs = profile.spans.filter(pl.col("kind") == "FB").select("rank").unique()
    silent = rows.filter(pl.col("peer").is_null() & pl.col("direction").is_null()).join(pairs, on="rank", how="anti")
    if silent.is_empty():
        return profile
    blocks = profile.spans.filter(pl.col("kind").is_in(["F", "B"])).join(
        profile.ranks.select("rank", "stage"), on="rank", how="left"
    )
    stages = pl.col("stage").max() + 1 if profile.declared.pp is None else pl.lit(profile.declared.pp)
    first, last = pl.col("stage") == 0, pl.col("stage") == stages - 1
    ends = first | last if (blocks["chunk"].fill_null(0) == 0).all() else pl.lit(False)
    # The ends of a pipeline of one chunk: no activations come to the first stage, no gradients to the last.
    takes = pl.when(ends & first).then(pl.col("kind") == "B").when(ends & last).then(pl.col("kind") == "F")
    gives = pl.when(ends & last).then(pl.col("kind") == "B").when(ends & first).then(pl.col("kind") == "F")
    parts = []
    for role, own, theirs, strategy, passes in (
        ("send", "start_ns", pl.col("end_ns") - GRID_NS, "backward", gives),
        ("recv", "end_ns", pl.col("start_ns") + GRID_NS, "forward", takes),
    ):
        at = blocks.filter(passes.otherwise(True)).select(
            "rank", "microbatch", "chunk", direction="kind", at=theirs
        ).sort("at")  # fmt: skip
        side = silent.filter(pl.col("role") == role).select("row", "rank", at=own).sort("at")
        met = side.join_asof(at, on="at", by="rank", strategy=strategy, check_sortedness=False)  # type: ignore[arg-type]
        parts.append(met.select("row", *LABELS))
    found = rows.join(pl.concat(parts), on="row", how="left", suffix="_found", maintain_order="left")
    filled = found.with_columns(pl.coalesce(name, f"{name}_found").alias(name) for name in LABELS)
    return replace(profile, p2p=conform(filled, P2P))


def find_peers(profile: Profile) -> Profile:
    """`profile` with `p2p.peer` where role and direction are known: activations go to the next virtual stage of the
    same replica, gradients to the one before.

    Such a transfer bears the chunk that receives it, so that both sides name the same. Needs the stage and replica of
    `ranks` and `Profile.interpretation`.
    """
    rows = profile.p2p.with_row_index("row")
    silent = rows.filter(pl.col("peer").is_null(), pl.col("direction").is_not_null(), pl.col("role") != "both")
    if silent.is_empty():
        return profile
    places = _virtual_stages(profile)
    onward = (pl.col("role") == "send") == (pl.col("direction") == "F")
    here = silent.with_columns(recorded=pl.col("chunk"), chunk=pl.col("chunk").fill_null(0)).join(
        places, on=["rank", "chunk"]
    )
    there = places.select("replica", "copy", other="virtual", found="rank", its_chunk="chunk")
    met = here.with_columns(other=pl.col("virtual") + pl.when(onward).then(1).otherwise(-1)).join(
        there, on=["replica", "copy", "other"]
    )
    receiving = pl.when(pl.col("role") == "send").then("its_chunk").otherwise("chunk")
    met = met.select("row", "found", receiving=pl.when(pl.col("recorded").is_not_null()).then(receiving))
    filled = rows.join(met, on="row", how="left", maintain_order="left").with_columns(
        peer=pl.coalesce("peer", "found"), chunk=pl.coalesce("receiving", "chunk")
    )
    return replace(profile, p2p=conform(filled, P2P))


def _virtual_stages(profile: Profile) -> pl.DataFrame:
    """rank, replica, chunk, virtual (its stage along the way of the data), copy of the model, of all chunks in use."""
    placement = profile.interpreted.placement
    first = pl.Series("chunk", [0], INT)  # that of a transfer which names none
    chunks = pl.concat([first, profile.spans["chunk"], profile.p2p["chunk"]]).drop_nulls().unique().to_frame()
    stages = profile.ranks["stage"].n_unique()
    stage, chunk = (pl.col(c).cast(pl.Int64) for c in ("stage", "chunk"))
    return (
        profile.ranks.select("rank", "stage", "replica")
        .drop_nulls()
        .join(chunks, how="cross")
        .with_columns(
            virtual=virtual_stage(placement, stages, chunk, stage),
            copy=pl.col("chunk") if placement == "both" else pl.lit(0, pl.Int32),
        )
    )
