"""A transfer or collective with an end that cannot be moves no clock."""

import random
from dataclasses import replace

import polars as pl
import pytest

from tests.support.clock_runs import Clocks, make
from tests.support.rows import crossed
from trace_export.clocks.align import align
from trace_export.model import Declared, Profile
from trace_export.pipeline.interpret import interpret

S = 10**9


def starts(profile: Profile) -> pl.Series:
    """Of all blocks, less what they have in common."""
    times = profile.spans.sort("rank", "step", "kind", "microbatch")["start_ns"]
    return times - round(times.mean())  # type: ignore[arg-type]


@pytest.mark.parametrize(("seed", "by", "place"), crossed(range(12), [5 * S, 3600 * S], ["any", "last"]))
def test_one_transfer_that_ends_far_too_late_moves_no_clock(seed: int, by: int, place: str) -> None:
    draw = random.Random(seed)
    clocks = Clocks(
        seed=seed, stages=draw.randint(2, 5), microbatches=draw.randint(4, 8), steps=draw.randint(1, 3),
        over_stages=draw.random() < 0.5, eager=draw.choice([0.0, 0.3]),
    )  # fmt: skip
    recorded = make(clocks).profile
    wanted = align(interpret(recorded, Declared()))
    row = draw.randrange(recorded.p2p.height) if place == "any" else recorded.p2p["start_ns"].arg_max()
    late = pl.when(pl.int_range(pl.len()) == row).then(pl.col("end_ns") + by).otherwise("end_ns")
    result = align(interpret(replace(recorded, p2p=recorded.p2p.with_columns(end_ns=late)), Declared()))
    (note,) = [note for note in result.notes if note.code == "tasks-past-next"]
    assert (note.level, note.count) == ("warning", 1)
    bound = result.clocks["bound_ns"].max()
    assert isinstance(bound, float)
    assert (starts(result) - starts(wanted)).abs().max() <= bound < 0.04 * S


@pytest.mark.parametrize("seed", range(8))
def test_one_collective_that_ends_far_too_late_moves_no_clock(seed: int) -> None:
    """It was taken for a drift, and the blocks were farther off than the bound. The last one of two, or one before."""
    draw = random.Random(seed)
    clocks = Clocks(seed=seed, stages=draw.randint(2, 5), microbatches=4, steps=draw.randint(2, 4), over_stages=True)
    recorded = make(clocks).profile
    wanted = align(interpret(recorded, Declared()))
    of_rank = recorded.collectives.with_row_index("row").filter(rank=recorded.collectives["rank"].max())
    row = draw.choice([of_rank["row"][0], of_rank.sort("start_ns")["row"][-1]])
    late = pl.when(pl.int_range(pl.len()) == row).then(pl.col("end_ns") + 3 * S).otherwise("end_ns")
    wrong = replace(recorded, collectives=recorded.collectives.with_columns(end_ns=late))
    result = align(interpret(wrong, Declared()))
    bound = result.clocks["bound_ns"].max()
    assert isinstance(bound, float)
    assert (starts(result) - starts(wanted)).abs().max() <= 5_000 < bound


@pytest.mark.parametrize("seed", range(4))
def test_transfers_that_wait_are_no_wrong_records(seed: int) -> None:
    """Receives are posted up to a pipeline's length before their data are sent."""
    clocks = Clocks(seed=seed, stages=6, microbatches=4, steps=2, eager=0.3, jitter_us=300.0)
    recorded = make(clocks).profile
    result = interpret(recorded, Declared())
    assert result.p2p["end_ns"].equals(recorded.p2p["end_ns"])
