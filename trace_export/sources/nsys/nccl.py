"""NCCL calls and copies in an Nsight Systems export: collectives, and the ends of transfers without NCCL kernels."""

from __future__ import annotations

import polars as pl

from trace_export.sources.nsys.cupti import COPY_TABLE, attribute
from trace_export.sources.ranges.ranges import COMMUNICATION, Ranges
from trace_export.sources.ranges.transfers import ALONE
from trace_export.sources.shared.sqlite import Database

NOT_TRANSFERS = r"^nccl(?:Comm|Group|Get|Mem|Redop|RedOp|Init|Debug)"
"""NCCL calls that move nothing."""


def collectives(work: pl.DataFrame) -> pl.DataFrame:
    """One row per NCCL collective: process, op, sequence, start, end; the k-th of its name in the process.

    The communicator is not in the file, so collectives of equal name in different groups cannot be distinguished.
    """
    name = pl.col("text")
    calls = work.filter(
        (pl.col("role") == COMMUNICATION) & ~name.str.contains(NOT_TRANSFERS) & ~name.is_in(list(ALONE))
    )
    return calls.select(
        "process",
        op=name,
        sequence=pl.int_range(pl.len()).over("process", "text"),
        start=pl.coalesce("comm_start", "start"),
        end=pl.coalesce("comm_end", "end"),
    )


def last_copies(db: Database, ranges: Ranges, named: pl.DataFrame) -> pl.Series:
    """The end of the last copy launched in each of the `named` ranges that receive."""
    receives = pl.col("text").is_in(ranges.transfers.filter(pl.col("role") == "recv")["text"].implode())
    wanted = named.select("id", "process", "thread", "start", "end", "role", receives=receives)
    copies = attribute(db, wanted.with_columns(id=pl.int_range(pl.len())), "cu*emcpy*", [COPY_TABLE])[0].frame()
    return wanted.select(last=pl.when("receives").then(copies["work_end"]))["last"]
