"""Text exports of torch_npu and MindSpore against the truth of generated jobs, and damaged ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

import trace_export
from tests.conftest import AscendRun, Cli
from tests.sources.ascend.test_reader import rows, truth_rows, understood
from trace_export.errors import SourceError
from trace_export.sources.ascend import text_export, trace_view
from trace_export.sources.ranges.dialects import Dialects


def test_blocks_without_markers_come_from_kernels(ascend_run: AscendRun) -> None:
    folder, truth = ascend_run("mindspore text without markers")
    profile = understood(folder)
    found, wanted = rows(profile), truth_rows(truth)
    assert [(*row[:3], *row[5:]) for row in found] == [(*row[:3], *row[5:]) for row in wanted]
    for ours, block in zip(found, wanted, strict=True):
        assert abs(ours[3] - block[3]) <= 5_000  # type: ignore[operator]
        assert abs(ours[4] - block[4]) <= 5_000  # type: ignore[operator]
    assert profile.spans["origin"].unique().to_list() == ["inferred"]


EVENTS = (
    '{"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "Ascend Hardware"}}',
    '{"ph": "M", "name": "thread_name", "pid": "7", "tid": 2, "args": {"name": "Stream 41"}}',
    '{"ph": "X", "name": "{\'name\': \'forward_step\'}", "pid": 7, "tid": 2, "ts": "1736408883694756.091",'
    ' "dur": 0.60003125}',
    '{"ph": "X", "name": "}, {not a marker", "pid": 7, "tid": 2, "ts": "1736408883694757.000", "dur": 1}',
    '{"ph": "C", "name": "HBM 2/Write", "pid": 9, "ts": "1736408883574037.92", "args": {"Write(MB/s)": 4.5}}',
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
        monkeypatch.setattr(trace_view, "PIECE_BYTES", size)
        seen = trace_view.read(path, Dialects())
        marks = seen.marks.select("text", "stream", "start_ns", "end_ns", "origin").rows()
        start = 1_736_408_883_694_756_091
        assert marks == [("{'name': 'forward_step'}", 41, start, start + 600, "device")]
        assert seen.counters.select("name", "unit", "ts_ns", "value").rows() == [
            ("HBM 2/Write", "MB/s", 1_736_408_883_574_037_920, 4.5)
        ]
        assert seen.notes == ()


def test_cut_trace_is_used_up_to_the_cut(tmp_path: Path) -> None:
    path = tmp_path / "trace_view.json"
    path.write_text("[" + ",".join(EVENTS)[:-20])
    seen = trace_view.read(path, Dialects())
    assert len(seen.marks) == 1
    assert [note.code for note in seen.notes] == ["trace-truncated"]


@pytest.mark.parametrize("text", ["", '{"traceEvents": []}', "[{]", "[nothing]"])
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace_view.json"
    path.write_text(text)
    with pytest.raises(SourceError, match=r"trace_view\.json"):
        trace_view.read(path, Dialects())


def test_inspect_names_the_tables_without_times(samples: Path, tmp_path: Path, run_cli: Cli) -> None:
    folder = shutil.copytree(samples / "mindspore", tmp_path / "logs")
    for name in ("op_statistic.csv", "api_statistic.csv", "step_trace_time.csv"):
        next(folder.glob("node0_4001_*/ASCEND_PROFILER_OUTPUT")).joinpath(name).write_text("Op Name,Count\n")
    result = run_cli("inspect", folder)
    assert result.returncode == 0, result.stderr
    text = " ".join((result.stdout + result.stderr).split())
    assert "without times, not drawn: op_statistic.csv, api_statistic.csv, step_trace_time.csv" in text


def test_an_empty_table_is_told(samples: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(samples / "mindspore", tmp_path / "logs")
    table = next(folder.glob("node0_4001_*/ASCEND_PROFILER_OUTPUT/kernel_details.csv"))
    table.write_bytes(b"")
    notes = trace_export.load(folder).profile.notes
    assert [n.where for n in notes if n.code == "table-empty"] == [str(table)]
