"""The pipeline to which a rank belongs, if there are several: its number among the replicas of its stage."""

from __future__ import annotations

import polars as pl

from trace_export.model import INT, Note
from trace_export.pipeline import work_shape

PLACE_COLUMNS = ["stage", "dp", "tp", "cp"]

START_TOGETHER = 0.01
"""Two ranks of a stage are tensor-parallel peers when nine in ten of their blocks start within this part of a block's
length of each other: replicas start a step together too, but drift apart in it."""
MOSTLY = 0.6
"""At least this share of the ranks are in groups of the common size: a slow rank may start blocks after its peers."""


def number_replicas(ranks: pl.DataFrame) -> pl.DataFrame:
    """`ranks` (schema `RANKS`) with `replica`: ranks with the same number form a pipeline, one rank per stage.

    They agree in dp, tp and cp; if the data do not distinguish them, the ranks of a stage are numbered in order. Null
    for ranks without a stage.
    """
    key = ["dp", "tp", "cp"]
    places = ranks.select("rank", "stage", *key).drop_nulls("stage").with_columns(pl.col(key).fill_null(0)).sort("rank")
    numbered = places.with_columns(same=pl.int_range(pl.len()).over("stage", *key)).select(
        "rank", replica=pl.struct(*key, "same").rank("dense").cast(INT) - 1
    )
    joined = ranks.drop("replica").join(numbered, on="rank", how="left", maintain_order="left")
    return joined.select(ranks.columns)


def data_parallel(ranks: pl.DataFrame) -> pl.DataFrame:
    """rank, replica: the data-parallel replica of each of `ranks` (schema `RANKS`), whose tensor- and context-parallel
    peers share it. Ranks of a stage that nothing tells apart are replicas in their order; an unknown stage counts as 0.
    """
    key = [pl.col(name).fill_null(0) for name in ("dp", "tp", "cp")]
    same = pl.int_range(pl.len()).over(pl.col("stage").fill_null(0), *key)
    number = pl.struct(key[0], same=same).rank("dense").cast(INT) - 1
    return ranks.sort("rank").select("rank", replica=number)


def guess_replicas(
    places: pl.DataFrame, ranks: pl.DataFrame, spans: pl.DataFrame, slots: pl.DataFrame | None = None
) -> tuple[pl.DataFrame, list[Note]]:
    """`places` (rank, stage, dp, tp, cp, origin) with dp and tp where they are not known, and a note where they were
    guessed: ranks of one stage and host with the same times are tensor-parallel peers. `slots`: rank, and its place
    among those of its stage (None: in the order of ranks)."""
    places = places.sort("stage", "rank").with_columns(pl.col(PLACE_COLUMNS).cast(INT))
    if not places.select((pl.col("dp").is_null() & pl.col("tp").is_null()).any()).item():
        return places, []
    if places["stage"].is_unique().all():
        return places.with_columns(pl.col("dp", "tp").fill_null(0)), []
    peers = places.join(ranks.select("rank", "host"), on="rank", how="left", maintain_order="left").with_columns(
        before=pl.col("rank").shift(1).over("stage", "host")
    )
    alike = _alike(peers.drop_nulls("before").select("rank", "before"), spans)
    grouped = peers.join(alike, on="rank", how="left", maintain_order="left").with_columns(
        group=(~pl.col("alike").fill_null(False)).cum_sum().over("stage") - 1
    )
    sizes = grouped.group_by("stage", "group").len().group_by("len").agg(ranks=pl.col("len").sum()).sort("ranks", "len")
    fits = (grouped.group_by("stage").len()["len"] % sizes["len"][-1] == 0).all()
    common = fits and sizes["ranks"][-1] >= MOSTLY * len(grouped)
    if slots is None:
        slots = grouped.select("rank", slot=pl.int_range(pl.len(), dtype=INT).over("stage"))
    grouped = grouped.join(slots, on="rank", how="left", maintain_order="left")
    size = sizes["len"][-1] if common else 1
    dp, tp = pl.col("slot") // size, pl.col("slot") % size
    filled = grouped.with_columns(dp=pl.coalesce("dp", dp), tp=pl.coalesce("tp", tp))
    return filled.select("rank", *PLACE_COLUMNS, "origin"), [guessed_size(size)]


def guessed_size(size: int) -> Note:
    """The note on the number of tensor-parallel peers of a rank, where nothing but the times of blocks shows it."""
    peers = "no rank has tensor-parallel peers" if size == 1 else f"{size} ranks at a time are tensor-parallel peers"
    text = f"{peers}, guessed from when the blocks of a stage start; if wrong, give --tp and --dp"
    return Note("tensor-parallel-guessed", "note", text)


def _alike(pairs: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """rank, alike: whether the rank's blocks start when those of the rank `before` do (same host, same clock)."""
    position = pl.int_range(pl.len()).over("rank")
    blocks = work_shape.sample(spans, steps=2).select("rank", "start_ns", "end_ns", position=position)
    return (
        pairs.join(blocks, on="rank")
        .join(blocks, left_on=["before", "position"], right_on=["rank", "position"], suffix="_before")
        .group_by("rank")
        .agg(
            apart=(pl.col("start_ns") - pl.col("start_ns_before")).abs().quantile(0.9),
            length=(pl.col("end_ns") - pl.col("start_ns")).median(),
        )
        .select("rank", alike=pl.col("apart") < START_TOGETHER * pl.col("length"))
    )
