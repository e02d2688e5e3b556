"""Measured durations in the places of a schedule's order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from trace_export.analysis.durations import Measured
from trace_export.analysis.durations import measure as measured_in
from trace_export.model import Profile
from trace_export.pipeline.block_order import sequences
from trace_export.pipeline.passes import passes_of
from trace_export.schedules.catalogue import TITLES
from trace_export.schedules.schedule import Schedule, schedule
from trace_export.schedules.simulate import Costs, as_profile, simulate, start_and_end


def measure(profile: Profile, s: Schedule) -> Measured:
    passes = passes_of(profile)
    return measured_in(passes, s, sequences(passes))


NAMES = [name for name in TITLES if name != "interleaved-split-paddle"]


@pytest.mark.parametrize("name", NAMES)
def test_the_durations_of_a_simulated_run_come_back(name: str) -> None:
    """Random durations in, the same out, and with them the same times."""
    s = schedule(name, 4, 8)
    lengths = np.random.default_rng(3).integers(100, 1000, len(s.ops)).astype(float)
    start, end = start_and_end(s, lengths)
    measured = measure(as_profile(s, start, end), s)
    assert np.array_equal(measured.all()[:, 0], lengths)
    assert np.array_equal(start_and_end(s, measured.all())[1][:, 0], end)


def test_pairs_that_were_recorded_as_two_blocks() -> None:
    """The forward covers the first 200 of a pair, the backward all but the first 50: together the whole pair."""
    s = schedule("dualpipev", 2, 4)
    profile = simulate(s, Costs(100, 100, 100))
    pairs = profile.spans.filter(pl.col("kind") == "FB")
    forward = pairs.with_columns(kind=pl.lit("F"), end_ns=pl.col("start_ns") + 200)
    back = pairs.with_columns(
        kind=pl.lit("B"), chunk="chunk_b", microbatch="microbatch_b", start_ns=pl.col("start_ns") + 50
    )
    spans = pl.concat([profile.spans.filter(pl.col("kind") != "FB"), forward, back])
    both = spans.with_columns(microbatch_b=pl.lit(None, pl.Int32), chunk_b=pl.lit(None, pl.Int32))
    assert np.array_equal(measure(replace(profile, spans=both), s).all()[:, 0], measure(profile, s).all()[:, 0])


def test_typical_durations() -> None:
    """Stage 0 takes 10, 20, 90 for its forwards, stage 1 takes 7 for each."""
    s = schedule("1f1b", 2, 3)
    lengths = np.array([{0: [10, 20, 90], 1: [7, 7, 7]}[row["stage"]][row["microbatch"]] for row in s.ops.to_dicts()])
    measured = measure(as_profile(s, *start_and_end(s, lengths.astype(float))), s)
    forwards = s.ops["kind"].to_numpy() == "F"
    assert set(measured.typical()[forwards & (s.ops["stage"].to_numpy() == 0)]) == {20}
    assert set(measured.typical(["kind"], "mean")[forwards]) == {(10 + 20 + 90 + 7 * 3) / 6}
