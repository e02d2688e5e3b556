"""Text exports of torch_npu and MindSpore against the truth of generated jobs, and damaged ones."""

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

import trace_export
from tests.conftest import AscendRun, Cli
from tests.sources.ascend.test_reader import load, rows, truth_rows, understood
from trace_export.errors import SourceError
from trace_export.sources.ascend import text_export, trace_view
from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.shared import chrome_json


def test_blocks_without_markers_come_from_kernels(ascend_run: AscendRun) -> None:
    folder, truth = ascend_run("mindspore text without markers")
    profile = understood(folder)
    result, wanted = rows(profile), truth_rows(truth)
    assert [(*row[:3], *row[5:]) for row in result] == [(*row[:3], *row[5:]) for row in wanted]
    for ours, block in zip(result, wanted, strict=True):
        assert abs(ours[3] - block[3]) <= 5_000  # type: ignore[operator]
        assert abs(ours[4] - block[4]) <= 5_000  # type: ignore[operator]
    assert profile.spans["origin"].unique().to_list() == ["inferred"]


def test_times_as_numbers_lie_on_the_grid_of_a_float(ascend_run: AscendRun) -> None:
    """A block may seem to end after the send that follows it without a pause has begun: each keeps its micro-batch."""
    folder, truth = ascend_run("text, times as numbers")
    profile = understood(folder)
    for ours, block in zip(rows(profile), truth_rows(truth), strict=True):
        assert (*ours[:3], *ours[5:]) == (*block[:3], *block[5:])
        assert abs(ours[3] - block[3]) <= 125  # type: ignore[operator]
        assert abs(ours[4] - block[4]) <= 125  # type: ignore[operator]
    labels = ["src_rank", "dst_rank", "direction", "microbatch", "send_start_ns"]
    wanted = {(*message[:4], message[5]) for message in truth.messages}
    assert set(profile.messages.select(labels).rows()) == wanted
    assert [note for note in profile.notes if note.level == "warning"] == []


def test_times_that_count_from_the_start_are_placed_by_the_tables(ascend_run: AscendRun) -> None:
    folder, truth = ascend_run("text, relative times")
    profile = understood(folder)
    assert rows(profile) == truth_rows(truth)
    assert profile.without_wall_clock == ()
    assert {note.code: note.level for note in profile.notes}["trace-times-relative"] == "note"


def test_times_that_count_from_the_start_are_aligned_where_no_table_is(ascend_run: AscendRun) -> None:
    """Each rank has a clock of its own; after alignment all are off by the same, within the bound that is stated."""
    folder, truth = ascend_run("text, relative times, marks alone")
    run = trace_export.load(folder).align()
    assert len(run.profile.without_wall_clock) == truth.job.ranks
    host = dict(run.profile.ranks.select("rank", "host").iter_rows())
    bound = dict(run.profile.clocks.select("host", "bound_ns").iter_rows())
    result, wanted = rows(run.profile), truth_rows(truth)
    off = {ours[0]: ours[3] - block[3] for ours, block in zip(result, wanted, strict=True)}  # type: ignore[operator]
    assert all(abs(off[rank] - off[0]) <= bound[host[rank]] + bound[host[0]] for rank in range(truth.job.ranks))
    assert [(*row[:3], *row[5:]) for row in result] == [(*row[:3], *row[5:]) for row in wanted]


def test_samples_of_memory_on_another_clock_are_left_out(ascend_run: AscendRun, tmp_path: Path) -> None:
    folder, truth = ascend_run("text, relative times, marks alone")
    shutil.copytree(folder, tmp_path / "logs")
    for output in (tmp_path / "logs").glob("*/ASCEND_PROFILER_OUTPUT"):
        (output / "memory_record.csv").write_text(
            "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB)\nPTA,1764246877073569.640,1,2\n"
        )
    profile = load(tmp_path / "logs")
    assert profile.counters.is_empty()
    assert [n.count for n in profile.notes if n.code == "samples-unplaced"] == [2] * truth.job.ranks


def test_relative_times_that_nothing_places_are_refused(ascend_run: AscendRun, tmp_path: Path, run_cli: Cli) -> None:
    folder, _ = ascend_run("text, relative times")
    other, _ = ascend_run("text")
    shutil.copytree(folder, tmp_path / "logs")
    capture = next((tmp_path / "logs").iterdir()) / "ASCEND_PROFILER_OUTPUT"
    rank = "1" if "_4000_" in str(capture) else "0"
    shutil.copy(next(other.glob(f"*_400{rank}_*")) / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv", capture)
    table = capture / "kernel_details.csv"
    table.write_text(table.read_text().replace(".", "1."))  # other lengths
    ended = run_cli(tmp_path / "logs", "--out", tmp_path / "out")
    assert ended.returncode == 3
    assert "counts its times from the start of the recording, and nothing in it is in the tables" in ended.stderr


EVENTS = (
    '{"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "Ascend Hardware"}}',
    '{"ph": "M", "name": "thread_name", "pid": "7", "tid": 2, "args": {"name": "Stream 41"}}',
    '{"ph": "X", "name": "{\'name\': \'forward_step\'}", "pid": 7, "tid": 2, "ts": "1736408883694756.091",'
    ' "dur": 0.60003125}',
    '{"ph": "X", "name": "}, {not a marker", "pid": 7, "tid": 2, "ts": "1736408883694757.000", "dur": 1}',
    '{"ph": "C", "name": "HBM 2/Write", "pid": 9, "ts": "1736408883574037.92", "args": {"Write(MB/s)": 4.5}}',
    '{"ph": "X", "name": "aten::cat", "pid": 3, "tid": 1, "ts": "1736408883694758.000", "dur": 1,'
    ' "args": {"shapes": [{"a": 1},{"b": 2}, {"c": {"d": []}}]}}',
)


def test_no_sizes_are_unknown_sizes(tmp_path: Path) -> None:
    """A capture that took no sizes has zeros in their place; a transfer of nothing would have no speed."""
    names = {"hcom_send__1_0_1": 0, "hcom_send__1_1_1": 1.5}
    entries = {
        f"{name}@1": {
            "Communication Time Info": {"Start Timestamp(us)": 10.0, "Elapse Time(ms)": 0.5},
            "Communication Bandwidth Info": {"SDMA": {"Transit Size(MB)": size}},
        }
        for name, size in names.items()
    }
    (tmp_path / "communication.json").write_text(json.dumps({"step1": {"p2p": entries, "collective": {}}}))
    operators, _ = text_export.operators(
        pl.DataFrame(schema={"start_ns": pl.Int64, "end_ns": pl.Int64, "name": pl.String}), tmp_path, []
    )
    assert dict(operators.select("op", "bytes").iter_rows()) == {
        "hcom_send__1_0_1": None,
        "hcom_send__1_1_1": 1_500_000,
    }


@pytest.mark.parametrize("between", [",", ", ", ",\n  ", " ,\r\n"])
def test_trace_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between: str) -> None:
    """Wherever the pieces are cut, the same events come out; times keep their nanoseconds."""
    path = tmp_path / "trace_view.json"
    path.write_text("[" + between.join(EVENTS) + "]")
    for size in (len(EVENTS[2]), 300, 1 << 20):
        monkeypatch.setattr(chrome_json, "READ_BYTES", size)
        seen = trace_view.read(path, Dialects())
        marks = seen.marks.select("text", "stream", "start_ns", "end_ns", "origin").rows()
        start = 1_736_408_883_694_756_091
        assert marks == [("{'name': 'forward_step'}", 41, start, start + 600, "device")]
        assert seen.counters.select("name", "unit", "ts_ns", "value").rows() == [
            ("HBM 2/Write", "MB/s", 1_736_408_883_574_037_920, 4.5)
        ]
        assert seen.notes == ()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"traceEvents": ', "}"),
        ('{"displayTimeUnit": "ms",\n "traceEvents":', ', "otherData": "x"}\n'),
        ('{"traceEvents":', "}"),
    ],
)
def test_an_object_around_the_list_is_read_too(tmp_path: Path, before: str, after: str) -> None:
    path = tmp_path / "trace_view.json"
    path.write_text(f"{before}[{','.join(EVENTS)}]{after}")
    seen = trace_view.read(path, Dialects())
    assert (seen.marks.height, seen.counters.height, seen.notes) == (1, 1, ())
    path.write_text(f"{before}[{','.join(EVENTS)}"[:-20])
    seen = trace_view.read(path, Dialects())
    assert (seen.marks.height, [note.code for note in seen.notes]) == (1, ["trace-truncated"])


@pytest.mark.parametrize("text", ["", '{"others": []}', '{"traceEvents": {}}', "[{]", "[nothing]"])
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace_view.json"
    path.write_text(text)
    with pytest.raises(SourceError, match=r"trace_view\.json"):
        trace_view.read(path, Dialects())


def test_an_empty_table_is_told(samples: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(samples / "mindspore", tmp_path / "logs")
    table = next(folder.glob("node0_4001_*/ASCEND_PROFILER_OUTPUT/kernel_details.csv"))
    table.write_bytes(b"")
    notes = trace_export.load(folder).profile.notes
    assert [n.where for n in notes if n.code == "table-empty"] == [str(table)]
