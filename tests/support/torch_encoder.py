"""Write a trace of `kineto_trace` with PyTorch's own encoder of Perfetto traces.

    PYTHONPATH=. python tests/support/torch_encoder.py out.pftrace

The Python that runs it needs PyTorch 2.14 or later and cupti-python, but no GPU: what CUPTI would report is made up.
tests/golden/torch_2_14_1.pftrace was written so; test_perfetto_trace.py reads it.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from samples.generators.kineto_trace import MAIN, Trace

LAUNCH_KERNEL = 211
"""The number of cudaLaunchKernel in CUPTI's interface."""
KINDS = ("kernel", "gpu_memcpy", "gpu_memset")
NUMBERS = ("device", "stream", "correlation", "grid")
"""Arguments of tasks that are numbers of CUPTI; the others are what NCCL says of a collective."""
POWER = 3
"""The number of the kind of sample that has a device's power, in mW."""


def two_blocks() -> Trace:
    """A forward and a backward with kernels on two streams, a copy, a transfer by NCCL and operators."""
    trace = Trace(rank=None, host=None)
    for at, name in ((0, "F0"), (100_000, "B0")):
        trace.range(at + 1_000, at + 60_000, name)
        trace.range(at + 2_000, at + 9_000, "aten::linear", cat="cpu_op")
        for i in range(3):
            call = trace.call(at + 3_000 + 1_000 * i)
            trace.kernel(at + 20_000 + 9_000 * i, at + 27_003 + 9_000 * i, call, name=f"gemm_{i}")
        trace.copy(at + 50_000, at + 50_700, trace.call(at + 7_000))
        call = trace.call(at + 8_000)
        given = {
            "Collective name": "send",
            "Process Group Name": "3",
            "dtype": "Half",
            "In msg nelems": 5,
            "Dst Rank": 1,
        }
        trace.kernel(at + 51_000, at + 57_000, call, name="ncclDevKernel_SendRecv", stream=20, **given)
    return trace


def columns(trace: Trace) -> dict[str, dict[str, Any]]:
    """What the monitor of PyTorch gathers from CUPTI, by kind, as far as the encoder needs it."""
    import numpy as np

    base = trace.base_ns or 0
    result = {}
    for kind in (*KINDS, "cuda_runtime"):
        events = [event for event in trace.events if event["cat"] == kind]
        numbers: dict[str, list[int]] = {
            "start_ns": [base + e["ts"].ns for e in events],
            "end_ns": [base + e["ts"].ns + e["dur"].ns for e in events],
            "correlation_id": [e["args"]["correlation"] for e in events],
        }
        if kind == "cuda_runtime":
            numbers |= {"cbid": [LAUNCH_KERNEL] * len(events), "process_id": [MAIN] * len(events)}
            numbers["thread_id"] = [e["tid"] for e in events]
        else:
            numbers |= {"device_id": [e["args"]["device"] for e in events]}
            numbers |= {"stream_id": [e["args"]["stream"] for e in events]}
            numbers |= dict.fromkeys(("context_id", "graph_node_id", "graph_id"), [0] * len(events))
        frame = {name: np.array(values, np.int64) for name, values in numbers.items()}
        if kind == "kernel":
            given = [{k: v for k, v in e["args"].items() if k not in NUMBERS} for e in events]
            frame["name"] = np.array([e["name"] for e in events], object)
            frame["metadata"] = np.array([json.dumps(t) if t else None for t in given], object)
        result[kind] = frame
    power = {"start_ns": [base + 1_000], "device_id": [0], "environment_kind": [POWER], "data": [700_000]}
    result["environment"] = {name: np.array(values) for name, values in power.items()}
    return result


def encode(trace: Trace, path: Path) -> None:
    from torch.profiler._cupti import monitor_trace  # type: ignore[import-not-found]

    with tempfile.TemporaryDirectory() as folder:
        json_path = trace.write(Path(folder) / "t.json")
        window = {"columns": columns(trace)}
        monitor_trace.merge_trace_window_into_chrome_trace(json_path, path, window)


if __name__ == "__main__":
    encode(two_blocks(), Path(sys.argv[1]))
