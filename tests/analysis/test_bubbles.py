"""Idle time: by hand, against the model's computed cases, and the rules that any run has to keep."""

import json
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schedules.test_schedule import planned
from tests.support.profiles import concluded, with_messages
from tests.support.rows import examples
from trace_export.analysis.bubbles import Bubbles
from trace_export.model import RANKS, SPANS, Declared, Profile, conform
from trace_export.schedules.schedule import schedule
from trace_export.schedules.simulate import Costs, as_profile, durations, simulate, start_and_end
from trace_export.steps.idle import CAUSES

PARTS = [f"{cause}_ns" for cause in CAUSES]


def profile_of(blocks: list[tuple[object, ...]], stages: int = 2) -> Profile:
    """Blocks as (rank, kind, micro-batch, start, end) of one step, rank = stage."""
    columns = ["rank", "kind", "microbatch", "start_ns", "end_ns"]
    spans = pl.DataFrame(blocks, schema=columns, orient="row").with_columns(run=0, step=0, chunk=0)
    ranks = pl.DataFrame({"rank": range(stages), "stage": range(stages)})
    return concluded(Profile(ranks=conform(ranks, RANKS), spans=conform(spans, SPANS)))


BY_HAND = profile_of(
    [
        (0, "F", 0, 100, 110), (0, "F", 1, 110, 120), (0, "B", 0, 165, 185), (0, "B", 1, 205, 225),
        (1, "F", 0, 113, 125), (1, "B", 0, 125, 155), (1, "F", 1, 160, 170), (1, "B", 1, 170, 190),
        (1, "OPT", None, 195, 210),
    ]
)  # fmt: skip
"""Rank 0 waits 120-165: B0 of rank 1 ends at 155, its data come at 165. It waits 185-205: B1 ends at 190, starts 205.
Rank 1 starts 13 after rank 0. F1 starts at 160 though its data were made at 120: late. Its optimizer runs 195-210."""


def test_parts_by_hand() -> None:
    rows = Bubbles(BY_HAND).ranks.select("rank", "busy_ns", "global_ns", "own_ns", *PARTS).rows()
    assert rows[0] == (0, 60, 65, 65, 0, 0, 35 + 5, 10 + 15, 0, 0, 0, 0, 0, 0)
    # The transfer of F0 to rank 1 took no idle time between blocks of rank 1: no usual transfer is known.
    assert rows[1] == (1, 72, 53, 5, 13, 0, 0, 0, 0, 0, 5, 0, 15, 20)


def test_shares_by_hand() -> None:
    steps = Bubbles(BY_HAND).steps.to_dicts()
    assert steps == [
        {
            "run": 0, "window": None, "step": 0, "start_ns": 100, "end_ns": 225, "ranks": 2, "whole": True,
            "counts": True,
            "bubble": (65 + 53) / 250, "bubble_own": (65 + 5) / (125 + 77), "pipeline_ns": 125, "step_ns": None,
        }
    ]  # fmt: skip


def test_slices_by_hand() -> None:
    rows = Bubbles(BY_HAND).slices.select("rank", "start_ns", "end_ns", "name", "waits_for").rows()
    assert rows == [
        (0, 120, 155, "waiting for backward of stage 1", 1),
        (0, 155, 165, "exposed transfer", 1),
        (0, 185, 190, "waiting for backward of stage 1", 1),
        (0, 190, 205, "exposed transfer", 1),
        (1, 100, 113, "warm-up", None),
        (1, 155, 160, "late start", None),
        (1, 190, 195, "cool-down", None),
        (1, 210, 225, "cool-down", None),
    ]


def test_transfer_under_way_when_the_rank_falls_idle() -> None:
    """F1 was made 2 before the rank fell idle and starts 4 after; transfers on this link take 4, so 2 of it is late."""
    blocks = [
        (0, "F", 0, 0, 10), (0, "F", 1, 10, 30), (0, "F", 2, 30, 34),
        (1, "W", 0, 0, 2), (1, "F", 0, 14, 20), (1, "F", 1, 34, 36), (1, "F", 2, 40, 50),
    ]  # fmt: skip
    ranks = Bubbles(profile_of(blocks)).ranks.filter(pl.col("rank") == 1)
    assert ranks.select("forward_ns", "transfer_ns", "late_ns").row(0) == (8 + 10, 4 + 4 + 2, 2)


def test_a_recorded_receive_says_when_the_data_are_here() -> None:
    """F1 was made 10 before the rank fell idle. Its receive runs from 23 to 37 of the idle time from 20 to 40. That of
    F0 lies before the idle time, and says nothing."""
    blocks = [(0, "F", 0, 0, 4), (0, "F", 1, 4, 10), (1, "F", 0, 10, 20), (1, "F", 1, 40, 50)]
    made = profile_of(blocks)
    receives = {"microbatch": [0, 1], "send_end_ns": [9, 37], "recv_start_ns": [4, 23], "recv_end_ns": [9, 37]}
    messages = pl.DataFrame(receives).with_columns(src_rank=0, dst_rank=1, direction=pl.lit("F"))
    bubbles = Bubbles(with_messages(made, messages))
    of_rank = pl.col("rank") == 1
    assert bubbles.ranks.filter(of_rank).select("transfer_ns", "late_ns", "forward_ns").row(0) == (14, 6, 0)
    rows = bubbles.slices.filter(of_rank).select("start_ns", "end_ns", "name").rows()
    between = [(20, 23, "late start"), (23, 37, "exposed transfer"), (37, 40, "late start")]
    assert rows == [(0, 10, "warm-up"), *between]


def test_missing_upstream_is_unknown() -> None:
    """Stage 1 waits for stage 0, which has no block here."""
    blocks = [(1, "F", 0, 0, 10), (1, "F", 1, 15, 25), (1, "B", 0, 30, 40)]
    ranks = Bubbles(profile_of(blocks)).ranks
    assert ranks.select("unknown_ns", "late_ns").row(0) == (5, 5)


def test_missing_downstream_is_unknown_where_the_number_of_stages_is_known() -> None:
    """Stage 0 waits for the backward of stage 1, which has no block here."""
    blocks = [(0, "F", 0, 0, 10), (0, "F", 1, 15, 25), (0, "B", 0, 60, 70)]
    made = profile_of(blocks, stages=1)
    assert Bubbles(made).ranks.select("unknown_ns", "late_ns").row(0) == (0, 40)  # a single stage waits for nobody
    made = replace(made, declared=replace(made.declared, pp=2))
    assert Bubbles(made).ranks.select("unknown_ns", "late_ns").row(0) == (35, 5)


def test_nothing_to_measure() -> None:
    empty = concluded(Profile())
    assert Bubbles(empty).ranks.is_empty()
    assert Bubbles(empty).steps.is_empty()
    assert Bubbles(empty).slices.is_empty()


def test_expected_cases(golden: Path, request: pytest.FixtureRequest) -> None:
    """Both bubbles of every rank, and the fractions, of computed cases, in nanoseconds: one of each order, all with
    --slow."""
    cases = json.loads((golden / "expected.json").read_text())
    if not request.config.getoption("--slow"):
        orders = groupby(sorted(cases, key=itemgetter("orders")), itemgetter("orders"))
        groups = [list(group) for _, group in orders]
        cases = [group[n % len(group)] for n, group in enumerate(groups)]
    for case in cases:
        s = planned(golden / case["orders"])
        unit = {k: v * 1e6 for k, v in case["per_chunk"].items()}
        costs = Costs(unit["F"], unit["I"] if s.splits else unit["B"], unit["W"], overlap=case["overlap_factor"])
        profile = concluded(as_profile(s, *start_and_end(s, durations(s, costs), case["comm"] * 1e6)))
        ranks = Bubbles(profile).ranks
        where = f"{case['orders']} {case['case']}"
        for name, key in (("global_ns", "bubble_global"), ("own_ns", "bubble_own"), ("busy_ns", "busy")):
            expected = [r[key] * 1e6 for r in case["ranks"]]
            assert ranks[name].to_list() == pytest.approx(expected, abs=1e-2), (where, name)
        step = Bubbles(profile).steps.row(0, named=True)
        assert step["bubble"] == pytest.approx(case["bubble_global_fraction"], abs=1e-8), where
        assert step["bubble_own"] == pytest.approx(case["bubble_own_fraction"], abs=1e-8), where
        assert (ranks.select(pl.sum_horizontal(PARTS)).to_series() == ranks["global_ns"]).all(), where
        assert ranks["unknown_ns"].sum() == 0, where


def test_transfers_of_the_model_are_found() -> None:
    """1F1B on two stages with a slow link. Rank 0 waits 20-43 for B0 and gets it at 46, waits 96-109 for B2 and gets it
    at 112. Rank 1 starts at 13, waits 73-76 for F2 and gets it at 79, ends at 109; the step ends at 132."""
    ranks = Bubbles(concluded(simulate(schedule("1f1b", 2, 3), Costs(10, 20, transfer=3)))).ranks
    parts = ranks.select("warm_up_ns", "forward_ns", "backward_ns", "transfer_ns", "late_ns", "cool_down_ns").rows()
    assert parts == [(0, 0, 23 + 13, 3 + 3, 0, 0), (13, 3, 0, 3, 0, 132 - 109)]


NAMES = st.sampled_from(
    ["gpipe", "1f1b", "eager-1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipev", "dualpipe"]
)


@st.composite
def jittered(draw: st.DrawFn) -> Profile:
    """A run of a schedule with random durations, delays, hosts' errors and missing blocks."""
    s = schedule(draw(NAMES), 4, 8)
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    start, end = start_and_end(s, rng.integers(1, 1000, len(s.ops)).astype(float), float(rng.integers(0, 300)))
    shift = rng.integers(-200, 200, len(start)) * draw(st.booleans())
    profile = as_profile(s, start + shift, end + shift)
    keep = pl.Series(rng.random(len(start)) < draw(st.sampled_from([1.0, 0.9])))
    optimizer = pl.DataFrame({"rank": [0, 1], "run": 0, "step": 0, "kind": "OPT", "start_ns": 10, "end_ns": 10**6})
    spans = pl.concat([profile.spans.filter(keep), conform(optimizer, SPANS)])
    return concluded(Profile(ranks=profile.ranks, spans=spans, declared=Declared(schedule=s.name)))


@examples(3)
@given(profile=jittered(), seed=st.integers(0, 1000))
def test_rules_of_any_run(profile: Profile, seed: int) -> None:
    ranks = Bubbles(profile).ranks
    window = ranks["step_end_ns"] - ranks["step_start_ns"]
    assert (ranks["busy_ns"] + ranks["global_ns"] == window).all()
    assert (ranks["busy_ns"] + ranks["own_ns"] == ranks["last_ns"] - ranks["first_ns"]).all()
    assert ranks.select(pl.min_horizontal("busy_ns", "own_ns", *PARTS)).to_series().min() >= 0  # type: ignore[operator]
    assert (ranks.select(pl.sum_horizontal(PARTS)).to_series() == ranks["global_ns"]).all()
    slices = Bubbles(profile).slices.with_columns(length=pl.col("end_ns") - pl.col("start_ns"))
    for cause, name in CAUSES.items():
        if cause != "optimizer":  # drawn as the optimizer's own blocks
            assert slices.filter(pl.col("cause") == name)["length"].sum() == ranks[f"{cause}_ns"].sum(), cause
    shuffled = Profile(
        ranks=profile.ranks.sample(fraction=1, shuffle=True, seed=seed),
        spans=profile.spans.sample(fraction=1, shuffle=True, seed=seed),
        declared=profile.declared,
    )
    shuffled = concluded(shuffled)
    assert Bubbles(shuffled).ranks.equals(ranks)
    assert Bubbles(shuffled).steps.equals(Bubbles(profile).steps)
