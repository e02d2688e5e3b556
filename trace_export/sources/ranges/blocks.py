"""Pipeline blocks from named ranges: steps, numbers and chunks, and the shape of the pipeline that they declare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import polars as pl

from trace_export.model import INT, Declared
from trace_export.sources.ranges.dialects import run_facts
from trace_export.sources.ranges.ranges import Ranges


def blocks(worked: pl.DataFrame, ranges: Ranges, host: bool) -> pl.DataFrame:
    """The blocks with the columns of SPANS, but `process` for rank and session time: those with GPU work, or with
    `host` all, at the times of their ranges."""
    blocks = with_steps(worked.filter(pl.col("role") == "block"), ranges.of("step")).sort("id")
    blocks = _with_numbers(with_chunks(blocks, ranges))
    named = blocks.with_columns(run=0, marker=pl.col("text"), origin=pl.lit("host" if host else "device"))
    if host:
        return named
    ran = named.filter(pl.col("work_count") > 0, pl.col("work_end") >= pl.col("work_start"))
    return ran.with_columns(start="work_start", end="work_end")


def with_steps(blocks: pl.DataFrame, steps: pl.DataFrame, moment: str = "start") -> pl.DataFrame:
    """`blocks` (process, kind, step and their `moment` in session time), by moment, with `step` where they have none:
    that of the last step range which began before it, and before the first one its number less one. Null where the
    process has no step ranges with numbers.

    A profiler loses the ranges that are open when it begins or ends. So a step range which has forwards is followed by
    steps of the next numbers, as far as the next range leaves them free, where a forward, and a backward after it,
    begin behind its end; an optimizer ends such a step.
    """
    numbered = steps.select("process", pl.col("start").alias(moment), within="step", until="end").sort(moment)
    begun = numbered.with_columns(free=pl.col("within").shift(-1).over("process") - pl.col("within") - 1)
    first = begun.group_by("process", maintain_order=True).agg(before=pl.col("within").first() - 1)
    stepped = blocks.sort(moment).join_asof(begun, on=moment, by="process", check_sortedness=False)
    stepped = stepped.join(first.filter(pl.col("before") >= 0), on="process", how="left", maintain_order="left")
    lost = _lost_steps(stepped, moment)
    return stepped.with_columns(step=pl.coalesce("step", pl.col("within") + lost, "before")).drop(
        "within", "until", "free", "before"
    )


def _lost_steps(blocks: pl.DataFrame, moment: str) -> pl.Series:
    """How many steps without a range lie between each block and the range before it."""
    kind, behind = pl.col("kind"), (pl.col(moment) > pl.col("until")).fill_null(False)
    forward, backward = kind.is_in(["F", "FB"]), kind.is_in(["B", "FB"])
    held = ["process", "within"]
    outside = forward & behind
    begins = outside & ((outside.cum_sum().over(held) == 1) | (kind.shift(1).over(held) == "OPT"))
    trained = ((outside.cum_sum().over(held) > 0) & backward).any() & (forward & ~behind).any()
    count = pl.when(trained.over(held)).then(begins.cum_sum().over(held)).otherwise(0)
    return blocks.select(pl.min_horizontal(count, pl.col("free").clip(0)).cast(INT)).to_series()


def _with_numbers(blocks: pl.DataFrame) -> pl.DataFrame:
    """Zero-bubble's interleaved schedules call every forward F0.0.0: where a kind's numbers never change, none of the
    process mean anything."""
    alike = ["process", "step", "kind", "dialect"]
    first = blocks.filter(pl.col("dialect") == "zero-bubble", pl.col("microbatch") == 0)
    if not first.select(alike).is_duplicated().any():
        return blocks
    same = (pl.col("microbatch").max().over(alike) == 0) & (pl.col("chunk").max().over(alike) == 0)
    several = pl.col("microbatch").count().over(alike) > 1
    empty = ((pl.col("dialect") == "zero-bubble") & same & several).any().over("process")
    return blocks.with_columns(pl.when(~empty.fill_null(False)).then(c).alias(c) for c in ("microbatch", "chunk"))


def with_chunks(rows: pl.DataFrame, ranges: Ranges) -> pl.DataFrame:
    """`rows` (process, stage, chunk, perhaps stage_b and chunk_b) with the chunk of every stage that is named: its
    place among the stages of the process."""
    held = [(p, stage, chunk) for p, stages in ranges.stages.items() for chunk, stage in enumerate(stages)]
    if not held:
        return rows
    schema = {"process": pl.Int64, "stage": pl.Int32, "nth": pl.Int32}
    chunks = pl.DataFrame(held, schema, orient="row")
    for stage, chunk in (("stage", "chunk"), ("stage_b", "chunk_b")):
        if stage in rows.columns:
            rows = rows.join(chunks.rename({"stage": stage}), on=["process", stage], how="left", maintain_order="left")
            rows = rows.with_columns(pl.coalesce(chunk, "nth").alias(chunk)).drop("nth")
    return rows


def declared(ranges: Ranges, passes: pl.DataFrame) -> Declared:
    """The facts about the pipeline in the names of a file's ranges and of its blocks (`passes`, as from `blocks`)."""
    recorded = Declared()
    if (ranges.frame["role"] == "setup").any():
        setups = ranges.of("setup").select(
            pl.col("text").str.extract(rf"\b{size}=[0-9]+/([0-9]{{1,9}})").drop_nulls().first().cast(pl.Int32)
            .alias(size) for size in ("pp", "dp", "cp")
        )  # fmt: skip
        pp, dp, cp = setups.row(0)
        recorded = Declared(pp=pp, dp=dp, cp=cp)
    return recorded.or_else(_of_stages(ranges.stages)).or_else(run_facts(passes["marker"]))


def _of_stages(stages: Mapping[int, list[int]]) -> Declared:
    """Chunks, depth and placement of the pipeline, as far as the stages of all processes of a file determine them.

    With two chunks and P ranks, rank r has stages {r, r + P} in a loop and {r, 2P - 1 - r} in a V.
    """
    counts = {len(each) for each in stages.values()}
    if len(counts) != 1:
        return Declared()
    (chunks,) = counts
    covered = sorted({stage for each in stages.values() for stage in each})
    whole = chunks > 1 and covered == list(range(len(covered)))
    loop = chunks > 1 and len({each[1] - each[0] for each in stages.values()}) == 1
    vee = chunks == 2 and len({each[0] + each[1] for each in stages.values()}) == 1
    placement: Literal["loop", "vee"] = "loop" if loop else "vee"
    return Declared(
        chunks=chunks, pp=len(covered) // chunks if whole else None, placement=placement if loop != vee else None
    )
