"""Transfers that nobody recorded, from the blocks that waited for them."""

from __future__ import annotations

import polars as pl
import pytest

from trace_export.steps.guess import transfers

MS = 1_000_000


@pytest.mark.parametrize("ago", [3, 5])
def test_data_that_wait_for_a_busy_rank_are_not_long_on_their_way(ago: int) -> None:
    """Rank 1 runs a forward and a backward of 6 ms each, and is busy always but for the 0.2 ms of the hop, which begins
    when it falls idle. The data of each forward were made `ago` ms before, each time alike."""
    hop, count = MS // 5, 6
    free = [12 * MS * k for k in range(count)]
    forward = {"rank": 0, "start": [f - 10 * MS for f in free], "end": [f - ago * MS for f in free], "free": None}
    fed = {"rank": 1, "start": [f + hop for f in free], "end": [f + 6 * MS for f in free], "free": free}
    alone = {"rank": 1, "start": fed["end"], "end": [f + 12 * MS for f in free], "free": fed["end"]}
    parts = [
        pl.DataFrame(part, schema_overrides={"rank": pl.Int32, "free": pl.Int64}) for part in (forward, fed, alone)
    ]
    blocks = pl.concat(parts).with_columns(work=True)
    edges = pl.DataFrame(
        {"src_rank": 0, "dst_rank": 1, "direction": "F", "src": range(count), "dst": range(count, 2 * count)},
        schema_overrides={"src_rank": pl.Int32, "dst_rank": pl.Int32},
    ).with_columns(known=False)
    begin, length, posted = transfers(edges, blocks)
    assert begin.tolist() == free
    assert length.tolist() == [hop] * count
    assert posted.all()
