"""The passes of a run, against a count of them block by block."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.profiles import placed, profile, span
from trace_export.clocks.apply import correct
from trace_export.model import CLOCKS, PASSES, WORK_KINDS, Profile, conform
from trace_export.pipeline.interpret import conclude
from trace_export.pipeline.passes import passes_of
from trace_export.schedules.schedule import schedule
from trace_export.schedules.simulate import Costs, simulate

NUMBERS = st.none() | st.integers(0, 5)
BLOCKS = st.tuples(st.integers(0, 2), st.sampled_from([*WORK_KINDS, "OPT", None]), NUMBERS, NUMBERS, NUMBERS, NUMBERS)


@settings(max_examples=60, deadline=None)
@given(blocks=st.lists(BLOCKS, max_size=12))
def test_each_block_runs_the_passes_of_its_kind(blocks: list[tuple[int, str | None, int | None, ...]]) -> None:
    spans = [
        span(rank, kind, number, 10 * n, 10 * n + 5, chunk=chunk, microbatch_b=number_b, chunk_b=chunk_b)
        for n, (rank, kind, number, chunk, number_b, chunk_b) in enumerate(blocks)
    ]
    made = profile(spans, {0: 0, 1: 1, 2: None})
    expected = []
    for row in made.spans.to_dicts():
        own = {"F": "F", "B": "B", "W": "W", "FB": "FB"}.get(row["kind"], "")
        for kind in own:
            half = "_b" if own == "FB" and kind == "B" else ""
            expected.append(
                {
                    "id": len(expected), "span": row["id"], "rank": row["rank"], "run": 0, "step": 0, "kind": kind,
                    "microbatch": row[f"microbatch{half}"], "chunk": row[f"chunk{half}"] or 0,
                    "stage": {0: 0, 1: 1, 2: None}[row["rank"]], "replica": 0 if row["rank"] < 2 else None,
                    "start_ns": row["start_ns"], "end_ns": row["end_ns"],
                }
            )  # fmt: skip
    found = passes_of(made)
    assert dict(found.schema) == PASSES
    assert found.to_dicts() == expected


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "dualpipev"])
def test_a_micro_batch_passes_each_chunk_forward_and_backward_once(name: str) -> None:
    run = simulate(schedule(name, 2, 6), Costs(10, 10, 10))
    passes = run.passes() if run.interpretation else conclude(placed(run)).passes()
    counts = passes.group_by("kind", "microbatch", "chunk", "stage").len()
    assert (counts["len"] == 1).all()
    of_kind = dict(counts.group_by("kind").len().iter_rows())
    assert of_kind["F"] == of_kind["B"] == 2 * 6 * (2 if name == "dualpipev" else 1)


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
    found = late.passes()
    assert found["id"].to_list() == [1, 2, 3, 4, 5]
    times = {row["id"]: (row["start_ns"], row["end_ns"]) for row in moved.spans.to_dicts()}
    assert [times[row["span"]] for row in found.to_dicts()] == list(found.select("start_ns", "end_ns").iter_rows())
    assert found.filter(pl.col("rank") == 1)["start_ns"].to_list() == [
        start - 7 for start in made.spans.filter(pl.col("rank") == 1)["start_ns"]
    ]


def test_passes_of_a_profile_that_was_not_interpreted() -> None:
    with pytest.raises(ValueError, match="has not been interpreted"):
        Profile().passes()
