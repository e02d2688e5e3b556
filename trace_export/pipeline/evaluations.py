"""Forwards of an evaluation: passes between two training steps that no backward follows. They have no step.

Example, two micro-batches on the last of two stages, `O` the optimizer: in `F B F B O F F F F B F B O` three forwards
begin the second step that has two micro-batches, as the first one, so that they are an evaluation's.
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trace_export.model import INT, SPAN_ID, WORK_KINDS, Note, Profile
from trace_export.ordering import ordered
from trace_export.schedules.passes import BACKWARDS, FORWARDS

_STRETCH = ["run", "recorded", "updates", "begun"]
"""These columns tell the stretches of a rank apart that may hold a step: the recorded number, or the number of
optimizers that ran before, or of first forwards."""


def set_apart(profile: Profile) -> Profile:
    """`profile` with the forwards of evaluations in `evaluations` and not in `spans`, without a step; a note counts
    them.

    They are recognised if all ranks have the same surplus of forwards in a stretch between two steps, and as many
    backwards as in the stretches that have a backward for each forward, or none. The surplus comes first, or after the
    last backward. Forwards at the end of the capture may be the beginning of a step that was cut. If the first forward
    has a backward of its number, and no number comes twice, a backward was lost. If the steps are recorded, and of all
    blocks only forwards have none, these are evaluations.
    """
    if not profile.spans["step"].filter(profile.spans["kind"] != "F").null_count():
        profile = of_no_step(profile)
    spans = profile.spans
    counts = spans.group_by("rank").agg(forwards=FORWARDS.sum(), backwards=BACKWARDS.sum(), weights=_WEIGHTS.sum())
    backwards = pl.max_horizontal("backwards", "weights")
    if counts.is_empty() or not counts.select((pl.col("forwards") > backwards).all() & (backwards > 0).all()).item():
        return profile
    work = ordered(
        spans.with_row_index("row").filter(pl.col("kind").is_in([*WORK_KINDS, "OPT"])), "rank", "start_ns", "end_ns"
    )
    parts = _parts(_stretched(work))
    stretches = _of_evaluations(parts)
    if stretches.is_empty():
        return profile
    rows = _stretched(work).join(stretches, on=["rank", *_STRETCH], nulls_equal=True, maintain_order="left")
    rows = rows.filter(pl.col("kind") == "F", (pl.col("nth") < pl.col("leading")) | pl.col("trails"))
    chosen = pl.int_range(spans.height, eager=True).is_in(rows["row"].implode())
    return _apart(profile, chosen)


def of_no_step(profile: Profile) -> Profile:
    """`set_apart` for recorded evaluations: forwards without a step, on ranks whose other blocks have one."""
    without = profile.spans.select(
        pl.col("step").is_null() & (pl.col("kind") == "F") & pl.col("step").is_not_null().any().over("rank")
    ).to_series()
    return _apart(profile, without) if without.any() else profile


def uninterrupted(profile: Profile, start: str, length: str) -> pl.Expr:
    """The column `length` (ns), null if an evaluation begins within this length of `start` (ns)."""
    begins = profile.evaluations["start_ns"].sort()

    def free(times: pl.Series) -> pl.Series:
        first, last = (times.struct.field(name) for name in (start, length))
        return begins.search_sorted(first) == begins.search_sorted(first + last.fill_null(0))

    return (
        pl.when(pl.struct(start, length).map_batches(free, pl.Boolean())).then(length)
        if len(begins)
        else pl.col(length)
    )


def _apart(profile: Profile, chosen: pl.Series) -> Profile:
    spans = profile.spans
    apart = spans.filter(chosen).with_columns(step=pl.lit(None, INT), id=pl.lit(None, SPAN_ID))
    text = (
        "forwards that no backward follows (an evaluation, or a start of the job that ended in its warm-up): drawn, in "
        "no step and in no figure"
    )
    note = Note("evaluation-forwards", "note", text, count=apart.height)
    return replace(
        profile, spans=spans.filter(~chosen), evaluations=pl.concat([profile.evaluations, apart])
    ).with_notes([note])


_WEIGHTS = pl.col("kind") == "W"


def _stretched(work: pl.DataFrame) -> pl.DataFrame:
    """The blocks with `_STRETCH`, `nth`, the place of a forward among those of its stretch, and `trails`: it comes
    behind all backwards of the stretch. Of a rank without any sign of a step all is one stretch."""
    update = pl.col("kind") == "OPT"
    first = (pl.col("kind") == "F") & (pl.col("microbatch") == 0) & (pl.col("chunk").fill_null(0) == 0)
    begins = first.fill_null(False) & ~update.any().over("rank") & pl.col("step").is_null().all().over("rank")
    recorded = pl.col("step").fill_null(strategy="forward").over("rank")
    rows = work.with_columns(
        recorded=recorded,
        updates=pl.when(pl.col("step").is_null().all().over("rank"))
        .then(update.cast(pl.Int32).cum_sum().over("rank") - update.cast(pl.Int32)).otherwise(0),
        begun=begins.cast(pl.Int32).cum_sum().over("rank"),
    )  # fmt: skip
    stretch = ["rank", *_STRETCH]
    back = (pl.col("kind") != "F") & ~update
    later = back.cast(pl.Int32).reverse().cum_sum().reverse().over(stretch)
    return rows.with_columns(
        nth=(pl.col("kind") == "F").cast(pl.Int32).cum_sum().over(stretch) - 1,
        trails=(pl.col("kind") == "F") & (later == 0) & back.any().over(stretch),
    )


def _parts(rows: pl.DataFrame) -> pl.DataFrame:
    """A row for each stretch of each rank, in order: `forwards`, `backwards`, `trailing`, how many forwards came before
    the first backward (`ahead`), whether by the numbers of all forwards the first one has a backward (`answered`), and
    whether it is `last` on its rank and not `ended` by an optimizer."""
    back = (pl.col("kind") != "F") & (pl.col("kind") != "OPT")
    number = pl.col("microbatch").cast(pl.Int64) * 2**32 + pl.col("chunk").fill_null(0)
    forwards = number.filter(pl.col("kind") == "F")
    once = forwards.is_not_null().all() & (forwards.n_unique() == forwards.len())
    return (
        rows.group_by("rank", *_STRETCH, maintain_order=True)
        .agg(
            forwards=FORWARDS.sum().cast(pl.Int64),
            backwards=pl.max_horizontal(BACKWARDS.sum(), _WEIGHTS.sum()).cast(pl.Int64),
            trailing=pl.col("trails").sum().cast(pl.Int64),
            ahead=(pl.col("kind") == "F").filter(back.cum_sum() == 0).sum().cast(pl.Int64),
            answered=once & (number.filter(pl.col("kind") == "B") == forwards.first()).any(),
            ended=(pl.col("kind") == "OPT").any(),
        )
        .with_columns(excess=pl.col("forwards") - pl.col("backwards"))
        .with_columns(last=pl.int_range(pl.len()).over("rank") == pl.len().over("rank") - 1)
    )


def _of_evaluations(parts: pl.DataFrame) -> pl.DataFrame:
    """The stretches with an evaluation, and the number of its forwards that come first (`leading`)."""
    balanced = (pl.col("excess") == pl.col("trailing")) & (pl.col("backwards") > 0)
    usual = parts.filter(balanced).group_by("rank").agg(
        usual=pl.col("backwards").mode().max(), warm_up=pl.col("ahead").max()
    )  # fmt: skip
    if usual.height < parts["rank"].n_unique():
        return parts.clear().with_columns(leading=pl.lit(0))
    stretches = parts.join(usual, on="rank")
    alike = pl.col("excess").n_unique() == 1
    lost = (pl.col("answered") & (pl.col("trailing") == 0)).any()
    whole = (pl.col("backwards") == pl.col("usual")).all() & ~lost
    too_many = (pl.col("forwards") > pl.col("warm_up")).any()
    alone = (pl.col("backwards") == 0).all() & ~pl.col("ended").any() & (~pl.col("last").all() | too_many)
    chosen = stretches.group_by(_STRETCH).agg(
        evaluates=alike & (pl.col("excess") > 0).all() & (whole | alone),
        ranks=pl.col("rank").n_unique(),
    ).filter("evaluates", pl.col("ranks") == parts["rank"].n_unique())  # fmt: skip
    evaluations = stretches.join(chosen, on=_STRETCH, how="semi", nulls_equal=True)
    trailing = pl.min_horizontal("trailing", "excess")
    return evaluations.select("rank", *_STRETCH, leading=pl.col("excess") - trailing)
