"""Device tasks of all kinds of devices."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import polars as pl
import pytest

from samples.generators.kineto_trace import MAIN, Trace
from tests.support.torch_traces import BASE, loaded, one_block, times
from trace_export import api, run
from trace_export.choices import Detail
from trace_export.errors import SourceError
from trace_export.sources.kineto import device_tasks
from trace_export.sources.kineto.reader import read_tasks
from trace_export.sources.shared import chrome_json
from trace_export.sources.source import Source, TaskRequest


def tasks(path: Path) -> pl.DataFrame:
    request = TaskRequest(Source("kineto", path, "machine0"), "kernels", {0: 0}, None, path.parent)
    (file,) = read_tasks(request)
    return pl.read_ipc(file.path).with_columns(pl.col("start_ns", "end_ns") - BASE, pl.col("name").cast(pl.String))


@pytest.mark.parametrize(
    ("runtime", "kernel", "copy"),
    [
        ("cuda_runtime", "kernel", "gpu_memcpy"),
        ("Runtime", "Kernel", "Memcpy"),
        ("xpu_runtime", "kernel", "gpu_memcpy"),
        ("xpu_driver", "kernel", "gpu_memset"),
        ("privateuse1_runtime", "kernel", "gpu_memcpy"),
        ("mtia_runtime", "mtia_ccp_events", "gpu_memcpy"),
        ("mlu_runtime", "kernel", "mlu_memcpy"),
        ("gcu_runtime", "kernel", "GCU_MEMSET"),
    ],
)
@pytest.mark.parametrize("joined", ["correlation", "External id"])
def test_categories_of_every_device(tmp_path: Path, runtime: str, kernel: str, copy: str, joined: str) -> None:
    """Launch and task are joined by the correlation id, or by the operator's number where a device has none."""
    trace = Trace()
    trace.range(1_000, 9_000, "F0.0.0")
    trace.add(runtime, "launch", 5_000, 5_002, MAIN, **{joined: 55})
    trace.add(kernel, "matmul", 20_000, 30_007, 7, device=0, stream=7, **{joined: 55})
    trace.add(copy, "copy", 40_000, 40_007, 7, device=0, stream=7, **{joined: 56})
    path = trace.write(tmp_path / "t.json")
    assert times(loaded(path)) == [("F0.0.0", 20_000, 30_007)]
    assert tasks(path).rows() == [
        ("stream 7", "matmul", "compute", 20_000, 30_007),
        ("stream 7", "copy", "memory", 40_000, 40_007),
    ]


def test_kernels_of_gaudi_do_not_say_their_launch(tmp_path: Path) -> None:
    """Its profiler writes neither a correlation id nor an operator's number: the tasks are drawn, no block has work."""
    trace = Trace()
    trace.range(1_000, 9_000, "F0.0.0")
    trace.add("hpu_op", "synLaunch", 5_000, 5_002, MAIN)
    trace.add("kernel", "matmul", 20_000, 30_007, 3, device=1)
    path = trace.write(tmp_path / "t.json")
    with pytest.raises(
        SourceError,
        match=r"no call here launched any of its GPU tasks, so that no range has GPU work; draw .* with `host_ranges`",
    ):
        loaded(path)
    assert times(loaded(path, host_ranges=True)) == [("F0.0.0", 1_000, 9_000)]
    assert tasks(path).rows() == [("stream 3", "matmul", "compute", 20_000, 30_007)]


def test_a_correlation_id_is_no_number_of_an_operator(tmp_path: Path) -> None:
    trace = one_block()
    trace.add("kernel", "other", 90_000, 99_000, 7, **{"External id": 101})  # one_block's correlation id
    assert times(loaded(trace.write(tmp_path / "t.json"))) == [("F0.0.0", 20_000, 30_007)]


@pytest.mark.parametrize("other", ["1", None])
def test_streams_of_two_devices_are_two_groups(tmp_path: Path, other: str | None) -> None:
    trace = one_block()
    for i in range(3):
        trace.copy(40_000 + i, 41_000, 5)
        if other is not None:
            trace.events[-1]["args"]["device"] = int(other)
    result = tasks(trace.write(tmp_path / "t.json"))["stream"].to_list()
    assert result == (["device 0 stream 7"] + ["device 1 stream 7"] * 3 if other else ["stream 7"] * 4)


def test_kernels_of_rccl_are_communication(tmp_path: Path) -> None:
    trace = one_block()
    names = ["ncclDevKernel_Generic_4(ncclDevKernelArgs)", "void ncclKernel_X()", "rcclGenericKernel", "mscclKernel_Y"]
    for i, name in enumerate(names):
        trace.kernel(50_000 + i, 50_001 + i, 5, name=name)
    result = tasks(trace.write(tmp_path / "t.json"))
    assert result.filter(pl.col("category") == "communication")["name"].to_list() == names


def many_tasks(path: Path) -> Path:
    """A trace with tasks of two devices, collectives, copies and launches in mixed order, some at equal times."""
    trace = one_block()
    for i in range(30):
        at = 40_000 + 1_000 * (i * 7 % 30)
        name = "ncclDevKernel_AllReduce_Sum" if i % 3 == 0 else f"gemm{i % 4}"
        trace.kernel(at, at + 500, trace.call(10_000 + i), name=name, stream=7 + i % 2)
        trace.copy(at, at + 100, trace.call(11_000 + i))
        trace.events[-1]["args"]["device"] = i % 2
    return trace.write(path)


@pytest.mark.parametrize("detail", ["comm", "kernels"])
@pytest.mark.parametrize("window", [None, (BASE + 45_000, BASE + 52_000)])
def test_tasks_kept_with_the_blocks_are_those_that_are_read(
    tmp_path: Path, detail: Detail, window: tuple[int, int] | None
) -> None:
    path = many_tasks(tmp_path / "t.json")
    kept, read = tmp_path / "kept", tmp_path / "read"
    kept.mkdir()
    read.mkdir()
    request = TaskRequest(Source("kineto", path, "machine0"), detail, {0: 3}, window, read)
    with patch.object(chrome_json, "READ_BYTES", 700):
        loaded(path, keep_tasks=kept)
        (expected,) = read_tasks(request)
    with patch.object(device_tasks, "open_trace", side_effect=AssertionError("is read again")):
        (result,) = read_tasks(replace(request, folder=kept, kept=kept))
    assert result.rank == expected.rank == 3
    tables = [pl.read_ipc(file.path).cast({"name": pl.String}) for file in (result, expected)]
    assert tables[0].height > 1
    assert tables[0].equals(tables[1])


def test_the_command_reads_a_trace_once(tmp_path: Path) -> None:
    many_tasks(tmp_path / "rank0.json")
    with patch.object(device_tasks, "open_trace", side_effect=AssertionError("is read again")):
        api.export(tmp_path, tmp_path / "kept", detail="kernels")
    with patch.object(run, "KEPT_SOURCES", 0):
        api.export(tmp_path, tmp_path / "read", detail="kernels")
    kept, read = ({f.name: f.read_bytes() for f in (tmp_path / out).iterdir()} for out in ("kept", "read"))
    assert len(kept) == 2
    assert kept == read


def test_tasks_that_cannot_be_kept_are_read(tmp_path: Path) -> None:
    path = many_tasks(tmp_path / "t.json")
    expected = tasks(path)
    full = OSError(28, "No space left on device")
    with patch.object(Path, "rename", side_effect=full):
        assert loaded(path, keep_tasks=tmp_path).spans.height == 1
    request = TaskRequest(Source("kineto", path, "machine0"), "kernels", {0: 0}, None, tmp_path, kept=tmp_path)
    (file,) = read_tasks(request)
    assert pl.read_ipc(file.path).height == expected.height
