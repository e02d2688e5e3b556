"""The counters of activations in flight: how many micro-batches each stage holds between forward and backward.

They are derived from the blocks and are no measurement of memory.
"""

from __future__ import annotations

import polars as pl

from trace_export.chart.builder import Builder
from trace_export.model import STEP_KEY, WORK_KINDS, Placement

RANK_STEP = ["rank", *STEP_KEY]
WORK = [*RANK_STEP, "stage", "kind", "microbatch", "chunk", "microbatch_b", "chunk_b", "start_ns", "end_ns"]
"""What is looked at of the blocks."""
KEY = [*RANK_STEP, "microbatch", "chunk"]
TEXT = (
    "Micro-batches whose activations the stage holds, of a part of its model chunks a part. Derived from the blocks:"
    " from the start of a forward to the end of its backward, or of its weight gradient where that is a block of its"
    " own. Not a measurement of memory"
)
CHANGES = {"rank": pl.Int32, "ts_ns": pl.Int64, "change": pl.Int32}
OPENS, BACKS = pl.col("kind").is_in(["F", "FB"]), pl.col("kind").is_in(["B", "FB"])
WEIGHTS = pl.col("kind") == "W"


def add_in_flight(builder: Builder, blocks: pl.DataFrame, placement: Placement, order: int) -> None:
    """A group with a counter for each rank of `blocks`, which are of one rank per stage. None for a rank whose blocks
    have no backward."""
    held = in_flight(blocks, placement)
    if held.is_empty():
        return
    group = builder.track("Activations in flight", order, kind="group", description=TEXT)
    for place, (_, samples) in enumerate(held.group_by("stage", "rank", maintain_order=True)):
        stage, rank = samples.select("stage", "rank").row(0)
        name = f"in flight · stage {stage} · rank {rank}"
        track = builder.track(name, place, group, kind="counter", unit="micro-batches", description=TEXT)
        builder.samples(samples, track)


def in_flight(blocks: pl.DataFrame, placement: Placement) -> pl.DataFrame:
    """stage, rank, ts_ns, value: the micro-batches in flight from each moment on at which they change.

    In a step whose forwards and backwards are of the same micro-batches they are counted. Otherwise it was recorded in
    part: those of the same micro-batch are matched, and the others hold from its first block or to its last one.
    """
    work = blocks.select(WORK).filter(pl.col("stage").is_not_null(), pl.col("kind").is_in(WORK_KINDS))
    changes = [
        frame.select("rank", ts_ns=column, change=pl.lit(sign, pl.Int32))
        for frees, steps in _by_what_frees(work)
        for frame, column, sign in _ends(steps, frees)
    ]
    ordered = pl.concat(changes).sort("rank", "ts_ns", maintain_order=True) if changes else pl.DataFrame(schema=CHANGES)
    counts = ordered.with_columns(count=pl.col("change").cum_sum().over("rank"))
    at_once = (pl.col("rank") == pl.col("rank").shift(-1)) & (pl.col("ts_ns") == pl.col("ts_ns").shift(-1))
    after = counts.filter(~at_once.fill_null(False))
    changed = after.filter(pl.col("count") != pl.col("count").shift(1).over("rank").fill_null(-1))
    chunks = pl.lit(1) if placement == "both" else pl.col("chunk").max().fill_null(0) + 1
    ranks = work.group_by("rank").agg(pl.col("stage").first(), chunks=chunks.first())
    found = changed.join(ranks, on="rank", maintain_order="left").sort("stage", "rank", maintain_order=True)
    return found.select("stage", "rank", "ts_ns", value=pl.col("count") / pl.col("chunks"))


def _by_what_frees(work: pl.DataFrame) -> list[tuple[str | None, pl.DataFrame]]:
    """The blocks of the steps in which each forward's activations are freed by a backward (B), or by a weight gradient
    (W); of those in which some are not (None)."""
    microbatch = pl.col("microbatch").cast(pl.Int64)
    of_pair = pl.when(pl.col("kind") == "FB").then(pl.col("microbatch_b").cast(pl.Int64)).otherwise(microbatch)
    sets = {"opens": (OPENS, microbatch), "B": (BACKS, of_pair), "W": (WEIGHTS, microbatch)}
    signs = {  # 1, and a number whose sum hardly two sets of as many micro-batches share
        f"{name} {sign}": pl.when(which).then(value)
        for name, (which, number) in sets.items()
        for sign, value in (("blocks", pl.lit(1, pl.Int64)), ("sum", (number + 1) * (number + 1)))
    }
    sums = work.select(*RANK_STEP, **signs).group_by(RANK_STEP).agg(pl.all().sum())
    counts = sums.select(
        *RANK_STEP, *(pl.struct(blocks=f"{name} blocks", sum=f"{name} sum").alias(name) for name in sets),
        weights=pl.col("W blocks") > 0,
    )  # fmt: skip
    by_weights, by_backs = pl.col("weights") & (pl.col("W") == pl.col("opens")), pl.col("B") == pl.col("opens")
    frees = pl.when(by_weights).then(pl.lit("W")).when(by_backs, ~pl.col("weights")).then(pl.lit("B"))
    steps = counts.select(*RANK_STEP, frees=frees)
    kinds = steps["frees"].unique().to_list()
    if len(kinds) == 1:  # as in most runs, where a join would take as long as all else
        return [(kinds[0], work)]
    placed = work.join(steps, on=RANK_STEP, nulls_equal=True)
    return [(kind, placed.filter(pl.col("frees").eq_missing(pl.lit(kind, pl.String)))) for kind in kinds]


def _ends(steps: pl.DataFrame, frees: str | None) -> list[tuple[pl.DataFrame, str, int]]:
    """Which blocks change the count at their start or end, and by how much."""
    if frees is None:
        held = _matched(steps)
        return [(held, "start_ns", 1), (held, "end_ns", -1)]
    times = steps.select("rank", "kind", "start_ns", "end_ns")
    return [(times.filter(OPENS), "start_ns", 1), (times.filter(WEIGHTS if frees == "W" else BACKS), "end_ns", -1)]


def _matched(work: pl.DataFrame) -> pl.DataFrame:
    """rank, start_ns, end_ns: of each forward, from its start to the end of its backward."""
    placed = work.with_columns(pl.col("chunk", "chunk_b").fill_null(0))
    pairs = placed.filter(pl.col("kind") == "FB").with_columns(microbatch="microbatch_b", chunk="chunk_b")
    back = pl.concat([placed.filter(pl.col("kind").is_in(["B", "W"])), pairs])
    forwards = placed.filter(OPENS).group_by(KEY).agg(pl.col("start_ns").min())
    backwards = back.group_by(KEY).agg(pl.col("end_ns").max(), weight=WEIGHTS.any())
    within = placed.group_by(RANK_STEP).agg(first_ns=pl.col("start_ns").min(), last_ns=pl.col("end_ns").max())
    later = (  # weight gradients of no micro-batch, which are those of all that have none of their own
        back.filter(WEIGHTS, pl.col("microbatch").is_null())
        .group_by(RANK_STEP).agg(cleared_ns=pl.col("end_ns").max())
    )  # fmt: skip
    matched = forwards.join(backwards, on=KEY, how="full", coalesce=True, nulls_equal=True)
    return (
        matched.filter(pl.col("microbatch").is_not_null())
        .join(backwards.select(RANK_STEP).unique(), on=RANK_STEP, how="semi", nulls_equal=True)
        .join(within, on=RANK_STEP, how="left", nulls_equal=True)
        .join(later, on=RANK_STEP, how="left", nulls_equal=True)
        .with_columns(end_ns=pl.when("weight").then("end_ns").otherwise(pl.max_horizontal("end_ns", "cleared_ns")))
        .select(
            "rank", start_ns=pl.coalesce("start_ns", "first_ns"), end_ns=pl.coalesce("end_ns", "last_ns"),
        )
    )  # fmt: skip
