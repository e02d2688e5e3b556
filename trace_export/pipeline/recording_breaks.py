"""Windows that lie in one file: a new window begins where a recording broke off."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trace_export.model import INT, SEGMENT, Note, Profile
from trace_export.ordering import ordered, run_number
from trace_export.units import duration

BREAK_STEPS = 10
"""A recording breaks off where no rank has a block for more than this many times the length of a step."""


def at_breaks(profile: Profile, *, recorded: bool = True) -> Profile:
    """`profile` with a new window after each break, in which no rank has a block: profilers record some seconds at a
    time into one file. Needs the numbers of the steps: if they are `recorded` and go on by one, the job paused. Else a
    pause cannot be told from a break.

    Example: two ranks whose steps 0, 1, 8 and 9 begin at 0, 50, 5000 and 5050 ms have steps 0 and 1 in a first window,
    8 and 9 in a second one.
    """
    key = [*SEGMENT, "step"]
    begun = _begun(profile)
    steps = begun.group_by(key).agg(pl.col("start_ns", "free_ns", "length_ns").min()).sort("run", "start_ns")
    goes_on = pl.col("step") > pl.col("step").shift().over(SEGMENT) + int(recorded)  # not: a clock was set back
    steps = steps.with_columns(breaks=_breaks(goes_on))
    if not steps["breaks"].any():
        return profile
    same = pl.col("window").eq_missing(pl.col("window").shift())
    steps = steps.with_columns(into=1 + (pl.col("breaks") | ~same).cum_sum().over("run").cast(INT))
    windows = steps.select(
        *key, pl.when(pl.col("breaks").any().over("run")).then("into").otherwise("window").alias("w")
    )
    tables = {
        name: table.join(windows, on=key, how="left", nulls_equal=True, maintain_order="left")
        .with_columns(window=pl.coalesce("w", "window")).drop("w")
        for name in ("spans", "evaluations") for table in (getattr(profile, name),)
    }  # fmt: skip
    breaks = steps.filter("breaks").select("free_ns", before=pl.format("step {}", "step"))
    return replace(profile, **tables).with_notes([_note(breaks)])


def where_ranks_lack_one(numbered: Profile, profile: Profile) -> Profile | None:
    """`profile`, whose steps have no number yet, with the windows that begin at breaks of each rank, by the steps
    counted in `numbered`; None if all ranks break off before the same steps. A rank that was not recorded in a window
    has counted the steps of the next one too low.

    Example: of the windows at 0, 30 and 75 s rank 1 lacks the second one. Both ranks break off before step 2, but only
    rank 0 before step 4. The windows are those in which some rank has blocks.
    """
    begun = _begun(numbered).with_columns(breaks=_breaks(pl.lit(value=True)))
    ranks = begun.group_by("run", "rank").agg(pl.col("step").filter("breaks"), pl.col("step").n_unique().alias("all"))
    if ranks.select("run", "step").n_unique() == ranks["run"].n_unique():
        return None
    part = pl.col("breaks").cum_sum().over("run", "rank")
    parts = begun.with_columns(part=part).group_by("run", "rank", "part").agg(
        pl.col("start_ns").min(), pl.col("end_ns").max()
    ).sort("run", "start_ns")  # fmt: skip
    parts = parts.with_columns(free_ns=(pl.col("start_ns") - pl.col("end_ns").cum_max().shift()).over("run"))
    opens = (pl.col("free_ns") > 0).fill_null(value=False)
    parts = parts.with_columns(w=1 + opens.cum_sum().over("run").cast(INT))
    breaks = parts.filter(opens).select("free_ns", before=pl.format("window {}", "w"))
    if breaks.is_empty():
        return None
    parts = parts.select("run", "rank", "start_ns", "w").sort("start_ns")
    tables = {}
    for name in ("spans", "evaluations"):
        table = getattr(profile, name)
        rows = table.with_row_index("row").sort("start_ns")
        placed = rows.join_asof(parts, on="start_ns", by=["run", "rank"], check_sortedness=False)
        tables[name] = placed.sort("row").with_columns(window=pl.col("w").fill_null(1)).select(table.columns)
    return replace(profile, **tables).with_notes([_note(breaks)])


def _begun(profile: Profile) -> pl.DataFrame:
    """rank, run, window, step, by time: begin and end of each step on a rank, how long the rank has no block before it,
    and the length of its previous step. Empty if the times of two steps cannot be compared."""
    key = [*SEGMENT, "step"]
    columns = ["rank", *key, "start_ns", "end_ns"]
    blocks = pl.concat([profile.spans.select(columns), profile.evaluations.select(columns)])
    if profile.declared.step_zeros is not None:
        blocks = blocks.clear()
    in_order = ordered(blocks, "rank", "run", "start_ns").with_columns(run_number("rank", "run"))
    free = pl.col("start_ns") - pl.col("end_ns").cum_max().shift().over("run_number")
    begun = pl.col("start_ns", "free_ns").first()
    return (
        in_order.with_columns(free_ns=free).drop_nulls("step").drop("run_number")
        .group_by(run_number("rank", *key), maintain_order=True)
        .agg(pl.col("rank", *key).first(), begun, pl.col("end_ns").max())
        .group_by("rank", *key, maintain_order=True).agg(begun, pl.col("end_ns").max()).sort("rank", "run", "start_ns")
        .with_columns(length_ns=pl.col("start_ns").diff().over("rank", *SEGMENT))
    )  # fmt: skip


def _breaks(where: pl.Expr) -> pl.Expr:
    usual = pl.col("length_ns").quantile(0.5, "lower").over("run")
    return ((pl.col("free_ns") > BREAK_STEPS * usual) & where).fill_null(value=False)


def _note(breaks: pl.DataFrame) -> Note:
    free_ns, before = breaks.sort("free_ns").row(-1)
    text = (
        f"no rank has a block for {duration(free_ns)} before {before}: taken for a break in the recording and left "
        "out of all figures; if the job paused there, steps take longer than stated"
    )
    return Note("recording-breaks", "note", text, count=breaks.height)
