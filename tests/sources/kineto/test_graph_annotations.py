"""Kernels in CUDA graphs that are annotated with the pass they belong to."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from samples.generators import torch_pftrace
from samples.generators.kineto_trace import Trace
from samples.generators.pipeline import MS, US, Simulation, Timing, simulate, zb_h1
from tests.conftest import Cli
from tests.support.torch_traces import loaded, notes, times
from trace_export.errors import SourceError
from trace_export.sources.shared import parted_rows


@pytest.fixture(autouse=True, params=[1 << 20, 0], ids=["in memory", "on disk"])
def _held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where launches and kernels wait for each other."""
    monkeypatch.setattr(parted_rows, "MOST_BYTES", request.param)


WHEREVER = pytest.mark.parametrize("_held", [1 << 20], ids=["in memory"], indirect=True)
"""For tests of what is decided before anything waits."""
STAGES, MICROBATCHES, STEPS = 4, 6, 3
TIMING = Timing(
    {"F": 4 * MS, "B": 5 * MS, "W": 3 * MS, "OPT": 2 * MS}, hop=200 * US, lead=20 * US, gap=MS, first=50 * MS,
    length_jitter=range(-300, 300), blocking_receives=True,
)  # fmt: skip
KINDS = {"B": "I"}
"""What torch.distributed.pipelining calls a kind, where it is another name."""


def replay(trace: Trace, at: int) -> int:
    return trace.call(at, name="cudaGraphLaunch")


def annotated(trace: Trace, call: int, start: int, end: int, name: str, kernel: str = "gemm", **args: Any) -> None:
    trace.kernel(start, end, call, name=kernel, **args)
    trace.events[-1]["args"]["name"] = name


def traced(run: Simulation, rank: int) -> Trace:
    """A whole step is one replay; the CPU is a step ahead of the device, and launches the optimizer right after it."""
    trace = Trace(rank=rank, world=STAGES, host="node0")
    for step in range(STEPS):
        cpu = MS + step * MS
        trace.range(cpu, cpu + 900 * US, f"ProfilerStep#{step + 10}")
        call = replay(trace, cpu + 100 * US)
        trace.range(cpu + 200 * US, cpu + 400 * US, "Optimizer.step#AdamW.step")
        for b in (b for b in run.blocks if (b.rank, b.step) == (rank, step)):
            third = (b.end_ns - b.start_ns) // 3
            if b.kind == "OPT":
                trace.kernel(b.start_ns, b.end_ns, trace.call(cpu + 300 * US))
                continue
            name = f"PP:{rank}{KINDS.get(b.kind, b.kind)}{b.microbatch}"
            for part, stream in ((0, 9), (1, 7), (2, 9)):
                start = b.start_ns + part * third
                annotated(trace, call, start, b.end_ns if part == 2 else start + third, name, stream=stream)
        for t in (t for t in run.transfers if t.step == step and rank in (t.sender, t.receiver)):
            side = "SEND" if rank == t.sender else "RECV"
            name = f"PP:{rank}{side}_{t.kind}{t.microbatch}"
            annotated(trace, call, t.issued_ns(rank), t.done_ns, name, "ncclDevKernel_SendRecv", stream=20)
        trace.kernel(cpu + 45 * MS, cpu + 46 * MS, call, name="copy_of_the_inputs")
    return trace


def test_a_pipeline_in_one_graph_is_drawn_exactly(run_cli: Cli, tmp_path: Path) -> None:
    orders = [zb_h1(stage, STAGES, MICROBATCHES) for stage in range(STAGES)]
    run = simulate(orders, TIMING, range(STEPS), random.Random(1))
    for rank in range(STAGES):
        traced(run, rank).write(tmp_path / "logs" / f"rank{rank}.json")
    done = run_cli(tmp_path / "logs", "--format", "csv", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "ZB-H1, exactly" in done.stdout
    found = pl.read_csv(next((tmp_path / "out").glob("*.csv")))
    columns = ["rank", "step", "kind", "microbatch", "start_ns", "end_ns"]
    base = Trace.base_ns or 0
    truth = [(b.rank, b.step + 10, b.kind, b.microbatch, base + b.start_ns, base + b.end_ns) for b in run.blocks]
    assert sorted(found.select(columns).rows(), key=str) == sorted(truth, key=str)
    document = json.loads(run_cli("report", tmp_path / "logs", "--json").stdout)
    assert sum(link["transfers"] for link in document["links"]) == len(run.transfers)


def test_a_graph_of_one_pass_belongs_to_the_range_that_replays_it(tmp_path: Path) -> None:
    """It was captured for micro-batch 0 and is replayed for all."""
    trace = Trace()
    for microbatch in range(3):
        at = 1_000 + microbatch * 10_000
        trace.range(at, at + 500, f"PP:0F{microbatch}")
        call = replay(trace, at + 100)
        for start in (at + 1_000, at + 2_000):
            annotated(trace, call, start, start + 900, "PP:0F0")
    found = loaded(trace.write(tmp_path / "rank0.json"))
    assert times(found) == [(f"PP:0F{m}", 2_000 + m * 10_000, 3_900 + m * 10_000) for m in range(3)]


def test_what_runs_backward_through_a_forward_is_no_forward(tmp_path: Path) -> None:
    trace = Trace()
    call = replay(trace, 1_000)
    annotated(trace, call, 2_000, 3_000, "Forward 0")
    annotated(trace, call, 4_000, 5_000, "Forward 0", autograd_phase="backward")
    annotated(trace, call, 4_000, 6_000, "Backward 0")
    found = loaded(trace.write(tmp_path / "rank0.json"))
    assert times(found) == [("Backward 0", 4_000, 6_000), ("Forward 0", 2_000, 3_000)]
    assert notes(found)["tasks-outside-blocks"] == 1


def test_work_that_is_launched_later_belongs_to_no_replayed_pass(tmp_path: Path) -> None:
    """The device still replays when the CPU launches it, outside all ranges."""
    trace = Trace()
    annotated(trace, replay(trace, 1_000), 20_000, 30_000, "PP:0F0")
    trace.kernel(40_000, 50_000, trace.call(25_000))
    assert times(loaded(trace.write(tmp_path / "rank0.json"))) == [("PP:0F0", 20_000, 30_000)]


def test_a_replay_whose_launch_is_not_in_the_trace_is_drawn(tmp_path: Path) -> None:
    trace = Trace()
    annotated(trace, 99_999, 20_000, 30_000, "PP:0F0")
    assert times(loaded(trace.write(tmp_path / "rank0.json"))) == [("PP:0F0", 20_000, 30_000)]


@WHEREVER
@pytest.mark.parametrize("name", ["forward", "layers.0.attention", "te:unknown", ""])
def test_names_without_a_number_are_no_passes(tmp_path: Path, name: str) -> None:
    """All micro-batches of a replay may have it."""
    trace = Trace()
    annotated(trace, replay(trace, 1_000), 2_000, 3_000, name)
    with pytest.raises(SourceError, match=r"no pass is named"):
        loaded(trace.write(tmp_path / "rank0.json"))


@WHEREVER
@pytest.mark.parametrize("options", [{"infer": "only"}, {"host_ranges": True}])
def test_annotations_of_kernels_do_not_count_where_others_are_asked_for(
    tmp_path: Path, options: dict[str, object]
) -> None:
    trace = Trace()
    annotated(trace, replay(trace, 1_000), 2_000, 3_000, "PP:0F0")
    with pytest.raises(SourceError, match=r"no pass is named|is named like a pipeline block"):
        loaded(trace.write(tmp_path / "rank0.json"), **options)


FORMS: dict[str, Callable[[str], dict[str, Any]]] = {
    "name": lambda name: {"name": name},
    "PyTorch 2.12": lambda name: {"str": name},
    "monitor": lambda name: {"annotation": json.dumps([{"name": name}])},
    "monitor, PyTorch 2.13": lambda name: {"annotation": json.dumps([{"str": name}])},
    "monitor, nested": lambda name: {"annotation": json.dumps([{"name": "outer", "dtype": "bf16"}, {"name": name}])},
    "one text": lambda name: {"annotation": name},
}  # fmt: skip
"""In which forms PyTorch writes the annotation of a kernel, as its arguments."""


@WHEREVER
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("write", [Trace.write, torch_pftrace.write], ids=["json", "pftrace"])
def test_annotations_are_read_in_every_form(tmp_path: Path, form: str, write: Any) -> None:
    trace = Trace()
    call = replay(trace, 1_000)
    for microbatch, start in ((0, 2_000), (1, 4_000)):
        for part in (0, 500):
            trace.kernel(start + part, start + part + 400, call)
            trace.events[-1]["args"] |= FORMS[form](f"PP:0F{microbatch}")
    phase = {"annotation": json.dumps([{"name": "PP:0F1", "autograd_phase": "backward"}])}
    trace.kernel(9_000, 9_500, call, **phase)
    found = loaded(write(trace, tmp_path / ("t.json" if write is Trace.write else "t.pftrace")))
    assert times(found) == [("PP:0F0", 2_000, 2_900), ("PP:0F1", 4_000, 4_900)]
    assert notes(found)["tasks-outside-blocks"] == 1
