"""Dependencies between blocks: each micro-batch's way through the stages, forward and backward."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from trace_export.model import EDGES, STEP_KEY, Placement, Profile
from trace_export.schedules.schedule import virtual_stage

Ints = npt.NDArray[np.int64]

LARGEST_KEY = 1 << 62


def block_edges(profile: Profile, placement: Placement) -> pl.DataFrame:
    """The dependencies (`EDGES`): the producing and the consuming block of each micro-batch.

    The forward of the next virtual stage depends on a forward, the backward of the one before on a backward, within one
    replica and step. Blocks without a micro-batch have no edges; where a stage was not read, the chain has a gap.
    Needs `spans.id` and the stage and replica of `ranks`. O(n log n) in the number of blocks.
    """
    places = profile.ranks.select("rank", "stage", "replica").drop_nulls()
    halves = _halves(profile.spans).join(places, on="rank", how="inner", maintain_order="left")
    if halves.is_empty():
        return pl.DataFrame(schema=EDGES)
    identity, forward = halves["id"].to_numpy(), halves["forward"].to_numpy()
    stages = int(places["stage"].to_numpy().max()) + 1
    key = _keys(halves, stages, placement)
    # Blocks one virtual stage apart have keys one apart, so neighbours in order of the key are the edges.
    order = np.argsort(key, kind="stable")
    near, far = order[:-1], order[1:]
    linked = key[far] == key[near] + 1
    near, far = near[linked], far[linked]
    onward = forward[near]
    return pl.DataFrame(
        {
            "src": identity[np.where(onward, near, far)],
            "dst": identity[np.where(onward, far, near)],
            "direction": pl.select(pl.when(pl.Series(onward)).then(pl.lit("F")).otherwise(pl.lit("B"))).to_series(),
        },
        schema=EDGES,
    )


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
    rows = spans.with_columns(pl.col(*STEP_KEY, "chunk", "chunk_b").fill_null(0))
    common = ["id", "rank", *STEP_KEY]
    forward = rows.filter(pl.col("kind").is_in(["F", "FB"])).select(*common, "microbatch", "chunk", forward=True)
    back = rows.filter(pl.col("kind") == "B").select(*common, "microbatch", "chunk", forward=False)
    pair = rows.filter(pl.col("kind") == "FB").select(
        *common, pl.col("microbatch_b").alias("microbatch"), pl.col("chunk_b").alias("chunk"), forward=False
    )
    return pl.concat([forward, back, pair]).drop_nulls("microbatch")


def _keys(halves: pl.DataFrame, stages: int, placement: Placement) -> Ints:
    """One number for (direction, step, replica, copy of the model, micro-batch, virtual stage) of each half.

    Numbers in between are left free, so that a last virtual stage is never one below the first of something else.
    """
    columns = ("forward", *STEP_KEY, "replica", "microbatch", "chunk", "stage")
    *groups, microbatch, chunk, stage = (halves[c].to_numpy().astype(np.int64) for c in columns)
    copy = chunk if placement == "both" else np.zeros_like(chunk)
    key, reach = np.zeros_like(chunk), 1
    for part in (*groups, copy, microbatch, virtual_stage(placement, stages, chunk, stage)):
        number = _close(part)
        size = int(number.max()) + 2
        if reach * size > LARGEST_KEY:  # as numbers from a damaged file may be: only equality counts so far
            distinct, key = np.unique(key, return_inverse=True)
            reach = len(distinct)
        key, reach = key * size + number, reach * size
    return key


def _close(part: Ints) -> Ints:
    """`part` counted from 0, where it is spread wide with its gaps narrowed to one number."""
    least = int(part.min())
    if int(part.max()) - least < 1 << 24:
        return part - least
    values, index = np.unique(part, return_inverse=True)
    return np.append(0, np.cumsum(np.minimum(np.diff(values), 2)))[index]
