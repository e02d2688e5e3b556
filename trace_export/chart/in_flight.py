"""The counters of activations in flight: how many micro-batches each stage holds between forward and backward.

They are derived from the blocks and are no measurement of memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trace_export.chart.builder import Builder
from trace_export.chart.running_counts import running_count
from trace_export.model import PASS_KINDS, RANK_STEP_KEY, Placement
from trace_export.ordering import run_number

PASS_KEY = [*RANK_STEP_KEY, "microbatch", "chunk"]
TEXT = (
    "Micro-batches whose activations the stage holds; one that is held by some of its chunks counts as that part."
    " From the blocks: from the start of a forward to the end of its backward, or of its weight gradient where that is"
    " a block of its own. Not a measurement of memory"
)
NO_TIME = np.empty(0, np.int64)
ONE = 1 << 40
"""One pass, in a sum to which its micro-batch adds a number far below."""
OPENS, BACKS, WEIGHTS = (pl.col("kind") == kind for kind in PASS_KINDS)


def add_in_flight(builder: Builder, passes: pl.DataFrame, placement: Placement, order: int) -> None:
    """A group with a counter for each rank of `passes` (`PASSES`), which are of one rank per stage. None for a rank
    that has no backward."""
    held = [each for each in in_flight(passes, placement) if not each[2].is_empty()]
    if not held:
        return
    group = builder.track("Activations in flight", order, kind="group", description=TEXT)
    for number, (stage, rank, samples) in enumerate(held):
        name = f"in flight · stage {stage} · rank {rank}"
        track = builder.track(name, number, group, kind="counter", unit="micro-batches", description=TEXT)
        builder.samples(samples, track)


def in_flight(passes: pl.DataFrame, placement: Placement) -> Iterator[tuple[int, int, pl.DataFrame]]:
    """For each rank of `passes` (`PASSES`), by stage: its stage, itself, and the micro-batches in flight from each
    moment on at which they change (ts_ns, value).

    In a step whose forwards and backwards are of the same micro-batches they are counted. Otherwise it was recorded in
    part: those of the same micro-batch are matched, and the others hold from its first block or to its last one.
    """
    work = passes.drop_nulls(["stage", "start_ns", "end_ns"])
    if work.is_empty():
        return
    begun, ended = (_by_rank(pl.concat(times)) for times in zip(*_ends(work), strict=True))
    chunks = pl.lit(1) if placement == "both" else pl.col("chunk").max().fill_null(0) + 1
    ranks = work.group_by("rank").agg(pl.col("stage").first(), chunks=chunks.first()).sort("stage", "rank")
    for rank, stage, parts in ranks.iter_rows():
        counts = running_count(begun.get(rank, NO_TIME), ended.get(rank, NO_TIME))
        yield stage, rank, counts.with_columns(pl.col("value") / parts)


def _by_rank(times: pl.DataFrame) -> dict[int, NDArray[np.int64]]:
    """The times of each rank."""
    return {
        int(of_rank["rank"][0]): of_rank["ts_ns"].to_numpy()
        for of_rank in times.partition_by("rank", maintain_order=True)
    }


def _ends(work: pl.DataFrame) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
    """rank, ts_ns: when a micro-batch's activations begin to be held, and when they are freed."""
    for frees, steps in _by_what_frees(work):
        if frees is None:
            opens = ends = _matched(steps)
        else:
            times = steps.select("rank", "kind", "start_ns", "end_ns")
            opens, ends = times.filter(OPENS), times.filter(WEIGHTS if frees == "W" else BACKS)
        yield opens.select("rank", ts_ns="start_ns"), ends.select("rank", ts_ns="end_ns")


def _by_what_frees(work: pl.DataFrame) -> list[tuple[str | None, pl.DataFrame]]:
    """The passes of the steps in which each forward's activations are freed by a backward (B), or by a weight gradient
    (W); of those in which some are not (None). Example: F0 F1 B0 B1, F0 B0 W0 F1 B1 W1, and F0 F1 B0."""
    microbatch = pl.col("microbatch").cast(pl.Int64)
    sign = ONE + ((microbatch + 1) * (microbatch + 1)).fill_null(0)
    signs = {  # their sum is one that hardly two sets of micro-batches share
        name: pl.when(which).then(sign) for name, which in (("opens", OPENS), ("B", BACKS), ("W", WEIGHTS))
    }
    sums = (
        work.select(*RANK_STEP_KEY, **signs)
        .group_by(run_number(*RANK_STEP_KEY))
        .agg(pl.col(RANK_STEP_KEY).first(), pl.col(*signs).sum())
        .group_by(RANK_STEP_KEY)
        .agg(pl.col(*signs).sum())
    )
    weights = pl.col("W") > 0
    by_weights, by_backs = weights & (pl.col("W") == pl.col("opens")), ~weights & (pl.col("B") == pl.col("opens"))
    frees = pl.when(by_weights).then(pl.lit("W")).when(by_backs).then(pl.lit("B"))
    steps = sums.select(*RANK_STEP_KEY, frees=frees)
    kinds = steps["frees"].unique().to_list()
    if len(kinds) == 1:  # as in most runs, where a join would take as long as all else
        return [(kinds[0], work)]
    placed = work.join(steps, on=RANK_STEP_KEY, nulls_equal=True)
    return [(kind, placed.filter(pl.col("frees").eq_missing(pl.lit(kind, pl.String)))) for kind in kinds]


def _matched(work: pl.DataFrame) -> pl.DataFrame:
    """rank, start_ns, end_ns: of each forward, from its start to the end of its backward."""
    back = work.filter(~OPENS)
    forwards = work.filter(OPENS).group_by(PASS_KEY).agg(pl.col("start_ns").min())
    backwards = back.group_by(PASS_KEY).agg(pl.col("end_ns").max(), weight=WEIGHTS.any())
    within = work.group_by(RANK_STEP_KEY).agg(first_ns=pl.col("start_ns").min(), last_ns=pl.col("end_ns").max())
    later = (  # weight gradients of no micro-batch, which are those of all that have none of their own
        back.filter(WEIGHTS, pl.col("microbatch").is_null())
        .group_by(RANK_STEP_KEY).agg(cleared_ns=pl.col("end_ns").max())
    )  # fmt: skip
    matched = forwards.join(backwards, on=PASS_KEY, how="full", coalesce=True, nulls_equal=True)
    return (
        matched.filter(pl.col("microbatch").is_not_null())
        .join(backwards.select(RANK_STEP_KEY).unique(), on=RANK_STEP_KEY, how="semi", nulls_equal=True)
        .join(within, on=RANK_STEP_KEY, how="left", nulls_equal=True)
        .join(later, on=RANK_STEP_KEY, how="left", nulls_equal=True)
        .with_columns(end_ns=pl.when("weight").then("end_ns").otherwise(pl.max_horizontal("end_ns", "cleared_ns")))
        .select(
            "rank", start_ns=pl.coalesce("start_ns", "first_ns"), end_ns=pl.coalesce("end_ns", "last_ns"),
        )
    )  # fmt: skip
