"""Which block a transfer belongs to and who is on its other side, where the source does not say; counted by hand."""

from typing import Any, Literal

import polars as pl
import pytest

from tests.support.profiles import concluded
from trace_export.model import P2P, RANKS, SPANS, Declared, Profile, conform, empty
from trace_export.pipeline.transfers import find_peers


def pipelines(stages: int, replicas: int, rows: list[dict[str, Any]], **declared: Any) -> Profile:
    """`replicas` pipelines; rank = stage * replicas + replica."""
    ranks = [{"rank": s * replicas + d, "stage": s, "dp": d} for s in range(stages) for d in range(replicas)]
    made = Profile(
        ranks=conform(pl.DataFrame(ranks), RANKS),
        p2p=conform(pl.DataFrame(rows), P2P) if rows else empty(P2P),
        spans=conform(pl.DataFrame({"rank": [0], "kind": ["F"], "microbatch": [0], "chunk": [0]}), SPANS),
        declared=Declared(**declared),
    )
    return concluded(made)


def row(rank: int, role: str, direction: str | None, chunk: int | None = None) -> dict[str, Any]:
    return {"rank": rank, "role": role, "direction": direction, "microbatch": 0, "chunk": chunk, "start_ns": 0}


def test_neighbours_within_a_replica() -> None:
    rows = [row(r, role, way) for r in range(6) for role in ("send", "recv") for way in "FB"]
    filled = find_peers(pipelines(3, 2, rows)).p2p
    for rank, role, way, peer in filled.select("rank", "role", "direction", "peer").iter_rows():
        other = rank + (2 if (role == "send") == (way == "F") else -2)
        assert peer == (other if 0 <= other < 6 else None)
    assert filled["chunk"].null_count() == len(rows)


@pytest.mark.parametrize("placement", ["loop", "vee"])
def test_chunks_go_round_or_come_back(placement: Literal["loop", "vee"]) -> None:
    stages = 3

    def stage(rank: int, chunk: int) -> int:
        return chunk * stages + rank if placement == "loop" or chunk == 0 else 2 * stages - 1 - rank

    place = {stage(r, c): (r, c) for r in range(stages) for c in range(2)}
    rows = [row(r, role, way, c) for r, c in place.values() for role in ("send", "recv") for way in "FB"]
    filled = find_peers(pipelines(stages, 1, rows, placement=placement, chunks=2)).p2p
    for before, after in zip(rows, filled.iter_rows(named=True), strict=True):
        step = 1 if (before["role"] == "send") == (before["direction"] == "F") else -1
        peer, its_chunk = place.get(stage(before["rank"], before["chunk"]) + step, (None, None))
        assert after["peer"] == peer
        receiving = its_chunk if before["role"] == "send" and its_chunk is not None else before["chunk"]
        assert after["chunk"] == receiving


def test_what_is_known_stays_and_what_is_unknown_stays_open() -> None:
    rows = [{**row(0, "send", "F"), "peer": 2}, row(0, "send", None), row(0, "both", "F")]
    assert find_peers(pipelines(3, 1, rows)).p2p["peer"].to_list() == [2, None, None]
    bare = pipelines(3, 1, [row(0, "send", "F")])
    unplaced = concluded(Profile(ranks=bare.ranks.with_columns(stage=pl.lit(None, pl.Int32)), p2p=bare.p2p))
    assert find_peers(unplaced).p2p["peer"].to_list() == [None]
    assert find_peers(pipelines(3, 1, [])).p2p.is_empty()
