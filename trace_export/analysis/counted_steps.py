"""The steps over which means are taken: those that count; and those of them that are far longer."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import polars as pl

from trace_export.model import STEP_KEY, Profile

UNEVEN = 1.5
"""Steps are not alike if one takes this many times as long as another."""

WARM_UP = pl.col("whole") & ~pl.col("counts")
"""Whether a step is left out of means although it is whole."""


def of_counted_steps(profile: Profile) -> Profile:
    """`profile` with the blocks of the steps that count; as it is where all do, or none."""
    return only(profile, "counts") if profile.steps["counts"].any() else profile


def only(profile: Profile, which: Literal["whole", "counts"]) -> Profile:
    """`profile` with the blocks of the steps that are whole, or count; none where none is so. As it is where that was
    not checked."""
    if profile.steps.is_empty() or profile.steps[which].all():
        return profile
    steps = profile.steps.filter(which)
    spans = profile.spans.join(steps, on=STEP_KEY, how="semi", nulls_equal=True, maintain_order="left")
    return replace(profile, spans=spans)


def counted(steps: pl.DataFrame) -> pl.DataFrame:
    """The rows of the steps that count, of a frame with the column `counts`; all of them where none does."""
    return steps.filter("counts") if steps["counts"].any() else steps


def far_longer(lengths: pl.Series) -> pl.Series:
    """Which of the `lengths` of steps are far above their median, such as those of the first steps of a job."""
    length = pl.col(lengths.name)
    return lengths.to_frame().select((length > UNEVEN * length.median()).fill_null(value=False)).to_series()
