"""The exported span table as Parquet or CSV, one row per block of every rank that was read; and further tables.

Of two runs a table has the rows of both and the column `side`."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from trace_export.model import Profile
from trace_export.writers import mark

COLUMNS = (
    "rank", "host", "device", "stage", "step", "kind", "microbatch", "chunk", "microbatch_b", "chunk_b", "start_ns",
    "end_ns", "origin", "marker", "run", "window",
)  # fmt: skip


def sides(a: pl.DataFrame, b: pl.DataFrame) -> pl.DataFrame:
    """A table of a run A above that of a run B, with the column `side` (A, B)."""
    named = (frame.with_columns(pl.lit(name).alias("side")) for name, frame in (("A", a), ("B", b)))
    return pl.concat(named, how="diagonal_relaxed")


def span_table(profile: Profile, beside: Profile | None = None) -> pl.DataFrame:
    """`spans` joined with `ranks`: `COLUMNS`, sorted by (start_ns, rank); times are Unix ns on the aligned clock. Of
    two runs both, as `sides` says."""
    if beside is not None:
        return sides(span_table(profile), span_table(beside))
    ranks = profile.ranks.select("rank", "host", "device", "stage")
    spans = profile.blocks.join(ranks, on="rank", how="left", maintain_order="left")
    return spans.select(COLUMNS).sort("start_ns", "rank", maintain_order=True)


def write_parquet(profile: Profile, path: Path, beside: Profile | None = None) -> None:
    write_frame(span_table(profile, beside), path)


def write_csv(profile: Profile, path: Path, beside: Profile | None = None) -> None:
    """CSV with a header, whose quoted first name is the mark, see `mark.CSV`; a missing value is an empty field, an
    empty text is quoted."""
    table = span_table(profile, beside)
    first, *others = table.columns
    with path.open("wb") as file:
        file.write(f'"{first}",{",".join(others)}\n'.encode())
        table.write_csv(file, include_header=False)


def write_frame(frame: pl.DataFrame, path: Path) -> None:
    """A table as Parquet, with the mark."""
    with path.open("wb") as file:  # Polars opens no path whose name is not UTF-8
        frame.write_parquet(file, metadata=mark.PARQUET_METADATA)
