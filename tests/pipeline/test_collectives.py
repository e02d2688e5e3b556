"""Which parts of collectives belong together, in recordings that begin or end elsewhere on each rank."""

import random

import polars as pl
import pytest

from trace_export.model import COLLECTIVES, RANKS, Profile, conform
from trace_export.pipeline.collectives import number

MS = 1_000_000


def recorded(ends_ms: dict[int, list[float]], hosts: dict[int, str] | None = None) -> Profile:
    """Ranks whose collectives end at these times and are counted from the start of each recording."""
    rows = [
        {"rank": rank, "group": "g", "op": "all-reduce", "sequence": n, "start_ns": int((end - 1) * MS),
         "end_ns": int(end * MS)}
        for rank, ends in ends_ms.items()
        for n, end in enumerate(ends)
    ]  # fmt: skip
    ranks = pl.DataFrame({"rank": list(ends_ms), "host": [(hosts or {}).get(rank, "a") for rank in ends_ms]})
    return Profile(ranks=conform(ranks, RANKS), collectives=conform(pl.DataFrame(rows), COLLECTIVES))


def numbers(profile: Profile) -> dict[int, list[int]]:
    result = number(profile).collectives.sort("rank", "start_ns")
    return dict(result.group_by("rank", maintain_order=True).agg("sequence").iter_rows())


@pytest.mark.parametrize("seed", range(20))
def test_parts_of_one_collective_have_one_number(seed: int) -> None:
    """Steps of nearly one length, on one host or on two whose clocks differ by less than half a step; every rank's
    recording begins and ends elsewhere."""
    draw = random.Random(seed)
    step, times = draw.choice([20, 100]), draw.randrange(6, 12)
    true = [n * step + draw.uniform(0, 0.3) for n in range(times)]
    hosts = {rank: draw.choice("ab") for rank in range(1, 4)}
    clocks = {"a": 0.0, "b": draw.uniform(-0.4, 0.4) * step}
    kept = {0: range(times), **{rank: range(draw.randrange(3), times - draw.randrange(2)) for rank in hosts}}
    ends = {
        rank: [true[n] + clocks[hosts.get(rank, "a")] + draw.uniform(0, 0.01) for n in some]
        for rank, some in kept.items()
    }
    assert numbers(recorded(ends, hosts)) == {rank: list(some) for rank, some in kept.items()}


def test_a_clock_that_is_steps_off_moves_no_whole_recording() -> None:
    whole = [100.0 * n for n in range(6)]
    result = numbers(recorded({0: whole, 1: [end + 203 for end in whole]}, {1: "b"}))
    assert result == {0: list(range(6)), 1: list(range(6))}
