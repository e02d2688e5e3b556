"""Signs of a rank's stage in its blocks: how many forwards come first, and how long it waits.

All times are of the rank's clock. `stages_from_work` says which stages follow from them.
"""

from __future__ import annotations

from typing import Literal

import polars as pl

from trace_export.model import RANK_STEP_KEY
from trace_export.ordering import group_number, ordered
from trace_export.pipeline.steps import in_fullest, with_step_numbers
from trace_export.schedules.passes import BACKWARDS, FORWARDS

STEPS_SAMPLED = 5
"""This many steps are looked at, the fullest ones: a cut step has fewer blocks."""

SAMPLE_COLUMNS = [*RANK_STEP_KEY, "kind", "microbatch", "chunk", "start_ns", "end_ns"]
"""These columns of the blocks are looked at."""

_BACKWARD = pl.col("kind") != "F"


def sample(spans: pl.DataFrame, steps: int = STEPS_SAMPLED) -> pl.DataFrame:
    """`SAMPLE_COLUMNS` of the F, B, W and FB blocks of the fullest steps; a block without run counts as of the first,
    one without step as of that between two optimizers."""
    blocks = spans.select(SAMPLE_COLUMNS).with_columns(pl.col("run").fill_null(0))
    if blocks["step"].null_count():
        blocks = with_step_numbers(blocks).with_columns(pl.col("step").fill_null(0))
    return ordered(blocks.filter(in_fullest(blocks, steps)), "rank", "start_ns", "end_ns")


def placement(spans: pl.DataFrame, *, continued: bool = False) -> Literal["loop", "vee"] | None:
    """Whether the chunks of the ranks lie in a loop or in a V; None where there is but one chunk, or one rank.
    `continued`: the forwards count on over two chunks, see `with_chunks`."""
    of_first_chunk = measure(with_chunks(spans) if continued else spans)["before_second"].drop_nulls()
    return None if len(of_first_chunk) < 2 else "vee" if of_first_chunk.n_unique() > 1 else "loop"


def measure(spans: pl.DataFrame) -> pl.DataFrame:
    """A row per rank with forward blocks, medians over the steps whose start was recorded, those with the most
    forwards: `warm_up` forwards before the first backward of `forwards`, `wait_ns` from the last of them to it
    beyond what the rank takes to start any other, `away_ns` between the first of two chunks, `chunks`, `unit_ns` the
    length of a forward; and the most of `before_second`, forwards of chunk 0 before the first of chunk 1, and of
    `first`, all those of chunk 0: a cut step may have fewer.

    Example: F0 F1 B0 F2 B1 B2 has a warm-up of two of three forwards, and waits from the end of F1 to the start of B0.
    """
    start, forward = pl.col("start_ns"), pl.col("kind") == "F"
    blocks = sample(spans).with_columns(pl.col("chunk").fill_null(0))
    blocks = blocks.with_columns(group_number(blocks, *RANK_STEP_KEY))
    blocks = _with(blocks, begin=_begin())
    blocks = _with(blocks, back=start.filter(_BACKWARD & (start >= pl.col("begin"))).min())
    blocks = blocks.with_columns(
        leading=(forward & (start >= pl.col("begin")) & (start < pl.col("back"))).fill_null(False),
        counts=(FORWARDS & (start >= pl.col("begin"))).fill_null(False),
    )
    leading, back = pl.col("leading"), pl.col("back").first()
    each = blocks.group_by("group").agg(
        pl.col("rank").first(),
        warm_up=pl.when(back.is_not_null()).then(leading.sum()),
        forwards=_forwards(pl.col("counts")),
        wait_ns=back - pl.col("end_ns").filter(leading).max() - _soonest(),
        chunks=pl.col("chunk").max() + 1,
        unit_ns=(pl.col("end_ns") - start).filter(forward).median(),
        **_of_chunks(several=bool((blocks["chunk"] > 0).any())),
    )
    fullest = pl.col("forwards") == pl.col("forwards").max()
    medians = pl.exclude("group", "rank", "before_second", "first").filter(fullest).median()
    return each.group_by("rank").agg(medians, pl.col("before_second", "first").max()).sort("rank")


def _with(blocks: pl.DataFrame, **of_group: pl.Expr) -> pl.DataFrame:
    """`blocks` with a column that is common to each `group`."""
    common = blocks.group_by("group").agg(**of_group)
    return blocks.join(common, on="group", how="left", maintain_order="left")


def _soonest() -> pl.Expr:
    """How soon a rank starts any other block after the previous one: its host may hold each."""
    start = pl.col("start_ns").sort()
    gap = start - pl.col("end_ns").sort_by("start_ns").shift()
    return gap.filter(start != pl.col("back").first()).min().clip(0).fill_null(0)


def _forwards(of_step: pl.Expr) -> pl.Expr:
    """How many forwards a step has, also if several steps without a number count as one."""
    numbers = pl.struct("microbatch", "chunk").filter(of_step)
    lacking = pl.col("microbatch").filter(of_step).is_null().any()
    return pl.when(lacking).then(of_step.sum()).otherwise(numbers.n_unique())


def _begin() -> pl.Expr:
    """When a step of a rank begins: with its first forward, or, if forwards before it were cut off, with that of
    micro-batch 0 in chunk 0. Null if numbers, or more backwards than forwards, show that the start was not recorded.

    Example: of F2 B1 F3 B2 B3 F0 F1 B0 the last three count. F B F B B has no start.
    """
    start, number = pl.col("start_ns"), pl.col("microbatch").filter(FORWARDS)
    first, zero = start.filter(FORWARDS).min(), FORWARDS & (pl.col("microbatch") == 0) & (pl.col("chunk") == 0)
    cut = BACKWARDS.sum() > FORWARDS.sum()
    whole = zero.any() & (number.sort_by(start.filter(FORWARDS)).first() == 0)
    by_number = pl.when(whole).then(first).otherwise(start.filter(zero).min())
    return pl.when(number.null_count() == 0).then(by_number).when(~cut).then(first)


def _of_chunks(*, several: bool) -> dict[str, pl.Expr]:
    """`before_second`, `first` and `away_ns` of `measure`, null unless there are `several` chunks."""
    if not several:
        return dict.fromkeys(("before_second", "first", "away_ns"), pl.lit(None, pl.Int64))
    zero = pl.col("microbatch").fill_null(0) == 0
    first = [pl.col("start_ns").filter(FORWARDS & zero & (pl.col("chunk") == c)).min() for c in (0, 1)]
    of_first = FORWARDS & (pl.col("chunk") == 0)
    before = of_first & (pl.col("start_ns") < first[1])
    return {
        "before_second": pl.when(first[1].is_not_null()).then(_up_to(before)),
        "first": _up_to(of_first),
        "away_ns": first[1] - first[0],
    }


def _up_to(which: pl.Expr) -> pl.Expr:
    """How many blocks there are up to the last of `which`, by their numbers, or else by count."""
    return pl.coalesce(pl.col("microbatch").filter(which).max() + 1, which.sum())


def with_chunks(spans: pl.DataFrame) -> pl.DataFrame:
    """With the chunk of each forward and its micro-batch in it, if micro-batches count on over two chunks."""
    counts_on = FORWARDS & pl.col("chunk").is_null()
    microbatches = pl.col("microbatch").filter(counts_on).max() // 2 + 1
    return spans.with_columns(
        chunk=pl.when(counts_on).then(pl.col("microbatch") // microbatches).otherwise("chunk"),
        microbatch=pl.when(counts_on).then(pl.col("microbatch") % microbatches).otherwise("microbatch"),
    )
