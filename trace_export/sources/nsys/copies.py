"""Copies in an Nsight Systems export: the ends of transfers without NCCL kernels."""

from __future__ import annotations

import polars as pl

from trace_export.sources.nsys.cupti import COPY_TABLE, attribute
from trace_export.sources.ranges.ranges import Ranges
from trace_export.sources.shared.sqlite import Database


def last_copies(db: Database, ranges: Ranges, named: pl.DataFrame) -> pl.Series:
    """The end of the last copy launched in each of the `named` ranges that receive."""
    receives = pl.col("text").is_in(ranges.transfers.filter(pl.col("role") == "recv")["text"].implode())
    wanted = named.select("id", "process", "thread", "start", "end", "role", receives=receives)
    copies = attribute(db, wanted.with_columns(id=pl.int_range(pl.len())), "*emcpy*", [COPY_TABLE]).frame()
    return wanted.select(last=pl.when("receives").then(copies["work_end"]))["last"]
