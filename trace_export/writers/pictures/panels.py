"""The panels of a picture: which part of the time each shows, its heading, and the bubble of each row in it."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from trace_export.selection import Window
from trace_export.units import duration

LENGTH = (pl.col("step_end_ns") - pl.col("step_start_ns")).alias("length")


def steps_of(blocks: pl.DataFrame) -> pl.DataFrame:
    """A panel for each step: run, step, start_ns, end_ns, name, by start; last what is of no step."""
    several_runs = blocks["run"].n_unique() > 1
    words = [pl.format("run {} ·", pl.col("run"))] if several_runs else []
    name = pl.concat_str([*words, pl.format("step {}", pl.col("step"))], separator=" ", ignore_nulls=True)
    return (
        blocks.group_by("run", "step")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        .sort(pl.col("step").is_null(), "start_ns", "run", "step")
        .with_columns(name=pl.when(pl.col("step").is_null()).then(pl.lit("outside of any step")).otherwise(name))
    )


def key(panels: pl.DataFrame) -> list[str]:
    """What tells panels apart: a chart without runs is one of a single run."""
    return ["step"] if panels["run"].null_count() else ["run", "step"]


def marked(steps: pl.DataFrame, bubbles: pl.DataFrame | None) -> pl.DataFrame:
    """`steps` whose names say where a step is not whole."""
    if bubbles is None or bubbles["whole"].all():
        return steps
    part = bubbles.filter(~pl.col("whole")).select(*key(steps), mark=pl.lit(" (incomplete)")).unique()
    marks = steps.join(part, on=key(steps), how="left", nulls_equal=True, maintain_order="left")["mark"]
    return steps.with_columns(pl.col("name") + marks.fill_null(""))


def ranged(slices: pl.DataFrame, window: Window, zero_ns: int | None = None) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The parts of `slices` that lie in the window, which counts from `zero_ns` (None: the first block); and its single
    panel."""
    first = slices.filter(pl.col("category") == "block")["start_ns"].min()
    zero = int(first or 0) if zero_ns is None else zero_ns  # type: ignore[arg-type]
    start, end = zero + window.start_ns, zero + window.end_ns
    inside = slices.filter(pl.col("end_ns") > start, pl.col("start_ns") < end)
    name = f"{duration(window.start_ns)} to {duration(window.end_ns)} after the first block"
    panel = pl.DataFrame(
        [(None, None, start, end, name)],
        {"run": pl.Int32, "step": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64, "name": pl.String},
        orient="row",
    )
    return inside.with_columns(pl.col("start_ns", "end_ns").clip(start, end)), panel


def lengths(panels: pl.DataFrame, bubbles: pl.DataFrame | None) -> pl.Series:
    """The pipeline time of each panel, over which its bubbles are, in words; of each run where there are two. Null
    where it is unknown."""
    if bubbles is None:
        return pl.Series([None] * panels.height, dtype=pl.String)
    means = (
        bubbles.group_by(*key(panels), "of_run", maintain_order=True).agg(LENGTH.mean()).filter(pl.col("length") > 0)
    )
    words = pl.Series("length", [duration(length) for length in means["length"]], pl.String)
    of_run = pl.format(" in {}", "of_run").fill_null("")
    said = means.with_columns(words + of_run).sort("of_run").group_by(key(panels)).agg(pl.col("length").str.join(", "))
    joined = panels.join(said, on=key(panels), how="left", nulls_equal=True, maintain_order="left")
    return joined.select("pipeline time " + pl.col("length")).to_series()


def shares(
    panels: pl.DataFrame, rows: Sequence[tuple[str | None, int | None]], bubbles: pl.DataFrame | None
) -> pl.Series:
    """Each row's bubble in each panel, where it is known; `rows` are their of_run and rank."""
    of_rows = pl.DataFrame(rows, {"of_run": pl.String, "rank": pl.Int32}, orient="row")
    every = panels.select("run", "step").with_row_index("panel").join(of_rows, how="cross", maintain_order="left_right")
    if bubbles is None:
        every = every.with_columns(share=pl.lit(None, pl.Float64))
    else:
        on = [*key(panels), "of_run", "rank"]
        measured = bubbles.filter(LENGTH > 0).select(*on, share=pl.col("global_ns") / LENGTH).unique(on, keep="last")
        every = every.join(measured, on=on, how="left", nulls_equal=True, maintain_order="left")
    return every.group_by("panel", maintain_order=True).agg("share")["share"]
