"""The steps over which means are taken: those that every rank has whole; and those of them that are far longer."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trace_export.model import STEP_KEY, Profile

UNEVEN = 1.5
"""Steps are not alike if one takes this many times as long as another."""


def of_whole_steps(profile: Profile) -> Profile:
    """`profile` with the blocks of whole steps only; as it is where all are whole, or none."""
    return only_whole(profile) if profile.steps["whole"].any() else profile


def only_whole(profile: Profile) -> Profile:
    """`profile` with the blocks of whole steps; none where none is whole. As it is where that was not checked."""
    if profile.steps.is_empty() or profile.steps["whole"].all():
        return profile
    whole = profile.steps.filter("whole")
    spans = profile.spans.join(whole, on=STEP_KEY, how="semi", nulls_equal=True, maintain_order="left")
    return replace(profile, spans=spans)


def counted(steps: pl.DataFrame) -> pl.DataFrame:
    """The rows of whole steps of a frame with the column `whole`; all of them where none is whole."""
    return steps.filter("whole") if steps["whole"].any() else steps


def far_longer(lengths: pl.Series) -> pl.Series:
    """Which of the `lengths` of steps are far above their median, such as those of the first steps of a job."""
    length = pl.col(lengths.name)
    return lengths.to_frame().select((length > UNEVEN * length.median()).fill_null(value=False)).to_series()
