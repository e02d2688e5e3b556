"""The time that a block takes to be launched after its last wait.

A block starts later after another block of its rank, which the host has to follow, than after a transfer, during which
the host has time. Blocks that wait for their rank show the one, blocks that wait for a transfer the other. In a replay
a block may wait for something else than it did, so a launch belongs to the wait:

    start = max(end of the block before + launch after a block, end of the transfer + launch after a transfer) + delay
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from trace_export.steps.graph import (
    COLLECTIVE,
    OPTIMIZER,
    TRANSFER,
    WORK,
    Floats,
    Graph,
    Ints,
    Times,
    Waits,
    ready_of,
)
from trace_export.tolerances import FIFTH, POSTED_NS

SHORT = 0.4
"""A launch takes at most this share of a block; a longer delay is a wait."""


def launched(graph: Graph) -> Waits:
    """The waits of `graph` with launches: after the first one of a rank in a step each block is launched as long after
    the block before (or a collective of its rank), and after a transfer, as on the middle rank."""
    waits = graph.waits
    later = (graph.sort == WORK) & ~graph.first & ~graph.blind
    met, awaited = waits.met(graph.start, graph.end), graph.sort[waits.on]
    same_rank = graph.rank[waits.on] == graph.rank[waits.of]
    on_block = ((awaited <= OPTIMIZER) & same_rank & waits.whole) | (awaited == COLLECTIVE)
    on_transfer = awaited == TRANSFER
    rows = np.flatnonzero((graph.sort == WORK) & ~graph.blind & graph.counted)
    block, transfer, other = (
        _last(waits.of[some], met[some], len(graph))[rows] for some in (on_block, on_transfer, ~on_block & ~on_transfer)
    )
    start, lag = graph.start[rows], waits.lag.copy()
    most = SHORT * float(np.median(graph.length[rows])) if len(rows) else 0.0

    def usual(since: Times, rest: Times) -> int:
        """The usual launch of the blocks whose last wait was met at `since`."""
        shown = (since >= np.maximum(rest, other)) & later[rows]
        gap = soonest(graph.rank[rows[shown]], (start - since - late)[shown])
        return round(gap) if gap <= most else 0

    in_batches = (on_transfer & (graph.src[waits.on] == graph.rank[waits.of])).any()
    seen = on_transfer & (in_batches | ~graph.guessed[waits.on])  # else the end of a transfer may be part of the guess
    arrived = _last(waits.of[seen], met[seen], len(graph))[rows]
    launched_long_ago = arrived >= np.maximum(np.maximum(block + most, transfer), other)
    late = _lateness(graph.rank[rows], np.where(launched_long_ago, start - arrived, np.nan))
    after_block = usual(block, transfer)
    after_transfer = usual(transfer, block + after_block)
    for some, took in ((on_block, after_block), (on_transfer, after_transfer)):
        at = np.flatnonzero(some & later[waits.of])
        lag[at] += np.minimum(took, graph.start[waits.of[at]] - met[at])
    del met, awaited, same_rank
    if (joint := np.flatnonzero(graph.joint)).size:
        launch = ready_of(replace(waits, lag=lag), graph.start, graph.end) - graph.ready
        lag[joint] += launch[waits.of[joint]]
    small = np.iinfo(np.int32)
    fits = small.min <= lag.min(initial=0) and lag.max(initial=0) <= small.max
    return replace(waits, lag=lag.astype(np.int32) if fits else lag)


def _last(of: Ints, met: Times, count: int) -> Times:
    """When the last of these waits of each operation was met; long ago if it has none."""
    last = np.full(count, np.iinfo(np.int64).min // 2)
    np.maximum.at(last, of, met)
    return last


def _lateness(rank: Ints, gap: Floats) -> Times:
    """By how much the rank of each block is later than others to start blocks whose launch was long over."""
    each = pl.DataFrame({"rank": rank, "gap": gap}).with_columns(pl.col("gap").fill_nan(None))
    fifth = pl.col("gap").quantile(FIFTH, "lower").over("rank")
    least = each.group_by("rank").agg(pl.col("gap").quantile(FIFTH, "lower"))["gap"].quantile(FIFTH, "lower") or 0
    late = pl.when(fifth - least > POSTED_NS).then(fifth - least).fill_null(0)
    return each.select(late.cast(pl.Int64)).to_series().to_numpy()


def soonest(rank: Ints, gap: Times) -> float:
    """The lowest fifth over ranks of each rank's lowest fifth of the gaps: half of the ranks may be late."""
    fifth = pl.col("gap").quantile(FIFTH, "lower")
    each = pl.DataFrame({"rank": rank, "gap": gap}).group_by("rank").agg(fifth)["gap"]
    return max(float(each.quantile(FIFTH, "lower") or 0), 0.0)
