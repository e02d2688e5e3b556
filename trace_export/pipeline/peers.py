"""Who is on the other side of a transfer whose source names only its direction: `fill(profile) -> Profile`."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trace_export.model import P2P, Profile, conform
from trace_export.pipeline.edges import replicas
from trace_export.pipeline.stages import chunk_placement
from trace_export.schedules.schedule import virtual_stage


def fill(profile: Profile) -> Profile:
    """`profile` with `p2p.peer` where role and direction are known: activations go to the next virtual stage of the
    same replica, gradients to the one before.

    Such a transfer bears the chunk that receives it, so that both sides name the same. Needs ranks.stage.
    """
    rows = profile.p2p.with_row_index("row")
    silent = rows.filter(pl.col("peer").is_null(), pl.col("direction").is_not_null(), pl.col("role") != "both")
    if silent.is_empty():
        return profile
    places = _places(profile)
    onward = (pl.col("role") == "send") == (pl.col("direction") == "F")
    here = silent.with_columns(told=pl.col("chunk"), chunk=pl.col("chunk").fill_null(0)).join(
        places, on=["rank", "chunk"]
    )
    there = places.select("replica", "copy", other="virtual", found="rank", its_chunk="chunk")
    met = here.with_columns(other=pl.col("virtual") + pl.when(onward).then(1).otherwise(-1)).join(
        there, on=["replica", "copy", "other"]
    )
    receiving = pl.when(pl.col("role") == "send").then("its_chunk").otherwise("chunk")
    met = met.select("row", "found", receiving=pl.when(pl.col("told").is_not_null()).then(receiving))
    filled = rows.join(met, on="row", how="left", maintain_order="left").with_columns(
        peer=pl.coalesce("peer", "found"), chunk=pl.coalesce("receiving", "chunk")
    )
    return replace(profile, p2p=conform(filled, P2P))


def _places(profile: Profile) -> pl.DataFrame:
    """rank, replica, chunk, virtual (its stage along the way of the data), copy of the model, of all chunks in use."""
    placement = chunk_placement(profile)
    used = pl.concat([profile.spans["chunk"], profile.p2p["chunk"]]).drop_nulls().to_numpy()
    chunks = pl.DataFrame({"chunk": range(int(used.max()) + 1 if len(used) else 1)}, schema={"chunk": pl.Int32})
    stages = profile.ranks["stage"].n_unique()
    stage, chunk = (pl.col(c).cast(pl.Int64) for c in ("stage", "chunk"))
    return (
        replicas(profile.ranks)
        .join(chunks, how="cross")
        .with_columns(
            virtual=virtual_stage(placement, stages, chunk, stage),
            copy=pl.col("chunk") if placement == "both" else pl.lit(0, pl.Int32),
        )
    )
