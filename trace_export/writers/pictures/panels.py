"""The panels of a picture: which part of the time each shows, its heading, and the bubble of each row in it."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from trace_export.selection import Window
from trace_export.units import duration


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


def marked(steps: pl.DataFrame, bubbles: pl.DataFrame | None) -> pl.DataFrame:
    """`steps` whose names say where a step is not whole. A chart without runs is one of a single run."""
    if bubbles is None or bubbles["whole"].all():
        return steps
    part = bubbles.filter(~pl.col("whole")).select("run", "step", mark=pl.lit(" (incomplete)")).unique()
    on = ["step"] if steps["run"].null_count() else ["run", "step"]
    marks = steps.join(part.unique(on), on=on, how="left", nulls_equal=True, maintain_order="left")["mark"]
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
    of_run = pl.lit(None, pl.String) if "of_run" not in bubbles.columns else pl.col("of_run")
    measured = bubbles.group_by("run", "step", of_run.alias("of_run"), maintain_order=True).agg(
        length=(pl.col("step_end_ns") - pl.col("step_start_ns")).mean()
    )
    texts: list[str | None] = []
    for run, step in panels.select("run", "step").iter_rows():
        same_run = pl.lit(True) if run is None else pl.col("run") == run
        rows = measured.filter(same_run, pl.col("step").eq_missing(step), pl.col("length") > 0).sort(
            "of_run", nulls_last=False
        )
        said = [
            duration(length) + (f" in {name}" if name is not None else "")
            for name, length in rows.select("of_run", "length").rows()
        ]
        texts.append(f"pipeline time {', '.join(said)}" if said else None)
    return pl.Series(texts, dtype=pl.String)


def shares(
    panels: pl.DataFrame, rows: Sequence[tuple[str | None, int | None]], bubbles: pl.DataFrame | None
) -> pl.Series:
    """Each row's bubble in each panel, where it is known; `rows` are their of_run and rank. A chart without runs is one
    of a single run."""
    dtype = pl.List(pl.Float64)
    if bubbles is None:
        return pl.Series([[None] * len(rows)] * panels.height, dtype=dtype)
    if "of_run" not in bubbles.columns:
        bubbles = bubbles.with_columns(of_run=pl.lit(None, pl.String))
    length = pl.col("step_end_ns") - pl.col("step_start_ns")
    measured = bubbles.filter(length > 0).select("run", "step", "of_run", "rank", share=pl.col("global_ns") / length)
    result = []
    for run, step in panels.select("run", "step").iter_rows():
        same_run = pl.lit(True) if run is None else pl.col("run") == run
        of_step = measured.filter(same_run, pl.col("step").eq_missing(step))
        share_of = {
            (of_run, rank): share for of_run, rank, share in of_step.select("of_run", "rank", "share").iter_rows()
        }
        result.append([share_of.get(row) if row[1] is not None else None for row in rows])
    return pl.Series(result, dtype=dtype)
