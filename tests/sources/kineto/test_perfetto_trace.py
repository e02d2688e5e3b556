"""Perfetto traces of torch.profiler: the same tables as of JSON, and everything that can be wrong."""

import gzip
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as perfetto

from samples.generators import torch_pftrace, unmarked
from samples.generators.kineto_trace import LAYOUTS, Trace
from tests.conftest import Cli
from tests.support import torch_encoder
from tests.support.one_source import read
from tests.support.torch_traces import BASE, loaded, notes, one_block, times
from tests.support.trace_processor import TraceProcessor
from trace_export.errors import SourceError
from trace_export.sources.find import find
from trace_export.sources.kineto import perfetto_trace
from trace_export.sources.kineto.reader import read_tasks
from trace_export.sources.shared import chrome_json
from trace_export.sources.source import ReadOptions, Source, TaskRequest

TORCH_2_14_1 = Path(__file__).parents[2] / "golden" / "torch_2_14_1.pftrace"
"""torch_encoder.two_blocks() as the encoder of PyTorch 2.14.1 wrote it."""


PROGRAM = unmarked.Program(stages=3, microbatches=6, layers=1)


def tasks(path: Path, detail: Any = "kernels") -> list[tuple[Any, ...]]:
    (file,) = read_tasks(TaskRequest(Source("kineto", path, "machine0"), detail, {0: 0}, None, path.parent))
    rows = pl.read_ipc(file.path).cast({"name": pl.String}).sort(pl.all()).rows()
    file.path.unlink()
    return rows


MOMENT = st.integers(1, 24)
RANGES = st.lists(
    st.tuples(MOMENT, st.integers(0, 20), st.sampled_from(["F{}.0.0", "SEND_FORWARD.{}.0.0", "Forward layer_{}"])),
    max_size=14,
)
KERNELS = st.lists(
    st.tuples(MOMENT, st.integers(0, 40), st.integers(0, 9), st.sampled_from(["gemm", "ncclDevKernel_SendRecv(args)"])),
    max_size=14,
)


@pytest.mark.parametrize("chunk", [1 << 22, 600])
@settings(max_examples=4, deadline=None)
@given(ranges=RANGES, kernels=KERNELS, layout=st.sampled_from(LAYOUTS))
def test_the_tables_are_those_of_json_in_every_layout(
    tmp_path_factory: pytest.TempPathFactory, chunk: int, ranges: list[Any], kernels: list[Any], layout: str
) -> None:
    trace = Trace()
    for number, (start, length, name) in enumerate([*ranges, (90, 9, "B{}.0.0")]):
        trace.range(start, start + length, name.format(number))
    for at, delay, length, name in [*kernels, (91, 4, 1, "gemm")]:
        trace.kernel(at + delay, at + delay + length, trace.call(at, thread=7), name=name)
    trace.range(2, 9, "te:Optimizer of an operator", cat="cpu_op")
    trace.range(3, 4, "aten::linear", cat="cpu_op")
    given = {"Collective name": "send", "Process Group Name": "3", "dtype": "Half", "In msg nelems": 5, "Dst Rank": 1}
    trace.kernel(300, 400, trace.call(91), name="ncclDevKernel_SendRecv(ncclArgs<4>)", stream=20, **given)
    trace.copy(95, 99, 3)
    trace.copy(93, 99, 3)
    trace.events[-1]["args"]["device"] = 1
    folder = tmp_path_factory.mktemp("same")
    json = trace.write(folder / "t.json")
    pftrace = torch_pftrace.write(trace, folder / "t.pftrace")
    other = trace.write(folder / "other.json.gz", layout)
    with patch.object(perfetto_trace, "READ_BYTES", chunk), patch.object(chrome_json, "READ_BYTES", 4 * chunk):
        result, expected, rewritten = loaded(pftrace), loaded(json), loaded(other)
        assert tasks(pftrace) == tasks(json) == tasks(other)
    for table in ("spans", "p2p", "collectives"):
        assert getattr(result, table).equals(getattr(expected, table)), table
        assert getattr(rewritten, table).equals(getattr(expected, table)), (table, layout)
    numbers = ("rank", "stage", "device")
    assert result.ranks.select(numbers).equals(expected.ranks.select(numbers))
    assert notes(result) == notes(expected)


def test_of_a_trace_that_is_looked_at_as_much_is_read_as_of_json(tmp_path: Path) -> None:
    """It is smaller than a beginning, so that is all of it."""
    json = one_block().write(tmp_path / "t.json")
    pftrace = torch_pftrace.write(one_block(), tmp_path / "t.pftrace")
    assert times(loaded(pftrace, beginning=1)) == times(loaded(json, beginning=1)) == [("F0.0.0", 20_000, 30_007)]


@pytest.mark.parametrize("threads", [True, False], ids=["threads named", "nameless threads"])
def test_passes_without_names_are_found(tmp_path: Path, threads: bool) -> None:
    def write(trace: Trace, path: Path, layout: str) -> Path:
        return torch_pftrace.write(trace, path.with_name(path.name.split(".")[0] + ".pftrace"))

    with patch.object(Trace, "write", write):
        blocks = unmarked.write(tmp_path, PROGRAM, threads=threads, kineto=True)
    for rank in range(PROGRAM.stages):
        spans = loaded(tmp_path / f"node0_{700 + rank}.pftrace").spans
        expected = [(b.kind, b.start_ns + BASE, b.end_ns + BASE) for b in blocks if b.rank == rank]
        assert sorted(spans.select("kind", "start_ns", "end_ns").rows()) == sorted(expected)
        assert set(spans["origin"]) == {"inferred"}


def test_a_trace_that_torch_encoded(tmp_path: Path) -> None:
    """Its packets have their fields in another order than protobuf's own encoder writes them."""
    json = torch_encoder.two_blocks().write(tmp_path / "t.json")
    pftrace = tmp_path / "t.pftrace"
    shutil.copy(TORCH_2_14_1, pftrace)
    result, expected = loaded(pftrace), loaded(json)
    assert result.spans.height == 2
    assert result.p2p.height == 2
    for table in ("spans", "p2p", "collectives"):
        assert getattr(result, table).equals(getattr(expected, table)), table
    copies = [("Memcpy" if task[1].startswith("Memcpy") else task[1]) for task in tasks(json)]
    assert [(task[0], name, *task[2:]) for task, name in zip(tasks(json), copies, strict=True)] == tasks(pftrace)


def test_the_trace_processor_reads_the_same_times(tmp_path: Path) -> None:
    """So the generator writes what the schema means."""
    trace = one_block()
    trace.copy(40_000, 41_000, 3)
    with TraceProcessor(torch_pftrace.write(trace, tmp_path / "t.pftrace")) as processor:
        assert processor.problems().is_empty()
        result = processor.query(f"select to_realtime(ts) - {BASE} as start, dur, category from slice order by ts")
    assert result.rows() == [
        (1_000, 8_000, "user_annotation"), (5_000, 2, "cuda_runtime"), (20_000, 10_007, None), (40_000, 1_000, None),
    ]  # fmt: skip


def test_tasks_of_a_stage_that_is_not_named_are_counted(tmp_path: Path) -> None:
    trace = one_block()
    trace.kernel(40_000, 50_000, trace.call(6_000))
    written = torch_pftrace.Writer(trace).written()
    written.packet[-1].gpu_render_stage_event.stage_iid = 77
    path = tmp_path / "t.pftrace"
    path.write_bytes(written.SerializeToString())
    profile = loaded(path)
    assert times(profile) == [("F0.0.0", 20_000, 30_007)]
    assert notes(profile)["events-malformed"] == 1


@pytest.mark.parametrize(("name", "packed"), [("rank3.pftrace", False), ("rank3.pftrace.gz", True)])
def test_it_is_found_and_drawn(tmp_path: Path, run_cli: Cli, name: str, packed: bool) -> None:
    torch_pftrace.write(one_block(), tmp_path / name, packed=packed)
    done = run_cli("--log_dir", tmp_path, "--format", "perfetto,csv", "--detail", "kernels", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    (source,) = find(tmp_path).sources
    assert (source.rank, source.path.name) == (3, name)
    assert f"{BASE + 20_000}" in (tmp_path / "out" / "pipeline_profile.csv").read_text()
    result = find(tmp_path / "out")
    assert result.sources == ()
    assert "a chart that trace-export wrote" in {u.what for u in result.unrecognised}


def test_other_perfetto_traces_are_named(tmp_path: Path) -> None:
    other = perfetto.Trace()
    other.packet.add(timestamp=5).track_event.name = "x"
    (tmp_path / "phone.pftrace").write_bytes(other.SerializeToString())
    (tmp_path / "text.pftrace").write_text("hello")
    (tmp_path / "empty.pftrace").write_text("")
    assert {Path(u.path).name: u.what for u in find(tmp_path).unrecognised} == dict.fromkeys(
        ["phone.pftrace", "text.pftrace", "empty.pftrace"], "not a trace of torch.profiler"
    )


def long_trace() -> Trace:
    trace = one_block()
    for i in range(3000):
        trace.kernel(10**6 + i, 10**6 + i + 1, 5)
    return trace


@pytest.mark.parametrize("share", [0.5, 0.9, 0.9999])
@pytest.mark.parametrize("packed", [True, False])
def test_a_trace_that_breaks_off(tmp_path: Path, share: float, packed: bool) -> None:
    """The device tasks come last."""
    path = torch_pftrace.write(long_trace(), tmp_path / "t.pftrace", packed=packed)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    profile = loaded(path)
    assert times(profile) == [("F0.0.0", 20_000, 30_007)]
    assert {"trace-truncated", "trace-damaged"} & notes(profile).keys()


def test_slices_in_another_order_are_refused(tmp_path: Path) -> None:
    trace = one_block()
    trace.range(2_000, 2_500, "F1.0.0", thread=88)
    whole = perfetto.Trace.FromString(torch_pftrace.encoded(trace))
    ends = [i for i, p in enumerate(whole.packet) if p.track_event.type == perfetto.TrackEvent.TYPE_SLICE_END]
    packets = list(whole.packet)
    packets[ends[0]], packets[ends[1]] = packets[ends[1]], packets[ends[0]]
    path = tmp_path / "t.pftrace"
    path.write_bytes(perfetto.Trace(packet=packets).SerializeToString())
    with pytest.raises(SourceError, match=r"do not end in the order they begin, .*; export the trace as \.json"):
        loaded(path)


@settings(max_examples=15, deadline=None)
@given(at=st.floats(0, 1), byte=st.integers(0, 255), many=st.integers(1, 40))
def test_damaged_bytes_end_in_a_sentence_or_tables(
    tmp_path_factory: pytest.TempPathFactory, at: float, byte: int, many: int
) -> None:
    content = bytearray(torch_pftrace.encoded(one_block()))
    place = int(at * (len(content) - 1))
    content[place : place + many] = bytes([byte]) * len(content[place : place + many])
    path = tmp_path_factory.getbasetemp() / "damaged.pftrace"
    path.write_bytes(gzip.compress(bytes(content)))
    try:
        read(Source("kineto", path, "machine0"), ReadOptions())
    except SourceError as error:
        assert str(path) in str(error)
