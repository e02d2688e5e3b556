"""The SQL package and the summary in docs/sql, run by the real trace processor on both trace formats of the sample.

What is expected comes from the table of blocks.
"""

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

import trace_export
from tests.conftest import ROOT
from tests.support.trace_processor import TraceProcessor

SQL = ROOT / "trace_export" / "docs" / "sql"
STEP = 3


@pytest.fixture(scope="module")
def run(samples: Path) -> trace_export.Run:
    return trace_export.load(samples / "paddle" / "single").align()


@pytest.fixture(scope="module")
def blocks(run: trace_export.Run) -> pl.DataFrame:
    placed = run.spans.join(run.ranks.select("rank", "stage"), on="rank")
    first = run.spans["start_ns"].min()
    return placed.with_columns(ts=pl.col("start_ns") - first, dur=pl.col("end_ns") - pl.col("start_ns"))


@pytest.fixture(scope="module", params=["perfetto", "chrome"])
def trace(
    request: pytest.FixtureRequest, run: trace_export.Run, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TraceProcessor]:
    (path,) = run.write(tmp_path_factory.mktemp("trace"), [request.param])
    with TraceProcessor(path) as opened:
        opened.add_package(SQL / "trace_export")
        opened.query("INCLUDE PERFETTO MODULE trace_export.questions; SELECT 1")
        yield opened


def test_the_blocks_are_those_of_the_table(trace: TraceProcessor, blocks: pl.DataFrame) -> None:
    columns = ["ts", "dur", "rank", "stage", "step", "kind", "microbatch"]
    result = trace.query(f"SELECT {', '.join(columns)} FROM pp_block ORDER BY ts, rank")
    expected = blocks.select(pl.col(columns)).sort("ts", "rank")
    assert result.rows() == expected.rows()


def test_work_forward_and_busy_time(trace: TraceProcessor, blocks: pl.DataFrame) -> None:
    work = trace.query("SELECT stage, kind, blocks, dur, mean_dur FROM pp_work ORDER BY 1, 2")
    sums = blocks.group_by("stage", "kind").agg(pl.len(), pl.col("dur").sum(), mean=pl.col("dur").mean())
    assert work.rows() == sums.sort("stage", "kind").rows()
    forward = trace.query("SELECT microbatch, stage, mean_dur FROM pp_forward ORDER BY 1, 2")
    means = blocks.filter(kind="F").group_by("microbatch", "stage").agg(pl.col("dur").mean())
    assert forward["mean_dur"].to_list() == pytest.approx(means.sort("microbatch", "stage")["dur"].to_list())
    length = blocks.group_by("step").agg(pl.col("end_ns").max() - pl.col("start_ns").min())["end_ns"].sum()
    share = blocks.group_by("stage").agg(percent=100 * pl.col("dur").sum() / length).sort("stage")["percent"]
    busy = trace.query("SELECT percent FROM pp_busy ORDER BY stage")["percent"]
    assert busy.to_list() == pytest.approx(share.to_list())


def test_steps_and_their_bubble(trace: TraceProcessor, run: trace_export.Run, blocks: pl.DataFrame) -> None:
    result = trace.query("SELECT step, dur, bubble_percent FROM pp_step ORDER BY ts")
    length = blocks.group_by("step").agg(pl.col("end_ns").max() - pl.col("start_ns").min()).sort("step")["end_ns"]
    assert result["dur"].to_list() == length.to_list()
    assert result["bubble_percent"].to_list() == pytest.approx((100 * run.report().steps["bubble"]).to_list())


def test_gaps_and_long_blocks(trace: TraceProcessor, blocks: pl.DataFrame) -> None:
    following = blocks.sort("start_ns").with_columns(next=pl.col("start_ns").shift(-1).over("rank"))
    gaps = following.select("stage", gap=pl.col("next") - pl.col("end_ns")).filter(pl.col("gap") > 0)
    result = trace.query("SELECT stage, dur FROM pp_gap ORDER BY 2, 1")
    assert result.rows() == gaps.sort("gap", "stage").rows()
    ratio = pl.col("dur") / pl.col("dur").mean().over("rank", "kind")
    longest = blocks.with_columns(ratio=ratio).sort("ratio", descending=True).row(0, named=True)
    (first,) = trace.query("SELECT ts, rank, ratio FROM pp_long_block ORDER BY ratio DESC LIMIT 1").rows()
    assert first == (longest["ts"], longest["rank"], pytest.approx(longest["ratio"]))


def test_transfers_between_stages(trace: TraceProcessor, blocks: pl.DataFrame) -> None:
    """A forward goes to the next stage, a backward to the one before: 8 micro-batches over 3 borders in 3 steps."""
    ends = blocks.select("step", "microbatch", "kind", "stage", "start_ns", "end_ns")
    way = pl.when(pl.col("kind") == "F").then(1).otherwise(-1)
    sent = ends.filter(pl.col("kind").is_in(["F", "B"])).with_columns(stage=pl.col("stage") + way)
    waits = sent.join(ends, on=["step", "microbatch", "kind", "stage"], suffix="_in")
    expected = waits.select(pl.col("start_ns_in") - pl.col("end_ns"))["start_ns_in"].sort()
    result = trace.query("SELECT wait FROM pp_transfer ORDER BY 1")["wait"]
    assert result.to_list() == expected.to_list()
    assert len(result) == 2 * 8 * 3 * 3
    assert trace.query("SELECT * FROM pp_violation").is_empty()


def test_a_micro_batch_and_the_stages_that_are_busy(trace: TraceProcessor, blocks: pl.DataFrame) -> None:
    path = trace.query(f"SELECT name, stage, ts FROM pp_path(3, {STEP})")
    expected = blocks.filter(step=STEP, microbatch=3).sort("start_ns")
    assert path["ts"].to_list() == expected["ts"].to_list()
    assert path["name"].to_list() == ["F3"] * 4 + ["B3"] * 4
    for ts, stages in trace.query("SELECT ts, stages FROM pp_stages_busy ORDER BY ts LIMIT 50").rows():
        running = blocks.filter(pl.col("kind") != "OPT", pl.col("ts") <= ts, pl.col("ts") + pl.col("dur") > ts)
        assert running["stage"].n_unique() == stages


def test_the_summary(trace: TraceProcessor, run: trace_export.Run) -> None:
    bundles = trace.summary((SQL / "summary.textproto").read_text("utf-8"))
    assert set(bundles) == {"pp_step_time", "pp_bubble_percent", "pp_block_time", "pp_busy_percent"}
    bubble = dict(zip(run.report().steps["step"], 100 * run.report().steps["bubble"], strict=True))
    assert bundles["pp_bubble_percent"] == pytest.approx({(step,): value for step, value in bubble.items()})
    assert bundles["pp_block_time"].keys() == {(s, s, kind) for s in range(4) for kind in ("F", "B", "OPT")}
