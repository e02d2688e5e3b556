"""What means are taken over: the steps that every rank has whole."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trace_export.model import STEP_KEY, Profile


def of_whole_steps(profile: Profile) -> Profile:
    """`profile` with the blocks of whole steps only; as it is where all are whole, or none."""
    whole = profile.steps.filter("whole")
    if len(whole) in (0, len(profile.steps)):
        return profile
    spans = profile.spans.join(whole, on=STEP_KEY, how="semi", nulls_equal=True, maintain_order="left")
    return replace(profile, spans=spans)


def counted(steps: pl.DataFrame) -> pl.DataFrame:
    """The rows of whole steps of a frame with the column `whole`; all of them where none is whole."""
    return steps.filter("whole") if steps["whole"].any() else steps
