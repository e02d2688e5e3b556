"""torch.profiler traces: names, times to the nanosecond, and everything that can be wrong."""

import gzip
import json
import zipfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samples.generators import torch_pftrace
from samples.generators.kineto_trace import LAYOUTS, MAIN, Trace
from tests.conftest import Cli
from tests.support.one_source import read
from tests.support.torch_traces import BASE, loaded, notes, one_block, times
from trace_export import files
from trace_export.errors import SourceError
from trace_export.model import Profile
from trace_export.selection import Numbers
from trace_export.sources.choose import nothing_found
from trace_export.sources.find import find
from trace_export.sources.kineto import json_events
from trace_export.sources.kineto.reader import read_tasks
from trace_export.sources.kineto.trace import KinetoTrace
from trace_export.sources.shared import chrome_json
from trace_export.sources.source import ReadOptions, Source, TaskRequest

EVERY = json_events.Wanted(".*")

# --- names


@pytest.mark.parametrize("call", ["cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch", "cudaLaunchKernel"])
def test_passes_that_only_kernels_of_graphs_name_are_refused_with_the_remedy(call: str, tmp_path: Path) -> None:
    trace = Trace()
    trace.range(0, 900, "training step")
    trace.kernel(1_000, 2_000, trace.call(100, name=call))
    trace.events[-1]["args"]["name"] = "PP:0F0"
    with pytest.raises(SourceError) as raised:
        loaded(trace.write(tmp_path / "t.json"), infer="off")
    assert ("without CUDA graphs" in str(raised.value)) is ("Graph" in call)


def test_our_marks_are_the_only_names_where_they_are(tmp_path: Path) -> None:
    """PyTorch files fast ranges among its operators."""
    trace = Trace(rank=None)
    trace.range(0, 100, "PP:3F2")
    trace.range(10, 90, "te:F2.1 stage=1 step=7 rank=5", cat="cpu_op")
    trace.range(20, 80, "te:B9 of an operator", cat="cpu_op")
    trace.kernel(200, 300, trace.call(50))
    profile = loaded(trace.write(tmp_path / "t.json"))
    (row,) = profile.spans.drop("id", "start_ns", "end_ns").rows(named=True)
    assert {k: v for k, v in row.items() if v is not None} == {
        "rank": 5, "run": 0, "step": 7, "kind": "F", "microbatch": 2, "chunk": 1,
        "marker": "te:F2.1 stage=1 step=7 rank=5", "origin": "device",
    }  # fmt: skip
    assert profile.ranks.select("rank", "rank_origin", "stage", "stage_origin", "device").rows() == [
        (5, "recorded", 1, "recorded", 0)
    ]


@pytest.mark.parametrize("numbered", [True, False])
def test_transfers_of_a_stage_count_where_the_runtime_names_none(tmp_path: Path, numbered: bool) -> None:
    trace = one_block()
    if numbered:
        trace.range(100, 200, "PP:0SEND_F3")
    trace.range(110, 190, "PP::fwd_send (stage 0)")
    p2p = loaded(trace.write(tmp_path / "t.json")).p2p
    assert p2p.select("role", "direction", "microbatch").rows() == [("send", "F", 3 if numbered else None)]


# --- time


@settings(max_examples=12, deadline=None)
@given(start=st.integers(10**18, 45 * 10**17), length=st.integers(0, 10**13), base=st.none() | st.integers(0, 10**9))
def test_times_are_exact(tmp_path_factory: pytest.TempPathFactory, start: int, length: int, base: int | None) -> None:
    """Unix times in microseconds have more digits than a float."""
    trace = Trace(base_ns=base)
    trace.range(start, start + 10, "F0.0.0")
    trace.kernel(start + 7, start + 7 + length, trace.call(start + 1))
    spans = loaded(trace.write(tmp_path_factory.getbasetemp() / "exact.json")).spans
    assert spans.select("start_ns", "end_ns").row(0) == (start + 7 + (base or 0), start + 7 + length + (base or 0))


@pytest.mark.parametrize(
    ("written", "ns"),
    [("5", 5_000), ("5.1", 5_100), ("5.12", 5_120), ("5.1234", 5_123), ("5.1235", 5_124), ("1e3", 1_000_000),
     ('"5.5"', 5_500), ("0.0006", 1), ("-1.5", -1_500)],
)  # fmt: skip
def test_other_spellings_of_microseconds(written: str, ns: int) -> None:
    body = f'{{"ph":"X","cat":"kernel","ts":{written},"dur":0}}'.encode()
    events = EVERY.events.decoded(body)
    assert events is not None
    assert json_events.columns_of(events)["start"].to_list() == [ns]


def test_a_base_that_is_no_time_is_a_note(tmp_path: Path) -> None:
    path = one_block().write(tmp_path / "t.json")
    path.write_text(path.read_text().replace(str(BASE), '"yesterday"'))
    profile = loaded(path)
    assert profile.spans["start_ns"].to_list() == [20_000]
    assert "start-time-unknown" in notes(profile)


@pytest.mark.parametrize("written", [f"{float(BASE)}", f'"{BASE}"', f"{BASE}.0"])
def test_a_base_as_other_programs_write_it(tmp_path: Path, written: str) -> None:
    path = one_block().write(tmp_path / "t.json")
    path.write_text(path.read_text().replace(str(BASE), written))
    profile = loaded(path)
    assert profile.spans["start_ns"].to_list() == [BASE + 20_000]
    assert "start-time-unknown" not in notes(profile)


def test_times_before_2000_without_a_base_are_refused(tmp_path: Path) -> None:
    path = one_block(Trace(base_ns=None)).write(tmp_path / "t.json")
    with pytest.raises(SourceError, match=r"t\.json has no baseTimeNanoseconds, .* in the year 1970; "):
        loaded(path)
    path.write_text(path.read_text().replace('"schemaVersion"', '"baseTimeNanoseconds": 0, "schemaVersion"'))
    profile = loaded(path)
    assert profile.spans["start_ns"].to_list() == [20_000]
    assert "start-time-unknown" in notes(profile)


# --- layouts


def layout_trace() -> Trace:
    """Its kernels come first."""
    trace = Trace()
    for i in range(40):
        trace.range(5 * i + 5, 5 * i + 9, f"F{i}.0.0")
    trace.range(90, 99, "B0.0.0")
    trace.kernel(95, 96, trace.call(91))
    for _ in range(9):
        trace.kernel(12, 14, trace.call(11))
    trace.events.sort(key=lambda event: str(event["cat"]) != "kernel")
    trace.kernel(300, 400, trace.call(51), name="ncclDevKernel_SendRecv", **{"Collective name": "send", "Dst Rank": 1})
    return trace


def read_in_pieces(path: Path) -> tuple[Profile, pl.DataFrame]:
    """The profile of a trace, and its device tasks."""
    with patch.object(chrome_json, "READ_BYTES", 1500):
        profile = loaded(path)
    request = TaskRequest(Source("kineto", path, "machine0"), "kernels", {0: 0}, (BASE, BASE + 350), path.parent)
    (file,) = read_tasks(request)
    return profile, pl.read_ipc(file.path).cast({"name": pl.String})


@pytest.fixture(scope="module")
def as_kineto_writes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Profile, pl.DataFrame]:
    return read_in_pieces(layout_trace().write(tmp_path_factory.mktemp("original") / "original.json"))


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        *((layout, "t.json") for layout in LAYOUTS),
        *(
            (layout, f"t.json{packed}")
            for layout in ("base_last", "events_first", "list")
            for packed in (".gz", ".zip")
        ),
    ],
)
def test_every_layout_gives_the_same_tables(
    tmp_path: Path, layout: str, name: str, as_kineto_writes: tuple[Profile, pl.DataFrame]
) -> None:
    path = layout_trace().write(tmp_path / layout / name, layout)
    assert [source.path for source in find(tmp_path).sources] == [path]
    result, tasks = read_in_pieces(path)
    expected, expected_tasks = as_kineto_writes
    assert result.spans.height >= 2
    for table in ("spans", "p2p", "collectives"):
        assert getattr(result, table).equals(getattr(expected, table)), table
    numbers = ("rank", "stage", "device")
    assert result.ranks.select(numbers).equals(expected.ranks.select(numbers))
    assert set(notes(result)) <= set(notes(expected)) | {"rank-numbers-assumed"}
    assert tasks.height > 1
    assert tasks.equals(expected_tasks)


def awkward_fields(many: int) -> dict[str, Any]:
    """Fields whose end looks like that of the events, of about `many` kB."""
    groups = [{"pg_name": str(i), "ranks": list(range(i % 90)), "pg_desc": 'x}],"\\\\'} for i in range(5 * many)]
    return {"my_list": [{"a": 1}], "distributedInfo": {"rank": 3, "pg_config": groups}, "empty": [], "x": ['"}]', "\\"]}


@pytest.mark.parametrize("layout", ["base_last", "events_first"])
@pytest.mark.parametrize("many", [0, 1, 300])
@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_fields_after_the_events(tmp_path: Path, layout: str, many: int, name: str) -> None:
    """They are those that json.loads finds, whatever they hold."""
    trace = one_block(Trace(rank=None))
    for i in range(100):
        trace.add("cpu_op", 'x"},{"ph":"X"}],"a":[{\\', i, i + 1, MAIN, Stack=['}],{"', {"a": [{"b": 1}, {"c": "]}"}]}])
    text = trace.text(layout).rstrip("} \n") + "," + json.dumps(awkward_fields(many))[1:]
    expected = {k: v for k, v in json.loads(text).items() if k != "traceEvents"}
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    with KinetoTrace(path, EVERY.events) as opened:
        assert opened.header == expected
    profile = loaded(path)
    assert times(profile) == [("F0.0.0", 20_000, 30_007)]
    assert profile.ranks["rank"].to_list() == [3]
    assert "trace-truncated" not in notes(profile)


# --- ranks, hosts, communication


def test_a_rank_that_is_not_asked_for_is_not_read(tmp_path: Path) -> None:
    path = one_block(Trace(rank=3)).write(tmp_path / "t.json")
    assert loaded(path, ranks=Numbers.parse("0-2", "--ranks")).spans.is_empty()
    assert loaded(path, ranks=Numbers.parse("3", "--ranks")).spans.height == 1


def test_transfers_and_collectives_of_nccl(tmp_path: Path) -> None:
    trace = one_block()

    def nccl(start: int, end: int, kind: str, **args: object) -> None:
        given = {"Collective name": kind, "Process Group Name": "5", "dtype": "BFloat16", "In msg nelems": 10}
        trace.kernel(start, end, trace.call(1), name=f"ncclDevKernel_{kind}", **{**given, "Out msg nelems": 30, **args})

    nccl(100, 200, "send", **{"Dst Rank": 1})
    nccl(400, 500, "send", **{"Dst Rank": 1})
    nccl(250, 300, "recv", **{"Src Rank": 2})
    nccl(600, 700, "allreduce", Seq=41)
    nccl(800, 900, "allreduce", Seq=42, dtype="Unheard")
    nccl(950, 960, "coalesced")
    profile = loaded(trace.write(tmp_path / "t.json"))
    at = pl.col("start_ns") - BASE, pl.col("end_ns") - BASE
    assert profile.p2p.select("role", "peer", "group", "sequence", "bytes", *at).rows() == [
        ("send", 1, "5", 0, 60, 100, 200), ("recv", 2, "5", 0, 60, 250, 300), ("send", 1, "5", 1, 60, 400, 500),
    ]  # fmt: skip
    assert profile.collectives.select("op", "group", "sequence", "bytes", *at).rows() == [
        ("allreduce", "5", 41, 60, 600, 700), ("allreduce", "5", 42, None, 800, 900),
    ]  # fmt: skip


def test_names_of_old_nccl_kernels(tmp_path: Path) -> None:
    trace = one_block()
    for i, name in enumerate(["ncclKernel_AllReduce_RING_LL_Sum_half(ncclWork)", "ncclDevKernel_AllGather_RING_LL(x)"]):
        trace.kernel(100 * i + 50, 100 * i + 51, trace.call(1), name=name)
    profile = loaded(trace.write(tmp_path / "t.json"))
    assert profile.collectives.select("op", "group", "sequence").rows() == [
        ("AllReduce", None, 0), ("AllGather", None, 0),
    ]  # fmt: skip


def test_host_ranges(tmp_path: Path) -> None:
    trace = Trace()
    trace.range(1_000, 9_000, "F0.0.0")
    path = trace.write(tmp_path / "t.json")
    profile = loaded(path, host_ranges=True)
    assert times(profile) == [("F0.0.0", 1_000, 9_000)]
    assert profile.spans["origin"].to_list() == ["host"]
    with pytest.raises(SourceError, match=r"no GPU work in the file: .*\.CUDA; record with it, or draw"):
        loaded(path)


# --- finding


def test_files_that_are_traces(tmp_path: Path) -> None:
    one_block().write(tmp_path / "node7_4242.1700000000000000001.pt.trace.json.gz")
    one_block().write(tmp_path / "node7_4242.1700000000000000009.pt.trace.json.gz")
    one_block().write(tmp_path / "deep" / "exported_rank3.json")
    (tmp_path / "pipeline_profile.json").write_text('{"traceEvents":[]}')
    (tmp_path / "trace_view.json").write_text("[]")
    (tmp_path / "torn.json.gz").write_bytes(gzip.compress(b"x" * 9999)[:20])
    result = find(tmp_path)
    assert [(s.path.name, s.host, s.rank) for s in result.sources] == [
        ("node7_4242.1700000000000000001.pt.trace.json.gz", "node7", None),
        ("node7_4242.1700000000000000009.pt.trace.json.gz", "node7", None),
        ("exported_rank3.json", "deep", 3),
    ]


def test_the_own_chart_is_no_profile(tmp_path: Path, run_cli: Cli) -> None:
    """Not even where it holds the kernels of a trace, gzipped or written anew."""
    one_block().write(tmp_path / "in" / "rank0.json")
    out = tmp_path / "out"
    done = run_cli("--log_dir", tmp_path / "in", "--format", "chrome", "--detail", "kernels", "--out", out)
    assert done.returncode == 0, done.stderr
    (chart,) = out.glob("*.json*")
    text = (gzip.decompress if chart.suffix == ".gz" else bytes)(chart.read_bytes())
    (out / "again.json").write_text(json.dumps(json.loads(text), indent=1))
    result = find(out)
    assert result.sources == ()
    assert {u.what for u in result.unrecognised if "clock_alignment" not in u.path} == {
        "a chart that trace-export wrote"
    }


def test_json_that_is_no_trace_is_named(tmp_path: Path, run_cli: Cli) -> None:
    (tmp_path / "config.json").write_text('{"kernel": 1, "traceEvents": [{"ph": "X", "cat": "other"}]}')
    done = run_cli("--log_dir", tmp_path)
    assert done.returncode == 1
    assert f"{tmp_path}/config.json is not a trace of torch.profiler" in " ".join(done.stderr.split())
    for i in range(9):
        (tmp_path / f"more{i}.json").write_text("{}")
    assert "config.json is not a trace of torch.profiler (9 more like it)" in str(
        nothing_found(find(tmp_path), tmp_path)
    )
    assert "config" not in str(nothing_found(find(tmp_path), tmp_path, family="paddle"))


def test_packed_files_that_cannot_be_read_say_what_to_do(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.writestr("a.json", "{}")
        archive.writestr("b.json", "{}")
    (tmp_path / "bad.zip").write_bytes(b"PK\x03\x04 and no more")
    assert {Path(u.path).name: u.what for u in find(tmp_path).unrecognised} == {
        "two.zip": "unreadable (a zip archive of 2 JSON files; unpack it with unzip)",
        "bad.zip": "unreadable (a zip archive that is damaged, encrypted or packed by an unknown method)",
    }
    (tmp_path / "x.json.zst").write_bytes(b"\x28\xb5\x2f\xfd and no more")
    with patch.object(files, "_ZSTANDARD_MODULES", ()):
        (source,) = find(tmp_path).sources
        with pytest.raises(SourceError, match=r"cannot be read \(packed with Zstandard; unpack it with zstd -d, or"):
            read(source, ReadOptions())


# --- what can be wrong


@pytest.mark.parametrize("layout", ["lines", "compact", "gzip"])
def test_a_trace_that_breaks_off(tmp_path: Path, layout: str) -> None:
    trace = one_block()
    for i in range(400):
        trace.kernel(10**6 + i, 10**6 + i + 1, 5)
    whole = trace.text("compact" if layout == "compact" else "kineto").encode()
    for share in (0.5, 0.77, 0.9999):
        content = whole[: int(len(whole) * share)]
        if layout == "gzip":
            content = gzip.compress(whole)
            content = content[: int(len(content) * share)]
        (tmp_path / "t.json").write_bytes(content)
        with patch.object(chrome_json, "READ_BYTES", 4096):
            profile = loaded(tmp_path / "t.json")
        assert times(profile) == [("F0.0.0", 20_000, 30_007)]
        whole_but_its_checksum = layout == "gzip" and share > 0.99
        assert ("trace-damaged" if whole_but_its_checksum else "trace-truncated") in notes(profile)


def long_trace(path: Path) -> bytes:
    """A trace whose block stands in the first third."""
    trace = one_block()
    for i in range(4000):
        trace.kernel(10**6 + i, 10**6 + i + 1, 5)
    return trace.write(path).read_bytes()


def test_a_trace_in_several_gzip_members_is_whole(tmp_path: Path) -> None:
    """As `cat a.gz b.gz` and parallel packers make it."""
    whole = long_trace(tmp_path / "t.json")
    parts = [whole[at : at + 100_000] for at in range(0, len(whole), 100_000)]
    assert len(parts) > 3
    (tmp_path / "t.json").write_bytes(b"".join(gzip.compress(part) for part in parts) + bytes(64))
    profile = loaded(tmp_path / "t.json")
    assert times(profile) == [("F0.0.0", 20_000, 30_007)]
    assert not {"trace-truncated", "trace-damaged"} & notes(profile).keys()


@pytest.mark.parametrize("damage", ["bits", "member", "checksum", "tail"])
def test_damaged_gzip_is_read_up_to_the_damage(tmp_path: Path, damage: str) -> None:
    whole = long_trace(tmp_path / "t.json")
    packed = bytearray(gzip.compress(whole))
    if damage == "bits":
        packed[len(packed) // 2 :] = bytes(len(packed) - len(packed) // 2)
    elif damage == "member":
        packed = bytearray(gzip.compress(whole[: len(whole) // 2]) + b"\x1f\x8bno member")
    elif damage == "checksum":
        packed[-8] ^= 1
    else:
        packed += b"what is this"
    (tmp_path / "t.json").write_bytes(packed)
    profile = loaded(tmp_path / "t.json")
    assert times(profile) == [("F0.0.0", 20_000, 30_007)]
    given = "trace-truncated" if damage in ("bits", "member") else "trace-damaged"
    assert given in notes(profile)
    assert len({"trace-truncated", "trace-damaged"} & notes(profile).keys()) == 1


def test_strings_that_look_like_the_end_of_an_event(tmp_path: Path) -> None:
    trace = one_block()
    for i in range(60):
        trace.add("cpu_op", 'x"},{"ph":"X"},\n  {\\', i, i + 1, MAIN, Stack=['}],{"', {"a": [{"b": 1}, {"c": "]}"}]}])
    trace.range(50_000, 60_000, "B0.0.0")
    trace.kernel(70_000, 70_001, trace.call(55_000))
    for layout in LAYOUTS:
        path = trace.write(tmp_path / "t.json", layout)
        with patch.object(chrome_json, "READ_BYTES", 700):
            assert [m for m, *_ in times(loaded(path))] == ["B0.0.0", "F0.0.0"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_lists_inside_an_event_hold_no_events(tmp_path: Path, layout: str) -> None:
    trace = one_block()
    fake = {"args": {}, "ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum", "ts": 5, "dur": 5}
    fakes = [{"ph": "i"}, {"ph": "X", **fake}, {"ph": "i"}]
    for i in range(40):
        trace.add("cpu_op", "aten::linear", i, i + 1, MAIN, inner=fakes)
    with patch.object(chrome_json, "READ_BYTES", 3000):
        profile = loaded(trace.write(tmp_path / "t.json", layout))
    assert times(profile) == [("F0.0.0", 20_000, 30_007)]
    assert profile.collectives.is_empty()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty; its export or copy did not finish"),
        (b"[]", "no annotation is named like a pipeline block"),
        (b'{"traceEvents": 3}', "holds no list of trace events"),
        (b'{"schemaVersion": x, "traceEvents": []}', "what stands before its events is not valid JSON"),
        (b'{"schemaVersion": 1, "traceEvents": []}', "no annotation is named like a pipeline block"),
        (b'{"schemaVersion": 1, "traceEvents": [5, {"ph": []}]}', "no annotation is named like a pipeline block"),
        (b'{"schemaVersion": 1, "traceEvents": [' + b"[" * 200_000, "has no whole event"),
        (b"\x1f\x8b\x08\x00garbage", "holds no list of trace events"),
    ],
)
def test_files_that_are_no_trace(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "x.pt.trace.json"
    path.write_bytes(content)
    with pytest.raises(SourceError) as error:
        loaded(path)
    assert sentence in str(error.value)


@pytest.mark.parametrize("layout", ["kineto", "kineto_2021"])
def test_the_most_frequent_names_are_shown(tmp_path: Path, layout: str) -> None:
    trace = Trace()
    trace.range(20, 30, "aten::linear")
    path = trace.write(tmp_path / "t.json", layout)
    with pytest.raises(SourceError, match=r"all names here belong to the framework; record again .*ti\.auto\(\)"):
        loaded(path)
    for i in range(9):
        trace.range(i, i + 1, f"my_pass_{i % 2}")
        trace.range(i, i + 1, f"ProfilerStep#{i}")
    for i in range(2):
        trace.range(9 + i, 10 + i, "my_pass_1")
    names = r"names here: my_pass_0; say which of these names are passes with `markers` 'REGEX=>F', or record"
    with pytest.raises(SourceError, match=names):
        loaded(trace.write(path, layout))
    trace.kernel(100, 200, trace.call(3))
    trace.write(path, layout)
    assert loaded(path, markers=(r"my_pass_(?P<microbatch>\d)=>F",)).spans.height == 1


def test_bad_numbers_of_kernels_do_not_stop_the_reader(tmp_path: Path) -> None:
    path = one_block().write(tmp_path / "t.json")
    text = path.read_text()
    path.write_text(text.replace('"correlation": 101', '"correlation": 18446744073709551615'))
    with pytest.raises(SourceError, match="by the correlation ids no call here launched any of its GPU tasks"):
        loaded(path)
    path.write_text(text.replace('"device": 0', '"device": "zero"'))
    assert loaded(path).ranks["device"].to_list() == [None]


@pytest.mark.parametrize("write", [Trace.write, torch_pftrace.write], ids=["json", "pftrace"])
@pytest.mark.parametrize(("days", "drawn"), [(0.9, True), (1.1, False), (-1.1, False)])
def test_a_task_days_from_its_launch_has_no_valid_time(tmp_path: Path, write: Any, days: float, drawn: bool) -> None:
    trace = one_block()
    away = 5_000 + int(days * 86_400 * 10**9)
    trace.kernel(away, away + 9, trace.call(6_000))
    profile = loaded(write(trace, tmp_path / ("t.json" if write is Trace.write else "t.pftrace")))
    assert times(profile) == [("F0.0.0", 20_000, away + 9 if drawn else 30_007)]
    assert notes(profile).get("times-unusable", 0) == (0 if drawn else 1)


@pytest.mark.parametrize("length", [None, float("nan"), float("inf")])
def test_a_task_without_a_length_has_no_valid_time(tmp_path: Path, length: float | None) -> None:
    trace = one_block()
    trace.kernel(40_000, 50_000, trace.call(6_000))
    trace.events[-1]["dur"] = length
    profile = loaded(trace.write(tmp_path / "t.json"))
    assert times(profile) == [("F0.0.0", 20_000, 30_007)]
    assert notes(profile)["events-malformed"] == 1


def test_merged_traces_of_several_processes_are_refused(tmp_path: Path) -> None:
    """Each process counts its launches from one, so that a kernel has two."""
    one, other = one_block(), one_block()
    for event in other.events:
        event["pid"] = 2 * MAIN if event["pid"] == MAIN else 1
    one.events += other.events
    with pytest.raises(SourceError, match=r"work of several processes \(pid 4001 and 8002\)"):
        loaded(one.write(tmp_path / "merged.json"))


def test_merged_kernels_without_their_launches_are_of_several_processes(tmp_path: Path) -> None:
    """Where only kernels were kept the processes of their devices tell it: in a trace of one process these are called
    after the devices."""
    trace = one_block()
    for number in (1, 2):
        trace.kernel(40_000, 50_000, trace.correlation, device=number)
        trace.events[-1]["pid"] = number
    with pytest.raises(SourceError, match="one process runs several GPUs"):
        loaded(trace.write(tmp_path / "one.json"))
    trace.events[-1]["pid"] = 100_000_003
    with pytest.raises(SourceError, match=r"work of several processes .* draw the traces that were merged"):
        loaded(trace.write(tmp_path / "merged.json"))


@pytest.mark.parametrize(
    ("header", "marks", "said"),
    [
        (0, (0, 2), "holds marks of ranks 0, 2 as those of one process"),
        (None, (0, 2), "holds marks of ranks 0, 2 as those of one process"),
        (0, (1,), "holds marks of rank 1, and its distributedInfo says rank 0, as where .* counted on each machine"),
        (1, (1,), None),
    ],
)
def test_a_trace_that_two_ranks_wrote_is_refused(
    tmp_path: Path, header: int | None, marks: tuple[int, ...], said: str | None
) -> None:
    trace = Trace(rank=header)
    for rank in marks:
        trace.range(1_000 + rank, 9_000 + rank, f"te:F{rank}.0 stage={rank} step=0 rank={rank}", cat="cpu_op")
        trace.kernel(20_000 + 20_000 * rank, 30_000 + 20_000 * rank, trace.call(5_000 + rank))
    path = trace.write(tmp_path / "t.json")
    if said is None:
        assert loaded(path).ranks["rank"].to_list() == [1]
        return
    with pytest.raises(SourceError, match=said):
        loaded(path)


def test_calls_of_other_devices_may_have_any_number(tmp_path: Path) -> None:
    trace = one_block()
    trace.range(40_000, 49_000, "F1.0.0")
    trace.kernel(60_000, 70_000, trace.call(45_000))
    for number, event in enumerate(e for e in trace.events if e["cat"] == "cuda_runtime"):
        event |= {"cat": "privateuse1_runtime", "pid": number}
    assert len(times(loaded(trace.write(tmp_path / "t.json")))) == 2


@pytest.mark.parametrize(("days", "transfers"), [(0, 1), (2, 0), (-2, 0)])
def test_a_transfer_days_from_all_blocks_has_no_valid_time(tmp_path: Path, days: int, transfers: int) -> None:
    """Whose launch is in no range."""
    trace, start = one_block(), 50_000 + days * 86_400 * 10**9
    given = {"Collective name": "send", "Process Group Name": "3", "dtype": "Half", "In msg nelems": 5, "Dst Rank": 1}
    trace.kernel(start, start + 9, trace.call(45_000), name="ncclDevKernel_SendRecv(ncclArgs<4>)", **given)
    profile = loaded(trace.write(tmp_path / "t.json"))
    assert profile.p2p.height == transfers
    assert notes(profile).get("times-unusable", 0) == 1 - transfers
