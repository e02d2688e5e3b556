"""Which block feeds which: the way of each micro-batch through the stages, forward and back."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from trace_export.model import Placement, Profile
from trace_export.pipeline.stages import chunk_placement
from trace_export.schedules.schedule import virtual_stage

EDGES = {"src": pl.UInt32(), "dst": pl.UInt32(), "direction": pl.String()}


def block_edges(profile: Profile) -> pl.DataFrame:
    """src, dst (rows of `spans`), direction (F or B): the producing and the consuming block of each micro-batch.

    A forward feeds the forward of the next virtual stage, a backward the backward of the one before, within one
    replica and step. Blocks without a micro-batch have no edges; where a stage was not read, the chain has a gap.
    Needs ranks.stage (`topology.resolve`). O(n log n) in the number of blocks.
    """
    places = replicas(profile.ranks)
    halves = _halves(profile.spans).filter(pl.col("rank").is_in(places["rank"].implode()))
    if halves.is_empty():
        return pl.DataFrame(schema=EDGES)
    row, forward = halves["row"].to_numpy(), halves["forward"].to_numpy()
    key = _keys(halves, places, chunk_placement(profile))
    # Blocks one virtual stage apart have keys one apart, so neighbours in order of the key are the edges.
    order = np.argsort(key, kind="stable")
    near, far = order[:-1], order[1:]
    linked = key[far] == key[near] + 1
    near, far = near[linked], far[linked]
    onward = forward[near]
    return pl.DataFrame(
        {
            "src": row[np.where(onward, near, far)],
            "dst": row[np.where(onward, far, near)],
            "direction": pl.select(pl.when(pl.Series(onward)).then(pl.lit("F")).otherwise(pl.lit("B"))).to_series(),
        },
        schema=EDGES,
    )


def back_in_time(edges: pl.DataFrame, spans: pl.DataFrame) -> pl.Series:
    """Which `edges` lead to a block that starts no later than the one that feeds it, as on clocks that disagree."""
    starts = spans["start_ns"]
    return starts.gather(edges["dst"]) <= starts.gather(edges["src"])


def _halves(spans: pl.DataFrame) -> pl.DataFrame:
    """A row per forward and per backward (an overlapped pair has both) with its row in `spans`."""
    rows = spans.with_row_index("row").with_columns(pl.col("run", "step", "chunk", "chunk_b").fill_null(0))
    common = ["row", "rank", "run", "step"]
    forward = rows.filter(pl.col("kind").is_in(["F", "FB"])).select(*common, "microbatch", "chunk", forward=True)
    back = rows.filter(pl.col("kind") == "B").select(*common, "microbatch", "chunk", forward=False)
    pair = rows.filter(pl.col("kind") == "FB").select(
        *common, pl.col("microbatch_b").alias("microbatch"), pl.col("chunk_b").alias("chunk"), forward=False
    )
    return pl.concat([forward, back, pair]).drop_nulls("microbatch")


def replicas(ranks: pl.DataFrame) -> pl.DataFrame:
    """rank, stage, replica, sorted by rank: ranks with the same replica form one pipeline, one rank per stage."""
    places = ranks.drop_nulls("stage").with_columns(pl.col("dp", "tp", "cp").fill_null(0)).sort("rank")
    # Where the data do not tell replicas apart, the ranks of a stage are numbered in order.
    numbered = places.with_columns(same=pl.int_range(pl.len()).over("stage", "dp", "tp", "cp"))
    return numbered.select("rank", "stage", replica=pl.struct("dp", "tp", "cp", "same").rank("dense").cast(pl.Int64))


def _keys(halves: pl.DataFrame, places: pl.DataFrame, placement: Placement) -> npt.NDArray[np.int64]:
    """One number for (direction, step, replica, copy of the model, micro-batch, virtual stage) of each half.

    Numbers in between are left free, so that a last virtual stage is never one below the first of something else.
    """
    here = np.searchsorted(places["rank"].to_numpy(), halves["rank"].to_numpy())
    stage, replica = (places[c].to_numpy().astype(np.int64)[here] for c in ("stage", "replica"))
    chunk = halves["chunk"].to_numpy().astype(np.int64)
    stages = int(places["stage"].to_numpy().max()) + 1
    parts = [halves[c].to_numpy().astype(np.int64) for c in ("forward", "run", "step")]
    parts += [replica, chunk if placement == "both" else np.zeros_like(chunk)]
    parts += [halves["microbatch"].to_numpy().astype(np.int64), virtual_stage(placement, stages, chunk, stage)]
    key = np.zeros_like(chunk)
    for part in parts:
        least = part.min()
        key = key * (part.max() - least + 2) + (part - least)
    return key
