"""DualPipeV as MindSpeed's markers record it, where that differs from its order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from trace_export.model import Plan
from trace_export.schedules.orders import COOL_DOWN, INTERLEAVED_BACKWARD, ONE_B_ONE_W_ONE_F
from trace_export.schedules.schedule import OPS, blocks

OVERLAPPED = "dualpipev, recorded with overlapped pairs"
"""With moe_fb_overlap: a pair is one marker, and the loss head's backward has a marker of its own."""

PLAIN = "dualpipev, recorded without overlapped pairs"
"""Without it: a pair is the marker of its forward, then that of its backward."""

DUALPIPEV_FORMS = (OVERLAPPED, PLAIN)
"""Names of a Plan, beside those of the catalogue, for what the markers show of DualPipeV."""


def recorded_dualpipev(plan: Plan, stages: Sequence[int]) -> pl.DataFrame:
    """The rows of `OPS` of these `stages` that the markers show; `plan.name` is one of `DUALPIPEV_FORMS`.

    Weight gradients are blocks only in the 1b1w1f phase. With overlapped pairs the first stage marks the backward of
    the loss head, a block of its own, before each backward of chunk 1; without, a pair is a forward and a backward.
    The tail alternates between the chunks; its first stage + 1 blocks count as interleaved backward.
    """
    ops = blocks(replace(plan, name="dualpipev"), stages)
    ops = ops.filter((pl.col("kind") != "W") | (pl.col("phase") == ONE_B_ONE_W_ONE_F))
    tail = pl.col("phase").is_in([INTERLEAVED_BACKWARD, COOL_DOWN])
    nth = tail.cum_sum().over("stage")
    phase = pl.when(tail & (nth > pl.col("stage") + 1)).then(pl.lit(COOL_DOWN))
    ops = ops.with_columns(phase=phase.when(tail).then(pl.lit(INTERLEAVED_BACKWARD)).otherwise("phase"), part=pl.lit(1))
    extra = _backwards_of_pairs(ops) if plan.name == PLAIN else _loss_heads(ops)
    first = _forwards_of_pairs(ops) if plan.name == PLAIN else ops
    ordered = pl.concat([first, extra.select(first.columns).cast(first.schema)]).sort("stage", "position", "part")
    return ordered.with_columns(position=pl.int_range(pl.len()).over("stage").cast(pl.Int32)).select(OPS.keys())


_PAIRS = pl.col("kind") == "FB"
_BACKWARD = {
    "microbatch": pl.when(_PAIRS).then("microbatch_b").otherwise("microbatch"),
    "chunk": pl.when(_PAIRS).then("chunk_b").otherwise("chunk"),
    "kind": pl.lit("B"), "microbatch_b": None, "chunk_b": None,
}  # fmt: skip


def _forwards_of_pairs(ops: pl.DataFrame) -> pl.DataFrame:
    return ops.with_columns(
        kind=pl.when(_PAIRS).then(pl.lit("F")).otherwise("kind"),
        microbatch_b=pl.lit(None, pl.Int32),
        chunk_b=pl.lit(None, pl.Int32),
    )


def _backwards_of_pairs(ops: pl.DataFrame) -> pl.DataFrame:
    return ops.filter(_PAIRS).with_columns(part=pl.lit(2), **_BACKWARD)


def _loss_heads(ops: pl.DataFrame) -> pl.DataFrame:
    of_last_chunk = (pl.col("kind") == "B") & (pl.col("chunk") == 1) | _PAIRS & (pl.col("chunk_b") == 1)
    return ops.filter(of_last_chunk & (pl.col("stage") == 0)).with_columns(part=pl.lit(0), **_BACKWARD)
