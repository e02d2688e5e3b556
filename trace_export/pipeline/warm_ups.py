"""Which steps are a warm-up: those with which a recording begins, if they take far longer than all that follow.

In the first steps of a job kernels are compiled and chosen, memory is reserved and connections are made, and a profiler
that has just started prepares itself. A mean with such a step holds for no step of the job.
"""

from __future__ import annotations

import polars as pl

from trace_export.model import RANK_STEP_KEY, SEGMENT, STEP_KEY, Note
from trace_export.selection import Numbers

FAR = 2
"""Each step of a warm-up takes at least this many times as long as any step after it."""
LEAST = 2
"""This many whole steps must follow a warm-up, and no fewer than it has itself."""


def counting(steps: pl.DataFrame, work: pl.DataFrame) -> tuple[pl.DataFrame, list[Note]]:
    """`steps` (run, step, whole) with the column `counts`, and a note on those that are a warm-up.

    `work`: rank, run, window, step, start_ns and end_ns of the blocks of work. The length of a step is that of the
    middle rank, from its first block to its last: no error of a clock changes it.
    """
    first, last = pl.col("start_ns").min(), pl.col("end_ns").max()
    ranks = work.group_by(*RANK_STEP_KEY, "window").agg(first=first, length=last - first)
    lengths = ranks.group_by(*SEGMENT, "step").agg(pl.col("first").min(), pl.col("length").median())
    lengths = lengths.join(steps.filter("whole"), on=STEP_KEY, how="semi", nulls_equal=True).sort(*SEGMENT, "first")
    number = pl.int_range(1, pl.len() + 1)
    longest_after = pl.col("length").cum_max(reverse=True).shift(-1)
    ends = (pl.col("length").cum_min() >= FAR * longest_after) & (pl.len() - number >= number.clip(LEAST))
    warm = ends.fill_null(value=False).cum_sum(reverse=True) > 0
    left_out = lengths.filter(warm.over(SEGMENT)).select(*STEP_KEY, counts=False)
    marked = steps.join(left_out, on=STEP_KEY, how="left", nulls_equal=True, maintain_order="left")
    return marked.with_columns(counts=pl.col("whole") & pl.col("counts").fill_null(value=True)), _notes(left_out)


def _notes(left_out: pl.DataFrame) -> list[Note]:
    numbers = Numbers.of(left_out["step"].drop_nulls())
    if not numbers.ranges:
        return []
    take, them = ("take", "them") if numbers.count() > 1 else ("takes", "it")
    text = (
        f"{numbers.named('step')} {take} at least twice as long as any step after {them}, perhaps to warm up: left out"
        " of bubble, step time, causes and theory"
    )
    return [Note("warm-up", "note", text)]
