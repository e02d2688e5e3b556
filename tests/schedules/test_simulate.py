"""The model of a step: against computed cases, published formulas, and chains worked out by hand."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.schedules.test_schedule import planned
from trace_export.errors import UsageError
from trace_export.schedules.catalogue import TITLES, canonical
from trace_export.schedules.schedule import Schedule, schedule
from trace_export.schedules.simulate import Costs, durations, simulate, start_and_end


def makespan(name: str, stages: int, microbatches: int, costs: Costs, chunks: int | None = None) -> float:
    s = schedule(name, stages, microbatches, chunks)
    return float(start_and_end(s, durations(s, costs), costs.transfer)[1].max())


def idle(s: Schedule, start: np.ndarray, end: np.ndarray) -> pl.DataFrame:
    """stage, first, last, busy of a run in which no block overlaps another of its rank."""
    frame = s.ops.select("stage", start=pl.Series(start), end=pl.Series(end))
    return frame.group_by("stage", maintain_order=True).agg(
        first=pl.col("start").min(), last=pl.col("end").max(), busy=(pl.col("end") - pl.col("start")).sum()
    )


def test_expected_cases(golden: Path) -> None:
    """Makespan, busy time and both bubbles of each rank in every computed case."""
    cases = json.loads((golden / "expected.json").read_text())
    for case in cases:
        s = planned(golden / case["orders"])
        unit = case["per_chunk"]
        costs = Costs(unit["F"], unit["I"] if s.splits else unit["B"], unit["W"], overlap=case["overlap_factor"])
        start, end = start_and_end(s, durations(s, costs), case["comm"])
        where = f"{case['orders']} {case['case']}"
        assert end.max() == pytest.approx(case["makespan"], abs=1e-9), where
        for rank, (_, first, last, busy) in zip(case["ranks"], idle(s, start, end).iter_rows(), strict=True):
            measured = {
                "first": first, "last": last, "busy": busy, "bubble_global": end.max() - busy,
                "bubble_own": last - first - busy,
            }  # fmt: skip
            for key, value in measured.items():
                assert value == pytest.approx(rank[key], abs=1e-9), (where, rank["rank"], key)
    assert len(cases) > 50


def test_every_span_of_the_unit_cases(golden: Path) -> None:
    spans = pl.read_csv(golden / "spans_unit.csv")
    for (orders,), expected in spans.group_by("orders", maintain_order=True):
        s = planned(Path(f"{orders}.csv"))
        unit = 1 / s.chunks
        start, end = start_and_end(s, durations(s, Costs(unit, unit if s.splits else 2 * unit, unit)))
        names = [op for row in s.text().splitlines() for op in row.split(",")]
        ours = pl.DataFrame({"rank": s.ops["stage"], "op": names, "start": start, "end": end})
        theirs = expected.select("rank", "op", "start", "end")
        joined = theirs.join(ours, on=["rank", "op"], suffix="_ours")
        assert len(joined) == len(theirs) == len(ours), orders
        for column in ("start", "end"):
            assert (joined[column] - joined[f"{column}_ours"]).abs().max() < 1e-9, (orders, column)


PS_MS = [(2, 4), (4, 8), (8, 32), (3, 9), (1, 3)]


@pytest.mark.parametrize(("p", "m"), PS_MS)
@pytest.mark.parametrize(("f", "b"), [(1, 2), (3, 5), (2, 2)])
def test_formula_of_one_f_one_b(p: int, m: int, f: float, b: float) -> None:
    for name in ("gpipe", "1f1b", "eager-1f1b"):
        assert makespan(name, p, m, Costs(f, b)) == (m + p - 1) * (f + b)


@pytest.mark.parametrize(("p", "m", "v"), [(4, 8, 2), (2, 8, 4), (8, 32, 2), (4, 8, 3)])
def test_formula_of_interleaved(p: int, m: int, v: int) -> None:
    """Idle (p-1)(F+B)/v, F and B per rank; here per chunk."""
    assert makespan("interleaved", p, m, Costs(1, 2), v) == pytest.approx(m * v * 3 + (p - 1) * 3)


@pytest.mark.parametrize(("p", "m"), [(4, 8), (8, 32), (3, 9)])
@pytest.mark.parametrize(("f", "i", "w"), [(1, 1, 1), (3, 4, 2), (4, 3, 3)])
def test_formula_of_zero_bubble(p: int, m: int, f: float, i: float, w: float) -> None:
    """Global idle (p-1)(F+I-W) for ZB-H1 and (p-1)F for ZB-H2, where W is the shortest."""
    assert makespan("zb-h1", p, m, Costs(f, i, w)) == m * (f + i + w) + (p - 1) * (f + i - w)
    assert makespan("zb-h2", p, m, Costs(f, i, w)) == m * (f + i + w) + (p - 1) * f


@pytest.mark.parametrize(("p", "m"), [(4, 8), (8, 32)])
def test_formula_of_zb_v_and_dual_pipes(p: int, m: int) -> None:
    """F = I = W = 1 per chunk: ZB-V idles p-1 globally; DualPipe(V) (stages/2 - 1)(F&B + B - 3W)."""
    assert makespan("zb-v", p, m, Costs(1, 1, 1)) == m * 2 * 3 + (p - 1)
    assert makespan("dualpipev", p, m, Costs(1, 1, 1)) == m * 2 * 3 + (p - 1) * (3 + 2 - 3)
    assert makespan("dualpipe", p, m, Costs(1, 1, 1)) == m * 3 + (p // 2 - 1) * (3 + 2 - 3)


def test_transfer_by_hand() -> None:
    """Two stages, one micro-batch: F, transfer, F, B, transfer, B."""
    assert makespan("1f1b", 2, 1, Costs(10, 20, transfer=3)) == 10 + 3 + 10 + 20 + 3 + 20


def test_many_durations_at_once() -> None:
    """A second axis runs several cases in one go, each as if it were alone."""
    s = schedule("zb-v", 4, 8)
    rng = np.random.default_rng(1)
    cases = rng.integers(1, 100, (len(s.ops), 3)).astype(float)
    start, end = start_and_end(s, cases, 7)
    for k in range(3):
        alone = start_and_end(s, cases[:, k], 7)
        assert np.array_equal(start[:, k], alone[0])
        assert np.array_equal(end[:, k], alone[1])


def test_orders_that_cannot_run_are_refused() -> None:
    with pytest.raises(UsageError, match="never ends"):
        makespan("interleaved", 4, 5, Costs(1, 1), 3)


@pytest.mark.parametrize("name", TITLES)
def test_profile_of_the_model(name: str) -> None:
    s = schedule(name, 4, 8) if name != "interleaved-split-paddle" else schedule(name, 4, 4)
    profile = simulate(s, Costs(10_000_000, 10_000_000, 10_000_000, 1_000_000)).validate()
    assert len(profile.spans) == len(s.ops)
    assert set(profile.spans["origin"]) == {"model"}
    assert profile.ranks["stage"].to_list() == [0, 1, 2, 3]
    assert canonical(profile.declared.schedule) == name
    assert profile.spans["start_ns"].min() == 0
