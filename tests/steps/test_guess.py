"""Transfers that nobody recorded, from the blocks that waited for them."""

from collections.abc import Sequence

import polars as pl
import pytest

from trace_export.steps import guess
from trace_export.steps.graph import Flags, Times

MS = 1_000_000
HOP = MS // 5


def block_table(
    *parts: tuple[int, Sequence[int], Sequence[int], Sequence[int] | None], host: str = "a"
) -> pl.DataFrame:
    """Blocks of a rank each, all on one host: rank, starts, ends, and when it fell idle before each."""
    schema = {"rank": pl.Int32, "start": pl.Int64, "end": pl.Int64, "free": pl.Int64}
    tables = [pl.DataFrame(dict(zip(schema, part, strict=True)), schema) for part in parts]
    return pl.concat(tables).with_columns(work=True, ended=pl.col("free").fill_null(0), host=pl.lit(host))


def edge_table(count: int, *ways: tuple[int, int, str, int, int]) -> pl.DataFrame:
    """Source rank, target rank, direction, and the first rows of the `count` blocks at both ends of each way."""
    rows = [(a, b, way, src + n, dst + n, False) for a, b, way, src, dst in ways for n in range(count)]
    schema = {"src_rank": pl.Int32, "dst_rank": pl.Int32, "direction": pl.String, "src": pl.Int64, "dst": pl.Int64}
    return pl.DataFrame(rows, {**schema, "timed": pl.Boolean}, orient="row")


def transfers(edges: pl.DataFrame, blocks: pl.DataFrame) -> tuple[Times, Times, Flags]:
    return guess.transfers(edges, blocks.drop("host"), blocks.select("rank", "host").unique())


def plus(times: Sequence[int], ns: int) -> list[int]:
    return [time + ns for time in times]


@pytest.mark.parametrize("ago", [3, 5])
def test_data_that_wait_for_a_busy_rank_are_not_long_on_their_way(ago: int) -> None:
    """Rank 1 runs a forward and a backward of 6 ms each, and is busy always but for the 0.2 ms of the hop, which begins
    when it falls idle. The data of each forward were made `ago` ms before, each time alike."""
    count = 6
    free = [12 * MS * k for k in range(count)]
    blocks = block_table(
        (0, plus(free, -10 * MS), plus(free, -ago * MS), None), (1, plus(free, HOP), plus(free, 6 * MS), free),
        (1, plus(free, 6 * MS), plus(free, 12 * MS), plus(free, 6 * MS)),
    )  # fmt: skip
    begin, length, posted = transfers(edge_table(count, (0, 1, "F", 0, count)), blocks)
    assert begin.tolist() == free
    assert length.tolist() == [HOP] * count
    assert posted.all()


@pytest.mark.parametrize("made_before", [4, -1])
def test_receives_are_posted_as_on_the_other_ways(made_before: int) -> None:
    """Rank 2 is always idle when its data are made, which tells nothing of when it posted the receive. Rank 1 begins
    each block a hop of 0.2 ms after it fell idle, though its data were made 4 ms before: it posts it then. Where it was
    idle too, nothing shows it."""
    count = 6
    free = [12 * MS * k for k in range(1, count + 1)]
    made, late = -made_before * MS, max(-made_before, 0) * MS
    blocks = block_table(
        (0, plus(free, made - 9 * MS), plus(free, made), None), (3, plus(free, -9 * MS), plus(free, 2 * MS), None),
        (1, plus(free, late + HOP), plus(free, 9 * MS), free), (2, plus(free, 2 * MS + HOP), plus(free, 9 * MS), free),
    )  # fmt: skip
    _, length, posted = transfers(edge_table(count, (0, 1, "F", 0, 2 * count), (3, 2, "F", count, 3 * count)), blocks)
    assert length.tolist() == [HOP] * 2 * count
    assert posted.tolist() == [made_before > 0] * 2 * count


def test_a_rank_whose_blocks_of_one_way_alone_wait_has_a_slow_link() -> None:
    """Rank 1 takes forwards from rank 0 and backwards from rank 2, each made long before; those of rank 0 start 5 ms
    after the rank fell idle, for their receive is posted then, the others at once."""
    count, link = 8, 5 * MS
    free = [20 * MS * k for k in range(count)]
    ended = plus(free, 10 * MS)
    blocks = block_table(
        (0, plus(free, -15 * MS), plus(free, -9 * MS), None), (2, plus(free, -5 * MS), plus(free, MS), None),
        (1, plus(free, link), ended, free), (1, plus(ended, HOP), plus(ended, 9 * MS), ended),
    )  # fmt: skip
    _, length, posted = transfers(edge_table(count, (0, 1, "F", 0, 2 * count), (2, 1, "B", count, 3 * count)), blocks)
    assert posted[:count].all()
    assert length.tolist() == [link - HOP] * count + [0] * count  # what both ways wait is the rank's


@pytest.mark.parametrize("busy", [False, True], ids=["others are seen", "others are not seen"])
def test_a_rank_that_opens_each_step_late_has_no_slow_link(busy: bool) -> None:
    """Rank 1 begins each step 9 ms after its data were made, and its next forward a hop after it could: 0.2 ms after
    these data were made, or, where it is still busy then, after it fell idle. A slow link would delay both."""
    count, late = 6, 9 * MS
    begin = [60 * MS * k for k in range(count)]
    ended, made = plus(begin, 20 * MS), plus(begin, (15 if busy else 25) * MS)
    blocks = block_table(
        (0, plus(begin, -4 * MS), begin, None), (0, plus(made, -4 * MS), made, None),
        (1, plus(begin, late), ended, None),
        (1, plus(ended if busy else made, HOP), plus(ended, 30 * MS), ended),
    )  # fmt: skip
    _, length, _ = transfers(edge_table(2 * count, (0, 1, "F", 0, 2 * count)), blocks)
    assert max(length[:count]) <= (5 * MS + HOP if busy else HOP)


@pytest.mark.parametrize("stalls", ["rank", "link"])
def test_a_rank_that_stalls_now_and_then_is_told_from_a_link_that_does(stalls: str) -> None:
    """Rank 1 falls idle before each forward is made, and runs a backward that needs nothing after it. Every fourth
    forward starts 9 ms late. Of a rank that stalls so does every fourth backward; of the other these start as late as a
    transfer takes, which is no stall."""
    count, stall = 24, 9 * MS
    made = [40 * MS * k + 10 * MS for k in range(count)]
    late = [stall * (k % 4 == 0) for k in range(count)]
    start = [m + HOP + x for m, x in zip(made, late, strict=True)]
    ended = plus(start, 5 * MS)
    alone = [end + (k % 4 == 2) * (stall if stalls == "rank" else HOP) for k, end in enumerate(ended)]
    blocks = block_table(
        (0, plus(made, -5 * MS), made, None), (1, start, ended, plus(made, -MS)), (1, alone, plus(alone, 5 * MS), ended)
    )
    _, length, posted = transfers(edge_table(count, (0, 1, "F", 0, count)), blocks)
    assert not posted.any()  # the rank was idle before: when it asked for the data changed nothing
    assert length.tolist() == [HOP + (x if stalls == "link" else 0) for x in late]


def test_a_few_late_launches_are_no_longer_transfers() -> None:
    """The first two forwards are made while rank 1 is idle, and start a hop later; the others were made 2 ms before it
    fell idle, and start at once, but four of them 1 ms late."""
    late = [k in range(2, 6) for k in range(20)]
    free = [20 * MS * k for k in range(1, 21)]
    made = [f + (MS if k < 2 else -2 * MS) for k, f in enumerate(free)]
    start = [m + HOP if k < 2 else f + MS * x for k, (f, m, x) in enumerate(zip(free, made, late, strict=True))]
    ended = plus(start, 5 * MS)
    blocks = block_table((0, plus(made, -5 * MS), made, None), (1, start, ended, free), (1, ended, ended, ended))
    _, length, posted = transfers(edge_table(20, (0, 1, "F", 0, 20)), blocks)
    assert length.tolist() == [HOP] * 20
    assert not posted.any()


@pytest.mark.parametrize("host", ["a", "b"])
def test_a_rank_that_always_waits_is_as_late_as_its_host(host: str) -> None:
    """Rank 0 starts each block 2 ms after the one before, though it needs nothing, and rank 2 at once. Rank 1 of the
    host of rank 0, or of that of rank 2, starts 2.2 ms after its data are made, which it always waits for."""
    count = 6
    begun = [12 * MS * k for k in range(count)]
    blocks = pl.concat(
        [
            block_table((0, begun, plus(begun, 10 * MS), plus(begun, -2 * MS))),
            block_table((1, plus(begun, 12 * MS + HOP), plus(begun, 15 * MS), plus(begun, 5 * MS)), host=host),
            block_table((2, begun, plus(begun, 12 * MS), begun), host="b"),
        ]
    )
    _, length, _ = transfers(edge_table(count, (0, 1, "F", 0, count)), blocks)
    assert length.tolist() == [HOP if host == "a" else 2 * MS + HOP] * count
