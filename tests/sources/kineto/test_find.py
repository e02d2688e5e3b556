"""Which files are traces, and what their names say."""

import gzip
import json
import sys
from pathlib import Path

import polars as pl
import pytest

from samples.generators.kineto_trace import MAIN, Trace
from tests.support.one_source import read
from tests.support.rows import crossed
from tests.support.torch_traces import notes, one_block, times
from trace_export.errors import SourceError
from trace_export.sources.find import find
from trace_export.sources.kineto.reader import read_tasks
from trace_export.sources.merge import merge
from trace_export.sources.shared import chrome_json
from trace_export.sources.source import ReadOptions, TaskRequest

ZSTANDARD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank0_trace.json", 0), ("trace_rank_3.json", 3), ("rank-12.json.gz", 12), ("Rank7.json", 7),
        ("dp0_pp1_tp0_rank5.json", 5), ("tp_rank_1_rank_9.json", 9),
        ("pp_rank_3.json", None), ("tp-rank-3.json", None), ("local_rank3.json", None), ("host_12.json", None),
    ],
)  # fmt: skip
def test_ranks_in_names(tmp_path: Path, name: str, rank: int | None) -> None:
    one_block(Trace(rank=None)).write(tmp_path / name)
    (source,) = find(tmp_path).sources
    assert source.rank == rank


@pytest.mark.parametrize("name", ["rank{}_trace.json", "node0_{}.17600000000000000{}.pt.trace.json.gz"])
def test_folders_of_windows_are_on_one_host(tmp_path: Path, name: str) -> None:
    """As torchtitan writes them."""
    for iteration in (5, 10):
        for rank in range(2):
            trace = one_block(Trace(rank=rank, host=None))
            trace.write(tmp_path / f"iteration_{iteration}" / name.format(rank, 10 + iteration))
    result = find(tmp_path).sources
    assert len(result) == 4
    assert {s.host for s in result} == {"machine0" if name.startswith("rank") else "node0"}
    assert [s.pid for s in result] == ([None] * 4 if name.startswith("rank") else [0, 1, 0, 1])


def test_zstandard_is_read_where_a_library_is(tmp_path: Path) -> None:
    zstd = pytest.importorskip(ZSTANDARD)
    content = one_block().text().encode()
    for name in ("a.json.zst", "b.pt.trace.json.zst"):
        (tmp_path / name).write_bytes(zstd.compress(content))
    (tmp_path / "c.json.zst").write_bytes(zstd.compress(b"{}"))
    result = find(tmp_path)
    assert [Path(u.path).name for u in result.unrecognised] == ["c.json.zst"]
    assert len(result.sources) == 2
    for source in result.sources:
        assert times(read(source, ReadOptions())) == [("F0.0.0", 20_000, 30_007)]


def test_damaged_zstandard_is_read_up_to_the_damage(tmp_path: Path) -> None:
    zstd = pytest.importorskip(ZSTANDARD)
    trace = one_block()
    for i in range(6_000):
        trace.kernel(10**6 + i * i, 10**6 + i * i + i, 5)
    packed = zstd.compress(trace.text().encode())
    (tmp_path / "rank0.json.zst").write_bytes(packed[: len(packed) * 2 // 3])
    (source,) = find(tmp_path).sources
    profile = read(source, ReadOptions())
    assert times(profile) == [("F0.0.0", 20_000, 30_007)]
    assert "trace-truncated" in notes(profile)


@pytest.mark.parametrize(
    ("layout", "encoding"), crossed(["kineto", "spaced", "base_last", "list"], ["utf-8-sig", "utf-16-le", "utf-16-be"])
)
def test_encodings_of_windows_are_read(
    tmp_path: Path, encoding: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As PowerShell redirects output; the text is longer than a piece, and its characters are of one to four bytes."""
    for size in ("READ_BYTES", "PIECE_BYTES", "DECODED_BYTES"):
        monkeypatch.setattr(chrome_json, size, 20_001)
    trace = one_block()
    for number in range(350):
        trace.kernel(100_000 + number * 100, 100_050 + number * 100, 5, name="ядро 核 𝄞"[number % 7 :])
    text = trace.text(layout).replace("\n", "\r\n")
    mark = "" if encoding == "utf-8-sig" else "\ufeff"
    (tmp_path / "rank0.json").write_bytes((mark + text).encode(encoding))
    (source,) = find(tmp_path).sources
    profile = read(source, ReadOptions())
    assert times(profile) == [("F0.0.0", 20_000, 30_007)]
    assert "trace-truncated" not in notes(profile)
    assert read(source, ReadOptions(beginning=1)).spans["marker"].to_list() == ["F0.0.0"]
    (tasks,) = read_tasks(TaskRequest(source, "kernels", {0: 0}, None, tmp_path))
    names = pl.read_ipc(tasks.path)["name"].cast(pl.String).value_counts().rows()
    assert dict(names)["核 𝄞"] == 350 // 7


def test_text_in_utf_16_that_breaks_off_is_truncated(tmp_path: Path) -> None:
    trace = one_block()
    for number in range(100):
        trace.kernel(100_000 + number * 100, 100_050 + number * 100, 5)
    content = trace.text().encode("utf-16")
    (tmp_path / "rank0.json").write_bytes(content[: len(content) // 2 | 1])
    (source,) = find(tmp_path).sources
    profile = read(source, ReadOptions())
    assert times(profile) == [("F0.0.0", 20_000, 30_007)]
    assert notes(profile)["trace-truncated"] == 1


@pytest.mark.parametrize("size", [300_000, 2_000_000])
@pytest.mark.parametrize("name", ["rank0.json", "rank0.json.gz"])
def test_metadata_before_all_known_fields_may_be_long(tmp_path: Path, name: str, size: int) -> None:
    metadata = {f"layer {number}": {"shape": [number, 7], "why": "{[,\\"} for number in range(size // 40)}
    text = json.dumps({"metadata": metadata})[:-1] + "," + one_block().text()[1:]
    content = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    (source,) = find(tmp_path).sources
    assert times(read(source, ReadOptions())) == [("F0.0.0", 20_000, 30_007)]


def test_other_long_documents_are_no_traces(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"metadata": ["x" * 99] * 9_000}))
    (tmp_path / "b.json").write_text(json.dumps({"metadata": ["x" * 99] * 9_000, "traceEvents": [{"ph": "X"}] * 99}))
    result = find(tmp_path)
    assert not result.sources
    assert [Path(u.path).name for u in result.unrecognised] == ["a.json", "b.json"]


@pytest.mark.parametrize("layout", ["events_first", "list"])
def test_a_list_may_begin_with_python_functions_alone(tmp_path: Path, layout: str) -> None:
    """With `with_stack` there are many, and who writes a trace anew may sort it."""
    functions = Trace()
    for number in range(2_500):
        name = f"train.py({number}): forward"
        functions.add("python_function", name, number, number + 9, MAIN, **{"Python id": number, "Ev Idx": number})
    trace = one_block()
    trace.events = functions.events + trace.events
    text = trace.text(layout)
    assert text.index("External id") > 256 << 10
    (tmp_path / "rank0.json").write_text(text)
    (source,) = find(tmp_path).sources
    assert times(read(source, ReadOptions())) == [("F0.0.0", 20_000, 30_007)]


def test_an_execution_trace_is_called_so(tmp_path: Path) -> None:
    content = {"schema": "1.1.1-chakra.0.0.4", "pid": 7, "nodes": [{"id": 2, "name": "aten::add"}]}
    (tmp_path / "rank0_et.json").write_text(json.dumps(content, indent=2))
    result = find(tmp_path)
    assert not result.sources
    assert "an execution trace of PyTorch, which has no times" in result.unrecognised[0].what


@pytest.mark.parametrize("device", ['"deviceProperties": [{"id": 0, "name": "A100"}], ', ""])
def test_a_trace_of_paddle_is_called_so(device: str, tmp_path: Path) -> None:
    """Its launches have a `correlation id` and its annotations are `user_defined`, so that none of its passes is found.
    What lies beside it is drawn."""
    header = f'{{ "schemaVersion": "1.0.0", "displayTimeUnit": "us", "SpanNumber": "0", {device}"traceEvents": ['
    launch = '"name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 170000000000, "dur": 9, "ph": "X"'
    event = f'{{ {launch}, "cat": "cuda_runtime", "args": {{ "correlation id": 1 }} }}'
    (tmp_path / "host_pid1_time_2024.paddle_trace.json").write_text(f"{header}{event}, {{}}]}}")
    result = find(tmp_path)
    assert result.sources == ()
    assert "a trace of paddle.profiler, which is not read" in result.unrecognised[0].what


@pytest.mark.parametrize("recorded", [True, False])
def test_a_folder_of_one_trace_gives_its_rank(tmp_path: Path, recorded: bool) -> None:
    """What the trace records goes before what its folder is called; a folder of several traces names none of them."""
    for rank in (0, 3):
        one_block(Trace(rank=rank if recorded else None, host=None)).write(tmp_path / f"rank{rank}" / "trace.json")
    one_block(Trace(rank=None, host=None)).write(tmp_path / "node_rank5" / "trace.json")
    for name in "ab":
        one_block(Trace(rank=None, host=None)).write(tmp_path / "rank_7" / f"{name}.json")
    ranks = [source.rank for source in find(tmp_path).sources]
    assert ranks == [None, 0, 3, None, None]
    rows = [read(source, ReadOptions()).ranks.row(0, named=True) for source in find(tmp_path).sources]
    assert [row["rank"] for row in rows[1:3]] == [0, 3]
    assert {row["rank_origin"] for row in rows[1:3]} == {"recorded" if recorded else "assumed"}


@pytest.mark.parametrize(
    ("name", "said"), [("rank{}/trace.json", False), ("trace_rank{}.json", False), ("{}.json", True)]
)
def test_numbers_are_assumed_from_the_order_only_where_no_name_says_them(tmp_path: Path, name: str, said: bool) -> None:
    for rank in (0, 1):
        one_block(Trace(rank=None, host=None)).write(tmp_path / name.format(rank))
    whole, _ = merge(read(source, ReadOptions()) for source in find(tmp_path).sources)
    assert ("rank-numbers-assumed" in {note.code for note in whole.notes}) == said


def test_an_empty_file_that_is_called_like_the_traces_is_told_of(tmp_path: Path) -> None:
    """As where the disk was full. Other empty files are none of the job's traces."""
    for rank in range(2):
        one_block().write(tmp_path / f"rank-{rank}.json")
    for name in ("rank-2.json", "settings.json"):
        (tmp_path / name).touch()
    sources = find(tmp_path).sources
    assert [source.path.name for source in sources] == ["rank-0.json", "rank-1.json", "rank-2.json"]
    with pytest.raises(SourceError, match=r"rank-2.json is empty; its export or copy did not finish"):
        read(sources[2], ReadOptions())
