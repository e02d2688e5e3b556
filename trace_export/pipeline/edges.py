"""Dependencies between blocks: the way of each micro-batch through the stages, forward and backward."""

from __future__ import annotations

import polars as pl

from trace_export.model import EDGES, STEP_KEY, Placement, Profile
from trace_export.ordering import only, ordered, repeated, stretches
from trace_export.schedules.data_edges import data_edges
from trace_export.schedules.schedule import virtual_stage


def pass_edges(passes: pl.DataFrame, stages: int, placement: Placement) -> pl.DataFrame:
    """The dependencies (`EDGES`): the producing and the consuming pass of each micro-batch.

    The forward of the next virtual stage depends on a forward, the backward of the one before on a backward, within one
    replica and step. A pass that was recorded as several blocks takes its input in the earliest and gives its result in
    the latest. Passes without a micro-batch have no edges; if a stage was not read, the chain has a gap. `passes` has
    the schema `PASSES`, of a pipeline of this many `stages`. O(n log n) in their number.
    """
    placed = pl.all_horizontal(pl.col("microbatch", "stage", "replica").is_not_null())
    columns = ["id", "rank", "stage", "replica", *STEP_KEY, "kind", "microbatch", "chunk", "start_ns"]
    linked = only(passes.select(columns), (pl.col("kind") != "W") & placed)
    if linked.is_empty():
        return pl.DataFrame(schema=EDGES)
    linked = ordered(linked.with_columns(pl.col(STEP_KEY).fill_null(0)), "rank", "start_ns")
    lanes = stretches(linked, *STEP_KEY, "replica")
    pipeline = lanes.select(pl.struct(*STEP_KEY, "replica").rank("dense").cast(pl.Int64)).to_series()
    step, forward = repeated(pipeline, lanes["len"]).to_numpy(), (linked["kind"] == "F").to_numpy()
    microbatch, chunk, stage = (linked[c].cast(pl.Int64).to_numpy() for c in ("microbatch", "chunk", "stage"))
    copy = [chunk] if placement == "both" else []
    src, dst = data_edges(forward, [step, microbatch, *copy], virtual_stage(placement, stages, chunk, stage))
    onward = pl.Series(forward[src])
    direction = pl.select(pl.when(onward).then(pl.lit("F")).otherwise(pl.lit("B"))).to_series()
    identity = linked["id"]
    return pl.DataFrame(
        {"src": identity.gather(src), "dst": identity.gather(dst), "direction": direction}, schema=EDGES
    )


def drawable_edges(profile: Profile) -> tuple[pl.DataFrame, int]:
    """The edges whose consumer starts after its producer, between blocks that the profile still has (src, dst: their
    `SPANS.id`; direction); and the number of edges that point backwards in time, because clocks disagree. Needs
    `Profile.interpretation`."""
    rows = profile.edge_rows()
    starts = profile.spans["start_ns"]
    later = starts.gather(rows["dst"]) > starts.gather(rows["src"])
    kept = rows.filter(later).select("src", "dst", "direction")
    identity = profile.spans["id"]
    edges = kept.with_columns(identity.gather(kept[end]).alias(end) for end in ("src", "dst"))
    return edges, rows.height - kept.height
