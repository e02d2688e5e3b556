"""Clocks from one look to the next: a picture that is drawn again must not jump by more than its stated error.

Each look fits the clocks anew from the steps that it has. A new fit that differs from the one before by less than both
are uncertain is approached by at most the stated error; one that differs by more is a step in a host's clock, which is
said, and taken as it is.
"""

from __future__ import annotations

import polars as pl

from trace_export.model import CLOCKS, TIME, Note, conform
from trace_export.units import duration

STEP_SD = 4.0
"""A difference of this many standard deviations of both fits is a step."""


def steadied(before: pl.DataFrame | None, now: pl.DataFrame) -> tuple[pl.DataFrame, list[Note]]:
    """`now` (CLOCKS), made to go on from `before`, and a note for each host whose clock stepped. The same frame where
    there is nothing to change."""
    if before is None or not (now["status"] == "fitted").any():
        return now, []
    old = before.select("host", *(pl.col(c).alias(f"old_{c}") for c in ("offset_ns", "drift", "reference_ns", "sd_ns")))
    both = now.join(old, on="host", how="left", maintain_order="left")
    then = pl.col("old_offset_ns") + pl.col("old_drift") * (pl.col("reference_ns") - pl.col("old_reference_ns"))
    both = both.with_columns(moved=pl.col("offset_ns") - then)  # both at the new reference time
    sd = (pl.col("sd_ns") ** 2 + pl.col("old_sd_ns") ** 2).sqrt()
    comparable = (pl.col("status") == "fitted") & pl.col("moved", "old_sd_ns", "sd_ns").is_not_null()
    compared = pl.all_horizontal(comparable)
    steps = both.filter(compared & (pl.col("moved").abs() > STEP_SD * sd))
    notes = [
        Note("clock-stepped", "warning", f"the clock of {host} stepped by {duration(moved, sign=True)}", host)
        for host, moved in steps.select("host", "moved").iter_rows()
    ]
    within = compared & (pl.col("moved").abs() <= STEP_SD * sd)
    change = pl.col("moved").clip(-pl.col("sd_ns"), pl.col("sd_ns"))
    offset = pl.when(within).then((then + change).round().cast(TIME)).otherwise("offset_ns")
    return conform(both.with_columns(offset_ns=offset), CLOCKS), notes
