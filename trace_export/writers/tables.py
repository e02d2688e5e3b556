"""The exported span table as Parquet or CSV, one row per block of every rank that was read; and further tables."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from trace_export.model import Profile
from trace_export.writers import mark

COLUMNS = (
    "rank", "host", "device", "stage", "step", "kind", "microbatch", "chunk", "microbatch_b", "chunk_b", "start_ns",
    "end_ns", "origin", "marker",
)  # fmt: skip

CSV_HEADER = f'"{COLUMNS[0]}",{",".join(COLUMNS[1:])}\n'
"""The quoted name is the mark, see `mark.CSV`."""


def span_table(profile: Profile) -> pl.DataFrame:
    """`spans` joined with `ranks`: `COLUMNS`, sorted by (start_ns, rank); times are Unix ns on the aligned clock."""
    ranks = profile.ranks.select("rank", "host", "device", "stage")
    spans = profile.spans.join(ranks, on="rank", how="left", maintain_order="left")
    return spans.select(COLUMNS).sort("start_ns", "rank", maintain_order=True)


def write_parquet(profile: Profile, path: Path) -> None:
    span_table(profile).write_parquet(path, metadata=mark.PARQUET_METADATA)


def write_csv(profile: Profile, path: Path) -> None:
    """CSV with a header; a missing value is an empty field, an empty text is quoted."""
    with path.open("wb") as file:
        file.write(CSV_HEADER.encode())
        span_table(profile).write_csv(file, include_header=False)


def write_frame(frame: pl.DataFrame, path: Path) -> None:
    """Any other table as Parquet."""
    frame.write_parquet(path, metadata=mark.PARQUET_METADATA)
