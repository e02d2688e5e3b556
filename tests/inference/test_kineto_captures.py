"""What is peculiar to traces of torch.profiler in which no pass is named."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from samples.generators.kineto_trace import MAIN, Trace
from samples.generators.unmarked import AUTOGRAD, Program, write
from tests.inference.tools import SMALL, captures, profiles, spans, truth
from trace_export.sources.kineto import unmarked
from trace_export.sources.read import read
from trace_export.sources.source import ReadOptions, Source


def test_in_traces_of_2021_the_nodes_name_the_thread_of_autograd(tmp_path: Path) -> None:
    """They name no thread, number no operator, and say no rank."""
    blocks = write(tmp_path, replace(SMALL, operators=True), kineto="2021", threads=False)
    for path in captures("kineto", tmp_path):
        assert unmarked.read_process(path).named == {MAIN + AUTOGRAD}
    for rank, profile in enumerate(profiles("kineto", tmp_path)):
        wanted = truth("kineto", [block for block in blocks if block.rank == rank])
        assert [row[1:] for row in spans(profile)] == [row[1:] for row in wanted]


@pytest.mark.parametrize("experts", [False, True])
def test_the_same_rules_hold_for_hip_and_rccl(tmp_path: Path, experts: bool) -> None:
    blocks = write(tmp_path, replace(SMALL, experts=experts, varying=experts, waits=False), rocm=True)
    result = profiles("kineto", tmp_path)
    assert spans(*result) == truth("kineto", blocks)
    assert all(profile.p2p.height for profile in result)


def test_the_fill_between_two_backwards_of_the_last_stage_is_the_later_ones(tmp_path: Path) -> None:
    """Rank 0 has the last stage of the V, and runs its backwards one after another."""
    blocks = write(tmp_path, Program(schedule="vee", tokens=False, operators=True), kineto=True)
    assert spans(profiles("kineto", tmp_path)[0]) == truth("kineto", [b for b in blocks if b.rank == 0])


def test_the_step_and_the_optimizer_are_those_of_pytorchs_own_ranges(tmp_path: Path) -> None:
    trace = Trace()
    for step in range(3):
        at = 1_000_000 * (step + 1)
        trace.range(at, at + 900_000, f"ProfilerStep#{step + 7}")
        for number, (name, thread) in enumerate(
            [("gemm", 4001), ("norm", 4001), ("gemm", 4010), ("gemm_b", 4010), ("my_update", 4001), ("other", 4001)]
        ):
            launch = at + 10_000 * (number + 1)
            trace.kernel(launch + 5_000, launch + 14_000, trace.call(launch, thread=thread), name=name)
        trace.range(at + 49_000, at + 69_000, "Optimizer.step#Mine.step")
    trace.name_thread(4010, "thread 4010 (pt_autograd_0)")
    path = trace.write(tmp_path / "rank0.pt.trace.json")
    spans = read(Source("kineto", path, "node0"), ReadOptions()).spans
    assert spans.select("kind", "step").rows() == [(kind, step) for step in (7, 8, 9) for kind in ("F", "B", "OPT")]
    assert spans.filter(pl.col("kind") == "OPT")["end_ns"].to_list() == [
        (Trace.base_ns or 0) + 1_000_000 * step + 74_000 for step in (1, 2, 3)
    ]
