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
    blocks = pl.concat(parts).with_columns(work=True, ended=pl.col("free").fill_null(0))
    edges = pl.DataFrame(
        {"src_rank": 0, "dst_rank": 1, "direction": "F", "src": range(count), "dst": range(count, 2 * count)},
        schema_overrides={"src_rank": pl.Int32, "dst_rank": pl.Int32},
    ).with_columns(timed=False)
    begin, length, posted = transfers(edges, blocks)
    assert begin.tolist() == free
    assert length.tolist() == [hop] * count
    assert posted.all()


@pytest.mark.parametrize("made_before", [4, -1])
def test_receives_are_posted_as_on_the_other_ways(made_before: int) -> None:
    """Rank 2 is always idle when its data are made, which tells nothing of when it posted the receive. Rank 1 begins
    each block a hop of 0.2 ms after it fell idle, though its data were made 4 ms before: it posts it then. Where it was
    idle too, nothing shows it."""
    hop, count = MS // 5, 6
    free = [12 * MS * k for k in range(1, count + 1)]

    def block(rank: int, start: int, end: int, idle: list[int] | None) -> pl.DataFrame:
        at = {"start": [f + start for f in free], "end": [f + end for f in free]}
        part = {"rank": rank, **at, "free": idle}
        return pl.DataFrame(part, schema_overrides={"rank": pl.Int32, "free": pl.Int64})

    made = max(-made_before, 0) * MS
    parts = [
        block(0, -9 * MS - made_before * MS, -made_before * MS, None), block(3, -9 * MS, 2 * MS, None),
        block(1, made + hop, 9 * MS, free), block(2, 2 * MS + hop, 9 * MS, free),
    ]  # fmt: skip
    blocks = pl.concat(parts).with_columns(work=True, ended=pl.col("free").fill_null(0))
    n = pl.int_range(count, eager=True)
    edges = pl.DataFrame(
        {
            "src_rank": [0] * count + [3] * count, "dst_rank": [1] * count + [2] * count, "direction": "F",
            "src": pl.concat([n, n + count]), "dst": pl.concat([n + 2 * count, n + 3 * count]), "timed": False,
        },
        schema_overrides={"src_rank": pl.Int32, "dst_rank": pl.Int32},
    )  # fmt: skip
    _, length, posted = transfers(edges, blocks)
    assert length.tolist() == [hop] * 2 * count
    assert posted.tolist() == [made_before > 0] * 2 * count


def test_a_rank_whose_blocks_of_one_way_alone_wait_has_a_slow_link() -> None:
    """Rank 1 takes forwards from rank 0 and backwards from rank 2, each made long before; those of rank 0 start 5 ms
    after the rank fell idle, for their receive is posted then, the others at once."""
    count, link, hop = 8, 5 * MS, MS // 5
    free = [20 * MS * k for k in range(count)]
    made = pl.DataFrame({"rank": 0, "start": [f - 15 * MS for f in free], "end": [f - 9 * MS for f in free]})
    back = made.with_columns(rank=2, start=pl.col("start") + 10 * MS, end=pl.col("end") + 10 * MS)
    fed = pl.DataFrame({"rank": 1, "start": [f + link for f in free], "end": [f + 10 * MS for f in free], "free": free})
    next_ = pl.DataFrame({"rank": 1, "start": fed["end"] + hop, "end": fed["end"] + 9 * MS, "free": fed["end"]})
    parts = [made.with_columns(free=pl.lit(None, pl.Int64)), back.with_columns(free=pl.lit(None, pl.Int64)), fed, next_]
    blocks = pl.concat([part.with_columns(pl.col("rank").cast(pl.Int32)) for part in parts]).with_columns(
        work=True, ended=pl.col("free").fill_null(0)
    )
    n = pl.int_range(count, eager=True)
    edges = pl.DataFrame(
        {
            "src_rank": [0] * count + [2] * count, "dst_rank": 1, "direction": ["F"] * count + ["B"] * count,
            "src": pl.concat([n, n + count]), "dst": pl.concat([n + 2 * count, n + 3 * count]), "timed": False,
        },
        schema_overrides={"src_rank": pl.Int32, "dst_rank": pl.Int32},
    )  # fmt: skip
    _, length, posted = transfers(edges, blocks)
    assert posted[:count].all()
    assert length.tolist() == [link - hop] * count + [0] * count  # what both ways wait is the rank's


@pytest.mark.parametrize("stalls", ["rank", "link"])
def test_a_rank_that_stalls_now_and_then_is_told_from_a_link_that_does(stalls: str) -> None:
    """Rank 1 falls idle before each forward is made, and runs a backward that needs nothing after it. Every fourth
    forward starts 9 ms late, and of a rank that stalls so does every fourth backward."""
    count, hop, stall = 24, MS // 5, 9 * MS
    made = [40 * MS * k + 10 * MS for k in range(count)]
    late = [stall * (k % 4 == 0) for k in range(count)]
    start = [m + hop + x for m, x in zip(made, late, strict=True)]
    sent = pl.DataFrame({"rank": 0, "start": [m - 5 * MS for m in made], "end": made})
    fed = pl.DataFrame({"rank": 1, "start": start, "end": [s + 5 * MS for s in start]})
    gap = pl.Series([stall * (k % 4 == 2 and stalls == "rank") for k in range(count)])
    alone = fed.select("rank", start=pl.col("end") + gap).with_columns(end=pl.col("start") + 5 * MS)
    parts = [
        sent.with_columns(free=pl.lit(None, pl.Int64)), fed.with_columns(free=pl.Series([m - MS for m in made])),
        alone.with_columns(free=fed["end"]),
    ]  # fmt: skip
    blocks = pl.concat([part.with_columns(pl.col("rank").cast(pl.Int32)) for part in parts]).with_columns(
        work=True, ended=pl.col("free").fill_null(0)
    )
    edges = pl.DataFrame(
        {"src_rank": 0, "dst_rank": 1, "direction": "F", "src": range(count), "dst": range(count, 2 * count)},
        schema_overrides={"src_rank": pl.Int32, "dst_rank": pl.Int32},
    ).with_columns(timed=False)
    _, length, posted = transfers(edges, blocks)
    assert not posted.any()  # the rank was idle before: when it asked for the data changed nothing
    assert length.tolist() == [hop + (x if stalls == "link" else 0) for x in late]
