"""Blocks that sequence numbers pair, and plans that are compared without weight gradients."""

from __future__ import annotations

import polars as pl

from trace_export.model import SPANS, Plan, conform
from trace_export.pipeline.labels import with_numbers_of_pairs
from trace_export.pipeline.schedule_match import exact_plan
from trace_export.schedules.words import word


def spans(*rows: tuple[str, int | None, int | None]) -> pl.DataFrame:
    """kind, microbatch, pair."""
    frame = pl.DataFrame(list(rows), ["kind", "microbatch", "pair"], orient="row")
    return conform(frame.with_columns(rank=0, run=0, chunk=pl.lit(0)), SPANS)


def test_a_backward_has_the_numbers_of_its_forward() -> None:
    """Backwards in reverse order, which no schedule known here has."""
    rows = spans(("F", 0, 7), ("F", 1, 8), ("B", 0, 8), ("B", 1, 7), ("W", None, 7))
    found, differing = with_numbers_of_pairs(rows)
    assert found["microbatch"].to_list() == [0, 1, 1, 0, 0]
    assert differing == 2


def test_blocks_without_a_pair_stay_as_they_are() -> None:
    rows = spans(("F", 0, None), ("B", 3, None), ("B", 1, 9), ("F", None, 9))
    found, differing = with_numbers_of_pairs(rows)
    assert found.equals(rows)
    assert differing == 0


def test_words_are_compared_without_weights_where_no_plan_fits_with_them() -> None:
    plan = Plan("interleaved-zb1p", 4, 8, 2)
    whole = {stage: word(plan, stage) for stage in range(4)}
    found = exact_plan(whole, 4, more=False)
    assert found is not None
    assert (found.plan, found.exact, found.weights) == (plan, True, True)
    merged = {stage: text.replace("WW", "W", 1) for stage, text in whole.items()}
    found = exact_plan(merged, 4, more=False)
    assert found is not None
    assert (found.plan, found.exact, found.weights) == (plan, False, False)
