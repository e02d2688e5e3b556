"""Blocks that wait for one another inside, worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.profiles import ORIGIN, concluded, profile, span, table
from trace_export.model import COLLECTIVES, Profile
from trace_export.steps.build import build
from trace_export.steps.inner import inner
from trace_export.steps.recorded import recorded
from trace_export.steps.replay import Replay

MS = 1_000_000


def two_ranks(*, exchange: bool) -> Profile:
    """Rank 0 is done with its first forward at 10 ms, rank 1 at 24. In their second ones both need 10 ms of work, and
    exchange data after 2, for which rank 0 waits from 12 to 26."""
    blocks = [
        span(rank, "F", m, a * MS, b * MS, chunk=0)
        for rank, m, a, b in [(0, 0, 0, 10), (0, 1, 10, 34), (1, 0, 0, 24), (1, 1, 24, 34)]
    ]
    made = concluded(profile(blocks, {0: 0, 1: 0}))
    rows = [
        {"rank": rank, "group": "experts", "op": "all_to_all", "sequence": n, "start_ns": ORIGIN + start * MS,
         "end_ns": ORIGIN + end * MS}
        for n, parts in enumerate([[(0, 1, 2), (1, 1, 2)], [(0, 12, 27), (1, 26, 27)]])
        for rank, start, end in parts
    ]  # fmt: skip
    return replace(made, collectives=table(rows if exchange else [], COLLECTIVES))


@pytest.mark.parametrize(("exchange", "takes"), [(True, 20), (False, 34)])
def test_who_is_waited_for_inside_lets_others_go_on_earlier(exchange: bool, takes: int) -> None:
    """Were the first forward of rank 1 done at 10 ms, both would end at 20; the second one of rank 0 has no more than
    10 ms of work. Without the exchange nothing tells that it waits."""
    graph = build(recorded(two_ranks(exchange=exchange)))
    replay, length, delay = Replay(graph), graph.length.astype(np.float64), graph.delay.astype(np.float64)
    assert replay.means([(length, delay)]).tolist() == [34 * MS]
    long = np.flatnonzero((graph.rank == 1) & (graph.length == 24 * MS))
    length[long] = 10 * MS
    assert replay.means([(length, delay)]).tolist() == [takes * MS]
    assert inner(graph).waited.max() == (14 * MS if exchange else 0)
