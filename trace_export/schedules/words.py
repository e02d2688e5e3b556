"""The sequence of blocks that a schedule prescribes for a stage, in the form in which profiles show it.

A step of a rank is a word of the letters F, B, W and X (an overlapped pair). The words of a pipeline's stages tell the
schedule; a place in the word tells micro-batch, chunk and phase.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import polars as pl

from trace_export.errors import UsageError
from trace_export.schedules.schedule import OPS, schedule

LETTER = pl.when(pl.col("kind") == "FB").then(pl.lit("X")).otherwise("kind")
"""The letter of a row's `kind`."""

MINDSPEED = "mindspeed-dualpipev"
"""DualPipeV as MindSpeed runs and marks it, with overlapped pairs (moe_fb_overlap)."""

MINDSPEED_PLAIN = "mindspeed-dualpipev-plain"
"""The same without overlapped pairs."""

VEE_MARKER = pl.col("marker").str.contains("_model_graph", literal=True).fill_null(False)
"""MindSpeed marks so in DualPipeV only. The forwards of chunk c then carry the number m + c * M."""

_LOOPS = ("1f1b", "gpipe", "eager-1f1b", "zb-h1", "zb-h2", "zbh1-paddle")
_CHUNKED = ("interleaved", "interleaved-paddle", "interleaved-zb1p", "interleaved-split-paddle")


@dataclass(frozen=True)
class Plan:
    """A schedule with its numbers. `exact`: the blocks come in its order; else only their numbering is known."""

    name: str
    stages: int
    microbatches: int
    chunks: int = 1
    exact: bool = True


@lru_cache(maxsize=256)
def blocks(plan: Plan) -> pl.DataFrame:
    """The blocks of `plan` with the columns of `schedules.OPS`, and `letter`. Raises UsageError when it cannot be."""
    if plan.name.startswith(MINDSPEED):
        ops = _mindspeed(plan)
    else:
        many = plan.chunks if plan.name in _CHUNKED else None
        ops = schedule(plan.name, plan.stages, plan.microbatches, many).ops
    return ops.with_columns(letter=LETTER)


@lru_cache(maxsize=256)
def words(plan: Plan) -> dict[int, str]:
    """Stage → the word of its step."""
    rows = blocks(plan).group_by("stage", maintain_order=True).agg(pl.col("letter").str.join(""))
    return dict(rows.iter_rows())


def recognise(seen: Mapping[int, str], stages: int, *, more: bool) -> Plan | None:
    """The plan under which every stage's word is exactly `seen` (stage → word of a whole step); else the plan whose
    numbering fits, marked as not exact; None when there is neither.

    `more`: there may be more than `stages`, which leading forwards say that fall by one from stage to stage.
    """
    forwards = {word.count("F") for word in seen.values()}
    if len(forwards) != 1 or any("X" in word for word in seen.values()):
        return None
    plans = list(_plans(forwards.pop(), stages))
    depths = {stage + word.find("B") for stage, word in seen.items()}
    if more and len(depths) == 1 and (depth := depths.pop()) > stages:
        plans.insert(0, Plan("1f1b", depth, plans[0].microbatches))
    for plan in plans:
        if _possible(plan) and all(words(plan).get(stage) == word for stage, word in seen.items()):
            return plan
    for plan in plans:
        if _possible(plan) and all(_leads_alike(words(plan).get(stage, ""), word) for stage, word in seen.items()):
            return replace(plan, exact=False)
    return None


def _plans(forwards: int, stages: int) -> Iterator[Plan]:
    """All plans with so many forwards on a rank, the simplest and most frequent first."""
    yield Plan("1f1b", stages, forwards)
    for name in _CHUNKED if stages > 1 else ():
        for chunks in range(2, min(forwards // stages, 64) + 1):
            if forwards % chunks == 0:
                yield Plan(name, stages, forwards // chunks, chunks)
    for name in _LOOPS[1:]:
        yield Plan(name, stages, forwards)
    if forwards % 2 == 0:
        yield Plan("zb-v", stages, forwards // 2, 2)


def _possible(plan: Plan) -> bool:
    try:
        return bool(words(plan))
    except UsageError:
        return False


def _leads_alike(expected: str, word: str) -> bool:
    """Equal counts, and as many forwards before the first backward, or one more (Megatron's
    overlap_moe_expert_parallel_comm)."""
    lead, wanted = word.find("B"), expected.find("B")
    return sorted(word) == sorted(expected) and lead - wanted in (0, 1)


def _mindspeed(plan: Plan) -> pl.DataFrame:
    """DualPipeV's order with the marks that MindSpeed's wrappers leave.

    Weight gradients are blocks only in the 1b1w1f phase. With overlapped pairs the first stage marks the backward of
    the loss head, a block of its own, before each backward of chunk 1; without, a pair is a forward and a backward.
    The tail alternates between the chunks; its first stage + 1 blocks count as interleaved backward.
    """
    ops = schedule("dualpipev", plan.stages, plan.microbatches).ops
    ops = ops.filter((pl.col("kind") != "W") | (pl.col("phase") == "1b1w1f"))
    tail = pl.col("phase").is_in(["interleaved backward", "cool-down"])
    nth = tail.cum_sum().over("stage")
    phase = pl.when(tail & (nth > pl.col("stage") + 1)).then(pl.lit("cool-down"))
    ops = ops.with_columns(
        phase=phase.when(tail).then(pl.lit("interleaved backward")).otherwise("phase"), part=pl.lit(1)
    )
    pairs = pl.col("kind") == "FB"
    numbers = {"microbatch": "microbatch_b", "chunk": "chunk_b"}
    back = {new: pl.when(pairs).then(old).otherwise(new) for new, old in numbers.items()}
    alone = {"kind": pl.lit("B"), "microbatch_b": None, "chunk_b": None}
    if plan.name == MINDSPEED_PLAIN:
        first = ops.with_columns(
            kind=pl.when(pairs).then(pl.lit("F")).otherwise("kind"),
            microbatch_b=pl.lit(None, pl.Int32),
            chunk_b=pl.lit(None, pl.Int32),
        )
        extra = ops.filter(pairs).with_columns(part=pl.lit(2), **{**back, **alone})
    else:
        first = ops
        of_one = (pl.col("kind") == "B") & (pl.col("chunk") == 1) | pairs & (pl.col("chunk_b") == 1)
        extra = ops.filter(of_one & (pl.col("stage") == 0)).with_columns(part=pl.lit(0), **{**back, **alone})
    ordered = pl.concat([first, extra.select(first.columns).cast(first.schema)]).sort("stage", "position", "part")
    return ordered.with_columns(position=pl.int_range(pl.len()).over("stage").cast(pl.Int32)).select(OPS.keys())
