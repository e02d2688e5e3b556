"""Which block a transfer belongs to, where the source says neither that nor the other side; counted by hand."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from trace_export.model import P2P, RANKS, SPANS, Declared, Profile, conform
from trace_export.pipeline import transfers

F0 = {"kind": "F", "microbatch": 0, "start_ns": 20, "end_ns": 30}
B0 = {"kind": "B", "microbatch": 0, "start_ns": 50, "end_ns": 70}
F1 = {"kind": "F", "microbatch": 1, "start_ns": 90, "end_ns": 100}
B1 = {"kind": "B", "microbatch": 1, "start_ns": 120, "end_ns": 140}


def told(received: list[int], sent: list[int], stage: int, pp: int | None) -> list[str]:
    """What the rank received and sent at these times, in their order; each lasts for 5 ns."""
    sides: list[dict[str, Any]] = [
        {"rank": 5, "role": role, "start_ns": time, "end_ns": time + 5}
        for role, times in (("recv", received), ("send", sent))
        for time in times
    ]
    profile = Profile(
        ranks=conform(pl.DataFrame({"rank": [5], "stage": [stage]}), RANKS),
        spans=conform(pl.DataFrame([{**block, "rank": 5} for block in (F0, B0, F1, B1)]), SPANS),
        p2p=conform(pl.DataFrame(sides), P2P),
        declared=Declared(pp=pp),
    )
    rows = transfers.label(profile).p2p.sort("start_ns").select(pl.format("{} {}{}", "role", "direction", "microbatch"))
    return rows.to_series().to_list()


def test_a_stage_between_others_takes_and_gives_with_every_block() -> None:
    found = told(received=[10, 40, 80, 110], sent=[32, 72, 102, 142], stage=2, pp=4)
    assert found == ["recv F0", "send F0", "recv B0", "send B0", "recv F1", "send F1", "recv B1", "send B1"]


@pytest.mark.parametrize("pp", [3, None])
def test_the_last_stage_takes_no_gradients_and_gives_no_activations(pp: int | None) -> None:
    """The second micro-batch came before the first one's backward began."""
    found = told(received=[10, 40], sent=[102, 142], stage=2, pp=pp)
    assert found == ["recv F0", "recv F1", "send B0", "send B1"]
