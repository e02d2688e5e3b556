"""A new fit moves the picture by at most the stated error, and a step in a clock is said."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_export.live.steady_clocks import STEP_SD, steadied
from trace_export.model import CLOCKS, conform


def clocks(offset_ns: int, sd_ns: float, drift: float = 0.0, reference_ns: int = 0) -> pl.DataFrame:
    row = {"host": "b", "status": "fitted", "offset_ns": offset_ns, "drift": drift, "reference_ns": reference_ns}
    return conform(pl.DataFrame([row | {"sd_ns": sd_ns}]), CLOCKS)


@given(st.integers(-(10**9), 10**9), st.integers(-(10**6), 10**6), st.floats(1, 1e5), st.floats(1, 1e5))
def test_the_picture_does_not_jump(before: int, change: int, old_sd: float, sd: float) -> None:
    result, notes = steadied(clocks(before, old_sd), clocks(before + change, sd))
    moved = result["offset_ns"][0] - before
    if abs(change) > STEP_SD * (old_sd**2 + sd**2) ** 0.5:
        assert moved == change
        assert [note.code for note in notes] == ["clock-stepped"]
    else:
        assert notes == []
        assert abs(moved) <= sd + 1
        assert abs(change - moved) <= abs(change)


def test_fits_with_a_drift_are_compared_at_one_time() -> None:
    """100 ns in a second of drift are no step a second later."""
    result, notes = steadied(clocks(0, 10, drift=1e-7), clocks(100, 10, drift=1e-7, reference_ns=10**9))
    assert notes == []
    assert result["offset_ns"][0] == 100


def test_the_first_fit_is_taken_as_it_is() -> None:
    now = clocks(5, 1)
    assert steadied(None, now) == (now, [])


@pytest.mark.parametrize("status", ["wall", "single-host"])
def test_clocks_that_are_not_fitted_stay(status: str) -> None:
    now = clocks(5, 1).with_columns(status=pl.lit(status))
    assert steadied(clocks(0, 1), now)[0] is now
