"""The blocks that a profile shows of a schedule: those of its order, or what a runtime records instead.

A step of a rank is a word of the letters F, B, W and X (fused F/B). A position in the word gives micro-batch, chunk
and phase.
"""

from __future__ import annotations

from functools import lru_cache

import polars as pl

from trace_export.model import Plan
from trace_export.schedules import schedule
from trace_export.schedules.passes import PAIRS
from trace_export.schedules.recorded import DUALPIPEV_FORMS, recorded_dualpipev

LETTER = pl.when(PAIRS).then(pl.lit("X")).otherwise("kind")
"""The letter of a row's `kind`."""


@lru_cache(maxsize=256)
def profile_blocks(plan: Plan, stages: tuple[int, ...]) -> pl.DataFrame:
    """The blocks of `plan` on these `stages` with the columns of `schedule.OPS`, and `letter`. Raises UsageError when
    the numbers do not fit the schedule."""
    there = [stage for stage in stages if 0 <= stage < plan.stages]
    ops = recorded_dualpipev(plan, there) if plan.name in DUALPIPEV_FORMS else schedule.blocks(plan, there)
    return ops.with_columns(letter=LETTER)


@lru_cache(maxsize=1024)
def word(plan: Plan, stage: int) -> str:
    """The word of the step of a stage; "" where the plan has no such stage. Raises UsageError as `profile_blocks`."""
    if plan.name not in DUALPIPEV_FORMS:
        return schedule.letters(plan, stage)
    return "".join(profile_blocks(plan, (stage,))["letter"])
