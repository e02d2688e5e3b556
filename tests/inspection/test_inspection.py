"""The sentence that says whether profiles can be drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

import trace_export
from samples.generators.kineto_trace import Trace
from tests.support.torch_traces import one_block


def test_one_of_each_is_no_plural(tmp_path: Path) -> None:
    one_block().write(tmp_path / "rank0.json")
    assert ": 1 stage, 1 micro-batch, 1 step" in trace_export.inspect(tmp_path).verdict


@pytest.mark.parametrize("device", [True, False])
def test_device_tasks_are_those_of_a_device(tmp_path: Path, device: bool) -> None:
    trace = Trace()
    trace.range(1_000, 9_000, "F0.0.0")
    if device:
        trace.kernel(20_000, 30_007, trace.call(5_000, thread=77))
    trace.write(tmp_path / "rank0.json")
    assert trace_export.inspect(tmp_path, host_ranges=True).ranks["device_tasks"].to_list() == [device]
