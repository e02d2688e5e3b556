"""Locate a truncated step using the adjacent stages on the same host.

Part of a step may fit into the order of its stage at several positions. But a forward starts after the previous stage's
forward has ended, and a backward ends before the previous stage's backward starts: if the adjacent stage is numbered
and has the same clock, only one position may be left, or none.
"""

from __future__ import annotations

import polars as pl

from trace_export.model import INT, RANK_STEP_KEY, TEXT, Plan
from trace_export.pipeline.labels_by_position import windows
from trace_export.schedules.catalogue import CATALOGUE
from trace_export.schedules.words import profile_blocks, word
from trace_export.tolerances import BLOCKS_NS

_BLOCK = ["kind", "microbatch", "chunk"]


def settle(work: pl.DataFrame, placed: pl.DataFrame, ends: pl.DataFrame, plan: Plan) -> pl.DataFrame:
    """row, position: `placed` without ranks that lack blocks and contradict whole adjacent stages, and with the blocks
    of ranks that had no position and fit at only one.

    `work`: the blocks of one step of a pipeline, with host and stage; `placed`: row and position in `plan`; `ends` as
    `labels_by_position.whole_ends` gives it. Only where the data run through the stages in a loop.
    """
    if CATALOGUE[plan.name].placement != "loop":
        return placed
    positions = _without_contradicted(work, placed, plan)
    numbered = work.join(placed, on="row", how="semi")
    open_ranks = work.join(numbered, on="rank", how="anti").drop_nulls("stage")
    for rank in open_ranks["rank"].unique(maintain_order=True):
        blocks = open_ranks.filter(pl.col("rank") == rank)
        neighbours = _with_numbers(
            work.filter(_on_adjacent_stages(blocks)).drop("position").join(positions, on="row"), plan
        )
        whole = ends.join(blocks.head(1), on=RANK_STEP_KEY, how="semi", nulls_equal=True).row(0, named=True)
        candidates = _candidates(blocks, plan, starts=bool(whole["starts"]), ends=bool(whole["ends"]))
        fitting = [at for at in candidates if _fits(_with_numbers(at, plan), neighbours)]
        if len(fitting) == 1 and neighbours.height:
            positions = pl.concat([positions, fitting[0].select(positions.columns).cast(positions.schema)])
    return positions


def _without_contradicted(work: pl.DataFrame, placed: pl.DataFrame, plan: Plan) -> pl.DataFrame:
    """`placed` without ranks that seem to be cut but contradict an adjacent stage that has all its blocks: a block
    inside is missing. Example: where F2 F3 B0 … of a stage would be F1 F2 F3 B0 …, cut at the start, F1 would begin
    before the stage before had ended its F1."""
    at = work.drop("position").join(placed, on="row").drop_nulls("stage")
    sizes = at.group_by("rank", maintain_order=True).agg(pl.len(), pl.col("stage").first())
    counts = sizes.select("len", "stage").iter_rows()
    whole = pl.Series([size == len(word(plan, stage)) for size, stage in counts], dtype=pl.Boolean())
    if whole.all() or not whole.any():
        return placed
    full = at.filter(pl.col("rank").is_in(sizes.filter(whole)["rank"].implode()))
    wrong = []
    for rank in sizes.filter(~whole)["rank"]:
        blocks = at.filter(pl.col("rank") == rank)
        if not _fits(_with_numbers(blocks, plan), _with_numbers(full.filter(_on_adjacent_stages(blocks)), plan)):
            wrong += blocks["row"].to_list()
    return placed.filter(~pl.col("row").is_in(wrong))


def _on_adjacent_stages(blocks: pl.DataFrame) -> pl.Expr:
    """The blocks of the stages before and after, on the same host."""
    stage, host = blocks.select("stage", "host").row(0)
    return (pl.col("host") == pl.lit(host, TEXT)) & pl.col("stage").is_in([stage - 1, stage + 1])


def _candidates(blocks: pl.DataFrame, plan: Plan, *, starts: bool, ends: bool) -> list[pl.DataFrame]:
    """`blocks` with each series of positions that their order and the sure ends allow, one frame for each."""
    letters, expected = blocks["letter"].str.join("").item(), word(plan, blocks["stage"][0])
    offsets = windows(letters, expected, starts=starts, ends=ends)
    return [blocks.with_columns(position=(pl.int_range(pl.len()) + at).cast(INT)) for at in offsets]


def _with_numbers(placed: pl.DataFrame, plan: Plan) -> pl.DataFrame:
    """stage, kind, microbatch, chunk, start_ns and end_ns of blocks with a position."""
    stages = tuple(placed["stage"].unique().sort())
    numbers = profile_blocks(plan, stages).select("stage", "position", "microbatch", "chunk")
    return placed.drop("microbatch", "chunk").join(numbers, on=["stage", "position"]).select(
        "stage", *_BLOCK, "start_ns", "end_ns"
    )  # fmt: skip


def _fits(blocks: pl.DataFrame, neighbours: pl.DataFrame) -> bool:
    """Whether no block of `blocks` contradicts a dependency."""
    both = blocks.join(neighbours, on=_BLOCK, suffix="_other")
    later = pl.col("stage") > pl.col("stage_other")
    fed = later == (pl.col("kind") == "F")
    early = pl.when(fed).then(pl.col("end_ns_other") - pl.col("start_ns")).otherwise(
        pl.col("end_ns") - pl.col("start_ns_other")
    )  # fmt: skip
    return not bool((both.filter(pl.col("kind") != "W").select(early > BLOCKS_NS).to_series()).any())
