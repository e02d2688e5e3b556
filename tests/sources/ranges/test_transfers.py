"""Which NCCL calls belong to transfers that the runtime named."""

from __future__ import annotations

import polars as pl

from trace_export.sources.ranges.transfers import with_calls

TIMES = {"start": pl.Int64, "end": pl.Int64, "comm_start": pl.Int64, "comm_end": pl.Int64}


def test_calls_inside_named_transfers_are_theirs() -> None:
    """`with_calls`: two named transfers and four calls of NCCL, all of one thread.

    The end of the second transfer was repaired, so it is unknown: the next receive of its thread belongs to it wherever
    it begins, and its kernel gives the transfer its times.
    """
    sides = pl.DataFrame(
        [
            (0, 7, 1, "send", False, 0, 100, 10, 90),
            (1, 7, 1, "recv", True, 100, 110, None, None),
        ],
        {"id": pl.Int64, "process": pl.Int64, "thread": pl.Int64, "role": pl.String, "repaired": pl.Boolean, **TIMES},
        orient="row",
    )
    calls = pl.DataFrame(
        [
            (2, 7, 1, "ncclSend", 20, 30, 40, 50),  # inside transfer 0
            (3, 7, 1, "ncclRecv", 50, 60, 61, 62),  # before any receive
            (4, 7, 1, "ncclSend", 150, 160, 170, 180),  # after the end of transfer 0
            (5, 7, 1, "ncclRecv", 250, 255, 260, 300),  # of transfer 1
        ],
        {"id": pl.Int64, "process": pl.Int64, "thread": pl.Int64, "text": pl.String, **TIMES},
        orient="row",
    )
    transfers, free = with_calls(sides, calls.with_columns(role=pl.lit("communication"), repaired=False))
    assert transfers.select("id", "comm_start", "comm_end").rows() == [(0, 10, 90), (1, 260, 300)]
    assert free.select("id", "role").rows() == [(3, "recv"), (4, "send")]
