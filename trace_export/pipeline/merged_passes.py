"""Refuse inferred passes of a rank that has two adjacent stages of the model, as at the turn of a V.

Between two such stages nothing is sent, so two passes are inferred as one from launches or transfers. The rank alone
does not show it, but it has fewer backwards in a step than every other rank.
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trace_export.model import WORK_KINDS, Declared, Note, Profile
from trace_export.pipeline.steps import with_step_numbers
from trace_export.schedules.passes import BACKWARDS, FORWARDS
from trace_export.selection import Numbers

_OPTIMIZER = pl.col("kind") == "OPT"


def without_merged(profile: Profile) -> Profile:
    """`profile` without the passes of ranks on which each pass may be two, and a warning with those ranks. The chunks
    of the others lie in a V, unless the profile declares something else.

    They are inferred, and fewer than on the other ranks, which agree, but at least half as many: in the fullest of its
    whole steps each rank is compared. Ranks without a whole step are not.

    Example: in a V of three stages and eight micro-batches two ranks have 16 backwards in a step; the third, where the
    data turn, has 8, and its passes are left out.
    """
    inferred = profile.spans.filter(pl.col("origin") == "inferred", pl.col("kind").is_in(WORK_KINDS))
    if inferred["rank"].n_unique() < 2:
        return profile
    counts = _backwards(profile.spans)
    most = int(counts["backwards"].to_numpy().max(initial=0))
    fewer = counts.filter(pl.col("backwards") < most)
    ranks = fewer.join(inferred.select("rank").unique(), on="rank")
    pairs = bool((2 * ranks["backwards"] >= most).all()) and 2 * ranks.height <= counts.height
    if ranks.is_empty() or ranks.height < fewer.height or not pairs:
        return profile
    merged = pl.col("rank").is_in(ranks["rank"].implode()) & pl.col("kind").is_in(WORK_KINDS)
    text = (
        "passes of ranks on which two stages may follow each other without a transfer, left out "
        f"({Numbers.of(ranks['rank']).named('rank')}): at most {int(ranks['backwards'].to_numpy().max())} backwards in "
        f"a step, {most} on the other ranks"
    )
    note = Note("passes-merged", "warning", text, count=ranks.height)
    declared = profile.declared.or_else(Declared(placement="vee"))
    return replace(profile, spans=profile.spans.filter(~merged), declared=declared).with_notes([note])


def _backwards(spans: pl.DataFrame) -> pl.DataFrame:
    """rank, backwards: their number in the fullest whole step of each rank that has one.

    A step is whole if it has as many forwards as backwards, or lies between two optimizers.
    """
    steps = with_step_numbers(spans).group_by("rank", "run", "step").agg(
        forwards=FORWARDS.sum(), backwards=BACKWARDS.sum(), optimizers=_OPTIMIZER.sum(),
    )  # fmt: skip
    first = pl.col("step") == pl.col("step").min().over("rank", "run")
    whole = (pl.col("forwards") == pl.col("backwards")) | (pl.col("optimizers") > 0) & ~first
    return steps.filter(whole, pl.col("backwards") > 0).group_by("rank").agg(pl.col("backwards").max()).sort("rank")
