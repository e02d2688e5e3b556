"""Which block a point-to-point transfer belongs to, where the source knows neither that nor the other side."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trace_export.model import P2P, Profile, conform

NAMES = ("direction", "microbatch", "chunk")


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
        ("send", "start_ns", "end_ns", "backward", gives), ("recv", "end_ns", "start_ns", "forward", takes)
    ):  # fmt: skip
        at = blocks.filter(passes.otherwise(True)).select(
            "rank", "microbatch", "chunk", direction="kind", at=theirs
        ).sort("at")  # fmt: skip
        side = silent.filter(pl.col("role") == role).select("row", "rank", at=own).sort("at")
        met = side.join_asof(at, on="at", by="rank", strategy=strategy, check_sortedness=False)  # type: ignore[arg-type]
        parts.append(met.select("row", *NAMES))
    found = rows.join(pl.concat(parts), on="row", how="left", suffix="_found", maintain_order="left")
    filled = found.with_columns(pl.coalesce(name, f"{name}_found").alias(name) for name in NAMES)
    return replace(profile, p2p=conform(filled, P2P))
