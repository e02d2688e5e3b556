"""Dependencies between blocks: each micro-batch's way through the stages, forward and backward."""

from __future__ import annotations

import numpy as np
import polars as pl

from trace_export.model import EDGES, STEP_KEY, Placement, Profile
from trace_export.ordering import repeated, stretches
from trace_export.schedules.data_edges import data_edges
from trace_export.schedules.schedule import virtual_stage


def block_edges(profile: Profile, placement: Placement) -> pl.DataFrame:
    """The dependencies (`EDGES`): the producing and the consuming block of each micro-batch.

    The forward of the next virtual stage depends on a forward, the backward of the one before on a backward, within one
    replica and step. Blocks without a micro-batch have no edges; where a stage was not read, the chain has a gap.
    Needs `spans.id` and the stage and replica of `ranks`. O(n log n) in the number of blocks.
    """
    places = profile.ranks.select("rank", "stage", "replica").drop_nulls()
    halves = _halves(profile.spans)
    lanes = stretches(halves, "rank", *STEP_KEY).join(places, on="rank", how="left", maintain_order="left")
    placed = lanes["stage"].is_not_null()
    if not placed.all():
        halves, lanes = halves.filter(repeated(placed, lanes["len"])), lanes.filter(placed)
    if halves.is_empty():
        return pl.DataFrame(schema=EDGES)
    identity, forward = halves["id"].to_numpy(), halves["forward"].to_numpy()
    microbatch, chunk = (halves[c].to_numpy().astype(np.int64) for c in ("microbatch", "chunk"))
    pipeline = lanes.select(pl.struct(*STEP_KEY, "replica").rank("dense")).to_series()
    step, stage = (repeated(each.cast(pl.Int64), lanes["len"]).to_numpy() for each in (pipeline, lanes["stage"]))
    copy = [chunk] if placement == "both" else []
    stages = int(places["stage"].to_numpy().max()) + 1
    src, dst = data_edges(forward, [step, microbatch, *copy], virtual_stage(placement, stages, chunk, stage))
    onward = pl.Series(forward[src])
    direction = pl.select(pl.when(onward).then(pl.lit("F")).otherwise(pl.lit("B"))).to_series()
    return pl.DataFrame({"src": identity[src], "dst": identity[dst], "direction": direction}, schema=EDGES)


def drawable_edges(profile: Profile) -> tuple[pl.DataFrame, int]:
    """The edges (`EDGES`) whose consumer starts after its producer, of blocks that the profile still has; and how many
    point backwards in time, as on clocks that disagree. Needs `Profile.interpretation`."""
    rows = profile.edge_rows()
    starts = profile.spans["start_ns"]
    later = starts.gather(rows["dst"]) > starts.gather(rows["src"])
    kept = rows.filter(later)
    identity = profile.spans["id"]
    edges = kept.with_columns(identity.gather(kept[end]).alias(end) for end in ("src", "dst"))
    return edges, rows.height - kept.height


def _halves(spans: pl.DataFrame) -> pl.DataFrame:
    """A row per forward and per backward (an overlapped pair has both): id, rank, run, step, microbatch, chunk,
    forward."""
    common = ["id", "rank", *STEP_KEY]
    rows = spans.select(*common, "kind", "microbatch", "chunk", "microbatch_b", "chunk_b")
    rows = rows.with_columns(pl.col(*STEP_KEY, "chunk", "chunk_b").fill_null(0))
    forward = rows.filter(pl.col("kind").is_in(["F", "FB"])).select(*common, "microbatch", "chunk", forward=True)
    back = rows.filter(pl.col("kind") == "B").select(*common, "microbatch", "chunk", forward=False)
    pair = rows.filter(pl.col("kind") == "FB").select(
        *common, pl.col("microbatch_b").alias("microbatch"), pl.col("chunk_b").alias("chunk"), forward=False
    )
    return pl.concat([forward, back, pair]).drop_nulls("microbatch")
