"""Measured durations in the places of a schedule's order, and the model beside the measurement."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from trace_export.analysis.durations import measure, model_of
from trace_export.model import Profile
from trace_export.schedules.schedule import TITLES, schedule
from trace_export.schedules.simulate import Costs, as_profile, durations, run, simulate

NAMES = [name for name in TITLES if name != "interleaved-split-paddle"]


@pytest.mark.parametrize("name", NAMES)
def test_the_durations_of_a_simulated_run_come_back(name: str) -> None:
    """Random durations in, the same out, and with them the same times."""
    s = schedule(name, 4, 8)
    lengths = np.random.default_rng(3).integers(100, 1000, len(s.ops)).astype(float)
    start, end = run(s, lengths)
    measured = measure(as_profile(s, start, end), s)
    assert np.array_equal(measured.all()[:, 0], lengths)
    assert np.array_equal(run(s, measured.all())[1][:, 0], end)


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
    measured = measure(as_profile(s, *run(s, lengths.astype(float))), s)
    forwards = s.ops["kind"].to_numpy() == "F"
    assert set(measured.typical()[forwards & (s.ops["stage"].to_numpy() == 0)]) == {20}
    assert set(measured.typical(["kind"], "mean")[forwards]) == {(10 + 20 + 90 + 7 * 3) / 6}


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "dualpipe", "interleaved"])
def test_model_of_a_model_is_the_model(name: str) -> None:
    """Two steps of a run that follows its schedule exactly, the second one later and with two replicas."""
    s = schedule(name, 4, 8)
    one = as_profile(s, *run(s, durations(s, Costs(1000, 1500, 700))))
    late = one.spans.with_columns(pl.col("start_ns") + 10**6, pl.col("end_ns") + 10**6, step=pl.lit(1, pl.Int32))
    profile = Profile(ranks=one.ranks, spans=pl.concat([one.spans, late]))
    model = model_of(profile)
    key = ["step", "stage", "start_ns", "end_ns", "kind", "microbatch", "chunk", "microbatch_b", "chunk_b"]
    measured = profile.spans.with_columns(stage="rank").select(key)
    assert model.select(key).sort(key).equals(measured.sort(key))
    assert model["track"][0] == f"stage 0 ({s.title}, model)"
    assert set(model["origin"]) == {"model"}


def test_no_model_of_an_unknown_order() -> None:
    assert model_of(Profile()).is_empty()
