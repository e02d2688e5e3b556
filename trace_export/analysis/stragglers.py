"""Stragglers: a stage compared with the other stages, a rank with its replicas, a link with similar links."""

from __future__ import annotations

import polars as pl

from trace_export.model import TEXT, WORK_KINDS, Profile

SLOW = 1.1
"""A stage or rank is slow above this multiple of its peers' median (the threshold of MegaScan, arXiv 2507.19845)."""

SLOW_LINK = 1.5
"""A link is slow above this multiple: transfers vary more than computation."""

ENOUGH = 3
"""Fewer blocks or transfers than this prove nothing."""

_LENGTH = pl.col("end_ns") - pl.col("start_ns")


def slow_stages(profile: Profile) -> pl.DataFrame:
    """stage, ranks, microbatch_ns, ratio, slow: the work of a stage per micro-batch (all its chunks; the median over
    its ranks and steps), and its ratio to the median of all stages; sorted by stage."""
    each = (
        _step_work(profile)
        .group_by("stage")
        .agg(ranks=pl.col("rank").n_unique(), microbatch_ns=pl.col("microbatch_ns").median())
        .sort("stage")
    )
    ratio = pl.col("microbatch_ns") / pl.col("microbatch_ns").median()
    return each.with_columns(ratio=ratio).with_columns(slow=(pl.col("ratio") > SLOW).fill_null(False))


def rank_work(profile: Profile) -> pl.DataFrame:
    """rank, stage, microbatch_ns: the work of each rank per micro-batch (all its chunks; the median over its steps)."""
    each = _step_work(profile).group_by("rank", "stage").agg(pl.col("microbatch_ns").median())
    return each.sort("rank")


def _step_work(profile: Profile) -> pl.DataFrame:
    """stage, rank, run, step, microbatch_ns."""
    chunks = pl.col("chunk").fill_null(0).n_unique()
    forwards = pl.col("kind").is_in(["F", "FB"]).sum()
    work = _placed_blocks(profile).group_by("stage", "rank", "run", "step")
    return work.agg(microbatch_ns=pl.when(forwards > 0).then(_LENGTH.sum() * chunks / forwards))


def slow_ranks(profile: Profile) -> pl.DataFrame:
    """rank, stage, kind, chunk, blocks, median_ns, peers_ns, ratio, slow: a rank's blocks beside those of the other
    ranks of its stage; sorted by (ratio, slowest first). Empty where no stage has two ranks."""
    medians = (
        _placed_blocks(profile)
        .group_by("rank", "stage", "kind", pl.col("chunk").fill_null(0))
        .agg(blocks=pl.len(), median_ns=_LENGTH.median())
    )
    peers = ["stage", "kind", "chunk"]
    return (
        medians.filter(pl.len().over(peers) > 1)
        .with_columns(peers_ns=pl.col("median_ns").median().over(peers))
        .with_columns(ratio=pl.col("median_ns") / pl.col("peers_ns"))
        .with_columns(slow=(pl.col("ratio") > SLOW) & (pl.col("blocks") >= ENOUGH))
        .sort("ratio", "rank", "kind", "chunk", descending=[True, False, False, False])
    )


def _placed_blocks(profile: Profile) -> pl.DataFrame:
    columns = ["rank", "run", "step", "kind", "chunk", "start_ns", "end_ns"]
    placed = profile.ranks.select("rank", "stage").drop_nulls()
    return (
        profile.spans.lazy()
        .filter(pl.col("kind").is_in(WORK_KINDS))
        .select(columns)
        .join(placed.lazy(), on="rank")
        .collect()
    )


def slow_links(profile: Profile, waits: pl.DataFrame) -> pl.DataFrame:
    """src_rank, dst_rank, direction, transfers, median_ns, peers_ns, ratio, gbit_s, slow; slowest first.

    A transfer lasts from when both sides are there to the end of the receive (`messages`); where there are none, from
    the making of the data to the start of the block that waited for them (`Bubbles.waits`). The peers are
    the links between the same stages, or where there is one only, all of that direction.
    """
    seconds = pl.col("length_ns") / 1e9
    both = pl.col("recv_end_ns") - pl.max_horizontal("send_start_ns", "recv_start_ns")
    transfers = profile.messages.with_columns(length_ns=both).filter(pl.col("length_ns") > 0)
    if transfers.is_empty():
        transfers = waits.with_columns(bytes=pl.lit(None, pl.Int64))
    stages = profile.ranks.select("rank", "stage")
    link = ["src_stage", "dst_stage", "direction"]
    return (
        transfers.group_by("src_rank", "dst_rank", pl.col("direction").cast(TEXT))
        .agg(
            transfers=pl.len(),
            median_ns=pl.col("length_ns").median(),
            gbit_s=(pl.col("bytes") * 8 / 1e9 / seconds).median(),
        )
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
    )
