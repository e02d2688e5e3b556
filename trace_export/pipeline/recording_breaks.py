"""Windows that lie in one file: where a recording broke off, what comes after is a window of its own."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trace_export.model import INT, SEGMENT, Note, Profile
from trace_export.units import duration

BREAK = 10
"""A recording breaks off where all ranks have no block for more than this many times as long as a step takes."""


def at_breaks(profile: Profile) -> Profile:
    """`profile` with a window of its own for what comes after each break, in which no rank has a block: profilers
    record some seconds at a time into one file, and nothing tells whether the job paused or its recording. Needs the
    numbers of the steps.

    Example: two ranks whose steps begin at 0, 50, 5000 and 5050 ms have steps 0 and 1 in a first window, 2 and 3 in a
    second one.
    """
    if profile.declared.step_zeros is not None:  # the times of two steps cannot be compared
        return profile
    key = [*SEGMENT, "step"]
    blocks = pl.concat([profile.spans, profile.evaluations]).select("rank", *key, "start_ns", "end_ns")
    free = pl.col("start_ns") - pl.col("end_ns").cum_max().shift().over("rank", "run")
    begun = (
        blocks.sort("rank", "run", "start_ns").with_columns(free_ns=free).drop_nulls("step").group_by("rank", *key)
        .agg(pl.col("start_ns", "free_ns").first()).sort("rank", "run", "start_ns")
        .with_columns(length_ns=pl.col("start_ns").diff().over("rank", *SEGMENT))
    )  # fmt: skip
    steps = begun.group_by(key).agg(pl.col("start_ns", "free_ns", "length_ns").min()).sort("run", "start_ns")
    usual = pl.col("length_ns").quantile(0.5, "lower").over("run")
    goes_on = pl.col("step") > pl.col("step").shift().over(SEGMENT)  # else a clock was set back
    steps = steps.with_columns(breaks=((pl.col("free_ns") > BREAK * usual) & goes_on).fill_null(False))
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
    longest = steps.filter("breaks").sort("free_ns").row(-1, named=True)
    text = (
        f"no rank has a block for {duration(longest['free_ns'])} before step {longest['step']}: taken for a break of "
        "the recording, which is in no figure; if the job paused there, steps take longer than is said"
    )
    note = Note("recording-breaks", "note", text, count=int(steps["breaks"].sum()))
    return replace(profile, **tables).with_notes([note])
