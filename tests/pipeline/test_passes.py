"""The passes of a run, against a count of them block by block."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from tests.support.profiles import profile, span
from trace_export.clocks.apply import correct
from trace_export.model import CLOCKS, Profile, conform
from trace_export.pipeline.interpret import conclude


def two_hosts() -> Profile:
    spans = [span(rank, kind, 0, 100 * n, 100 * n + 50) for rank in (0, 1) for n, kind in enumerate(["F", "B"])]
    made = profile([*spans, span(0, "FB", 1, 500, 600, microbatch_b=2, chunk_b=1)], {0: 0, 1: 1})
    hosts = pl.when(pl.col("rank") == 1).then(pl.lit("node-b")).otherwise("host").alias("host")
    return conclude(replace(made, ranks=made.ranks.with_columns(hosts)))


def test_passes_have_the_times_that_their_blocks_have_now() -> None:
    """The clock of the second host is corrected by 7 ns, and the first block of the first is filtered out."""
    made = two_hosts()
    clock = pl.DataFrame({"host": ["node-b"], "offset_ns": [7], "drift": [0.0], "reference_ns": [0]})
    moved = correct(made, conform(clock, CLOCKS))
    late = replace(moved, spans=moved.spans.filter(pl.col("id") > 0))
    result = late.passes()
    assert result["id"].to_list() == [1, 2, 3, 4, 5]
    times = {row["id"]: (row["start_ns"], row["end_ns"]) for row in moved.spans.to_dicts()}
    assert [times[row["span"]] for row in result.to_dicts()] == list(result.select("start_ns", "end_ns").iter_rows())
    assert result.filter(pl.col("rank") == 1)["start_ns"].to_list() == [
        start - 7 for start in made.spans.filter(pl.col("rank") == 1)["start_ns"]
    ]


def test_passes_of_a_profile_that_was_not_interpreted() -> None:
    with pytest.raises(ValueError, match="has not been interpreted"):
        Profile().passes()
