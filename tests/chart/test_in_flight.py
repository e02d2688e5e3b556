"""Activations in flight, against what the papers and the simulator say of each schedule."""

from pathlib import Path

import polars as pl
import pytest

import trace_export
from tests.support.trace_processor import TraceProcessor
from trace_export.chart.in_flight import in_flight
from trace_export.schedules.catalogue import CATALOGUE
from trace_export.schedules.schedule import schedule

COSTS = {"forward": 1000, "backward": 2000, "weight": 1000}


def counted(run: trace_export.Run | trace_export.Simulation) -> pl.DataFrame:
    result = in_flight(run.profile.passes(), run.profile.interpreted.placement)
    return pl.concat(counts.with_columns(stage=pl.lit(stage), rank=pl.lit(rank)) for stage, rank, counts in result)


def table(rows: list[tuple[int, str, int | None, int, int]], folder: Path) -> trace_export.Run:
    """A run of one stage: step, kind, micro-batch, start and end in µs."""
    frame = pl.DataFrame(rows, ["step", "kind", "microbatch", "start_ns", "end_ns"], orient="row")
    place = {"rank": pl.lit(0), "stage": pl.lit(0), "host": pl.lit("h"), "chunk": pl.lit(0)}
    path = folder / "blocks.parquet"
    frame.with_columns(pl.col("start_ns", "end_ns") * 1000, **place).write_parquet(path)
    return trace_export.load(path)


def samples(run: trace_export.Run) -> list[tuple[int, float]]:
    """Time in µs and value."""
    return counted(run).select(pl.col("ts_ns") // 1000, "value").rows()


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 8), (8, 3)])
def test_1f1b_holds_as_many_as_stages_follow(stages: int, microbatches: int) -> None:
    """Stage s of p holds min(p - s, m) micro-batches (Narayanan et al. 2021), and GPipe all of them."""
    most = (
        counted(trace_export.simulate("1f1b", stages, microbatches, COSTS)).group_by("stage").agg(pl.col("value").max())
    )
    assert most.sort("stage")["value"].to_list() == [min(stages - s, microbatches) for s in range(stages)]
    everything = counted(trace_export.simulate("gpipe", stages, microbatches, COSTS))
    assert everything.group_by("stage").agg(pl.col("value").max())["value"].to_list() == [microbatches] * stages


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_every_schedule_holds_what_its_order_says(name: str) -> None:
    """The peak of `Schedule.in_flight` counts in the order of the blocks; this counts in time, and ends at zero."""
    microbatches = 4 if name == "interleaved-split-paddle" else 8
    order = schedule(name, 4, microbatches)
    share = 1 if order.placement == "both" else order.chunks
    result = counted(trace_export.simulate(name, 4, microbatches, COSTS))
    peak = result.group_by("stage").agg(pl.col("value").max()).sort("stage")["value"] * share
    assert peak.to_list() == pytest.approx(order.in_flight().sort("stage")["chunks"].to_list(), rel=1e-4)
    assert result.group_by("stage").agg(pl.col("value").last(), least=pl.col("value").min()).rows() == [
        (stage, 0, 0) for stage in result["stage"].unique(maintain_order=True)
    ]


def test_the_moments_are_those_of_the_blocks(tmp_path: Path) -> None:
    rows = [(0, "F", 0, 0, 10), (0, "F", 1, 10, 20), (0, "B", 0, 20, 40), (0, "B", 1, 50, 70)]
    assert samples(table(rows, tmp_path)) == [(0, 1), (10, 2), (40, 1), (70, 0)]


def test_a_weight_gradient_frees_the_activations(tmp_path: Path) -> None:
    rows = [(0, "F", 0, 0, 10), (0, "B", 0, 10, 20), (0, "F", 1, 20, 30), (0, "W", 0, 30, 40), (0, "B", 1, 40, 50),
            (0, "W", 1, 60, 70)]  # fmt: skip
    assert samples(table(rows, tmp_path)) == [(0, 1), (20, 2), (40, 1), (70, 0)]


def test_a_step_that_was_recorded_in_part(tmp_path: Path) -> None:
    """The first backward had its forward before the recording; of the last step no backward was recorded."""
    rows = [(0, "B", 0, 0, 10), (0, "F", 1, 10, 20), (0, "B", 1, 20, 40), (1, "F", 0, 50, 60), (1, "F", 1, 60, 70)]
    assert samples(table(rows, tmp_path)) == [(0, 1), (40, 0)]


def test_a_window_that_cuts_a_step(tmp_path: Path) -> None:
    """As many forwards as backwards, but not of the same micro-batches: 0 and 1 were in flight before, 5 stays so."""
    rows = [(0, "B", 0, 0, 10), (0, "F", 5, 15, 25), (0, "B", 1, 25, 45), (0, "F", 6, 45, 55)]
    assert samples(table(rows, tmp_path)) == [(0, 2), (10, 1), (15, 2), (55, 0)]
    only_back = [(0, "B", 0, 0, 10), (0, "B", 1, 10, 20)]
    assert samples(table(only_back, tmp_path)) == [(0, 2), (10, 1), (20, 0)]


def test_blocks_without_a_backward_hold_nothing(tmp_path: Path) -> None:
    assert samples(table([(0, "F", 0, 0, 10), (0, "F", 1, 10, 20)], tmp_path)) == []


@pytest.mark.parametrize("name", ["perfetto", "chrome"])
def test_both_traces_have_the_counters(name: str, tmp_path: Path) -> None:
    run = trace_export.simulate("1f1b", 4, 8, COSTS)
    (path,) = run.write(tmp_path, [name])
    sql = "SELECT t.name, max(c.value) FROM counter c JOIN track t ON c.track_id = t.id WHERE t.name GLOB 'in flight*'"
    with TraceProcessor(path) as trace:
        result = trace.query(f"{sql} GROUP BY 1 ORDER BY 1").rows()
        assert trace.problems().is_empty()
    assert result == [(f"in flight · stage {s} · rank {s}", 4 - s) for s in range(4)]
