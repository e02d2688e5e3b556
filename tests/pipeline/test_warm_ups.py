"""Which steps are a warm-up, and left out of means."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

import trace_export


@pytest.mark.parametrize(
    ("lengths", "left_out"),
    [
        ([6, 1, 1, 1], [0]),
        ([2.01, 1, 1], [0]),
        ([1.99, 1, 1], []),
        ([9, 2.5, 1, 1.2], [0, 1]),
        ([9, 1.5, 1, 1.2], [0]),
        ([6, 1], []),  # nobody knows which of two is usual
        ([9, 9, 9, 1, 1], []),  # three of five are no exception
        ([1, 6, 1, 1], []),  # a stop, not at the beginning
        ([6, 1, 5, 1, 1], []),  # steps are long at times
    ],
)
def test_steps_at_the_beginning_that_are_far_longer_than_any_later_one(
    lengths: Sequence[float], left_out: list[int], tmp_path: Path
) -> None:
    rows = []
    for step, length in enumerate(lengths):
        for stage in range(2):
            begin, middle, end = (20 * step + stage + part * length for part in (0, 0.5, 1))
            rows += [("F", step, stage, 0, begin, middle), ("B", step, stage, 0, middle, end)]
    names = ["kind", "step", "stage", "microbatch", "start", "end"]
    frame = pl.DataFrame(rows, names, orient="row").with_columns(
        rank="stage", start_ns=(pl.col("start") * 1e9).cast(pl.Int64), end_ns=(pl.col("end") * 1e9).cast(pl.Int64)
    )
    frame.drop("start", "end").write_parquet(tmp_path / "run.parquet")
    run = trace_export.load(tmp_path / "run.parquet")
    steps = run.report().steps
    assert steps.filter(~pl.col("counts"))["step"].to_list() == left_out
    assert steps["whole"].all()
    assert ("warm-up" in [note.code for note in run.notes]) == bool(left_out)
