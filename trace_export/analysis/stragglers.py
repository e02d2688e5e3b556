"""Stragglers: a stage compared with the other stages, a rank with its replicas, a link with similar links."""

from __future__ import annotations

import polars as pl

from trace_export.model import RANK_STEP_KEY, TEXT, WORK_KINDS, Profile
from trace_export.schedules.passes import FORWARDS

SLOW = 1.1
"""A stage or rank is slow above this multiple of its peers' median (the threshold of MegaScan, arXiv 2507.19845)."""

SLOW_LINK = 1.5
"""A link is slow above this multiple: transfers vary more than computation."""

ENOUGH = 3
"""Fewer blocks or transfers than this prove nothing."""

_LENGTH = pl.col("end_ns") - pl.col("start_ns")


def step_work(profile: Profile) -> pl.DataFrame:
    """rank, stage (null where it is not known), run, step, microbatch_ns and microbatches: the work of a rank per
    micro-batch (all its chunks), and how many micro-batches it has in the step; null where it has no forward."""
    forwards = pl.col("forwards").sum()
    some = pl.when(forwards > 0)
    return (
        profile.spans.lazy()
        .filter(pl.col("kind").is_in(WORK_KINDS))
        .group_by(*RANK_STEP_KEY, pl.col("chunk").fill_null(0))
        .agg(ns=_LENGTH.sum(), forwards=FORWARDS.sum())
        .group_by(RANK_STEP_KEY)
        .agg(
            microbatch_ns=some.then(pl.col("ns").sum() * pl.len() / forwards),
            microbatches=some.then(forwards / (pl.col("forwards") > 0).sum()),
        )
        .join(profile.ranks.lazy().select("rank", "stage"), on="rank", how="left")
        .collect()
    )


def slow_stages(work: pl.DataFrame) -> pl.DataFrame:
    """stage, ranks, microbatch_ns, ratio, slow: the work of a stage per micro-batch (the median over its ranks and
    steps), and its ratio to the median of all stages; sorted by stage. `work` as `step_work` gives it."""
    each = (
        work.drop_nulls("stage")
        .group_by("stage")
        .agg(ranks=pl.col("rank").n_unique(), microbatch_ns=pl.col("microbatch_ns").median())
        .sort("stage")
    )
    ratio = pl.col("microbatch_ns") / pl.col("microbatch_ns").median()
    return each.with_columns(ratio=ratio).with_columns(slow=(pl.col("ratio") > SLOW).fill_null(False))


def rank_work(work: pl.DataFrame) -> pl.DataFrame:
    """rank, stage, microbatch_ns: the work of each rank per micro-batch (the median over its steps). `work` as
    `step_work` gives it."""
    placed = work.drop_nulls("stage")
    return placed.group_by("rank", "stage").agg(pl.col("microbatch_ns").median()).sort("rank")


def slow_ranks(profile: Profile) -> pl.DataFrame:
    """rank, stage, kind, chunk, blocks, median_ns, peers_ns, ratio, slow: a rank's blocks beside those of the other
    ranks of its stage; sorted by (ratio, slowest first). Empty where no stage has two ranks."""
    medians = (
        profile.spans.lazy()
        .filter(pl.col("kind").is_in(WORK_KINDS))
        .select("rank", pl.col("kind").cast(pl.Enum(WORK_KINDS)), pl.col("chunk").fill_null(0), length=_LENGTH)
        .group_by("rank", "kind", "chunk")
        .agg(blocks=pl.len(), median_ns=pl.col("length").median())
        .join(profile.ranks.lazy().select("rank", "stage").drop_nulls(), on="rank")
        .select("rank", "stage", pl.col("kind").cast(TEXT), "chunk", "blocks", "median_ns")
        .collect()
    )
    peers = ["stage", "kind", "chunk"]
    return (
        medians.filter(pl.len().over(peers) > 1)
        .with_columns(peers_ns=pl.col("median_ns").median().over(peers))
        .with_columns(ratio=pl.col("median_ns") / pl.col("peers_ns"))
        .with_columns(slow=(pl.col("ratio") > SLOW) & (pl.col("blocks") >= ENOUGH))
        .sort("ratio", "rank", "kind", "chunk", descending=[True, False, False, False])
    )


def slow_links(profile: Profile, waits: pl.DataFrame) -> pl.DataFrame:
    """src_rank, dst_rank, direction, transfers, median_ns, peers_ns, ratio, gbit_s, slow; slowest first.

    A transfer lasts from when both sides are there to the end of the receive (`messages`); where there are none, from
    the making of the data to the start of the block that waited for them (`Bubbles.waits`). The peers are
    the links between the same stages, or where there is one only, all of that direction.
    """
    seconds = pl.col("length_ns") / 1e9
    transfers = profile.messages.with_columns(length_ns="wire_ns").filter(pl.col("length_ns") > 0)
    if transfers.is_empty():
        transfers = waits.with_columns(bytes=pl.lit(None, pl.Int64))
    stages = profile.ranks.lazy().select("rank", "stage")
    link = ["src_stage", "dst_stage", "direction"]
    return (
        transfers.lazy()
        .group_by("src_rank", "dst_rank", "direction")
        .agg(
            transfers=pl.len(),
            median_ns=pl.col("length_ns").median(),
            gbit_s=(pl.col("bytes") * 8 / 1e9 / seconds).median(),
        )
        .with_columns(pl.col("direction").cast(TEXT))
        .join(stages.rename({"rank": "src_rank", "stage": "src_stage"}), on="src_rank", how="left")
        .join(stages.rename({"rank": "dst_rank", "stage": "dst_stage"}), on="dst_rank", how="left")
        .with_columns(
            peers_ns=pl.when(pl.len().over(link) > 1)
            .then(pl.col("median_ns").median().over(link))
            .otherwise(pl.col("median_ns").median().over("direction"))
        )
        .with_columns(ratio=pl.when(pl.col("peers_ns") > 0).then(pl.col("median_ns") / pl.col("peers_ns")))
        .with_columns(slow=((pl.col("ratio") > SLOW_LINK) & (pl.col("transfers") >= ENOUGH)).fill_null(False))
        .select("src_rank", "dst_rank", "direction", "transfers", "median_ns", "peers_ns", "ratio", "gbit_s", "slow")
        .sort("ratio", "src_rank", "dst_rank", "direction", descending=[True, False, False, False], nulls_last=True)
        .collect()
    )
