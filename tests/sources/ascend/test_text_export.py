"""Text exports of torch_npu and MindSpore against the truth of generated clusters, and real captures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

import trace_export
from tests.conftest import Cli
from tests.sources.ascend.test_reader import NUMBERS, load, truth_spans, understood
from trace_export.errors import SourceError
from trace_export.sources.ascend import text_export, trace_view
from trace_export.sources.ranges.dialects import Dialects


def test_marked_text_equals_its_truth(shared: Path) -> None:
    folder = shared / "data" / "ascend" / "mindspore_text_1f1b_pp4_mb4"
    columns = ["rank", "kind", "start_ns", "end_ns", *NUMBERS]
    spans = understood(folder).spans.sort("rank", "start_ns")
    assert spans.select(columns).rows() == truth_spans(folder).select(columns).rows()
    assert spans["origin"].unique().to_list() == ["device"]


def test_blocks_without_markers_come_from_kernels(shared: Path) -> None:
    folder = shared / "data" / "ascend" / "mindspore_text_nomstx_pp4_mb4"
    spans = understood(folder).spans.filter(pl.col("kind") != "OPT").sort("rank", "start_ns")
    truth = truth_spans(folder)
    assert spans.select("rank", "kind", *NUMBERS).rows() == truth.select("rank", "kind", *NUMBERS).rows()
    assert (spans["start_ns"] - truth["start_ns"]).abs().max() <= 5_000  # type: ignore[operator]
    assert (spans["end_ns"] - truth["end_ns"]).abs().max() <= 5_000  # type: ignore[operator]
    assert spans["origin"].unique().to_list() == ["inferred"]


def test_real_capture_without_markers(shared: Path) -> None:
    """PP=2 x DP=2 of Qwen3: the order of blocks, and each block's core inside ours; roles of the batched transfers."""
    folder = shared / "data" / "ascend" / "real" / "qwen3_pp2_dp2_level2"
    expected = json.loads((folder / "expected.json").read_text())
    profile = understood(folder)
    assert dict(profile.ranks.select("rank", "stage").iter_rows()) == {
        int(rank): stage for rank, stage in expected["stage_of_rank"].items()
    }
    assert dict(profile.ranks.select("rank", "device").iter_rows()) == {
        int(rank): device for rank, device in expected["device_of_rank"].items()
    }
    for rank, blocks in expected["spans"].items():
        ours = profile.spans.filter(pl.col("rank") == int(rank)).sort("start_ns").to_dicts()
        assert [(b["kind"], b["microbatch"]) for b in ours] == [(b["kind"], b["microbatch"]) for b in blocks]
        for block, core in zip(ours, blocks, strict=True):
            assert block["start_ns"] <= core["start_ns"]
            assert core["end_ns"] <= block["end_ns"]
    wanted = set()
    for message in expected["p2p"]:
        ordinal = int(message["op"].split("_")[-2])
        wanted |= {(message["src_rank"], "send", message["dst_rank"], ordinal)}
        wanted |= {(message["dst_rank"], "recv", message["src_rank"], ordinal)}
    sides = profile.p2p.select("rank", "role", "peer", "ordinal").rows()
    parted = {(r, one, p, o) for r, role, p, o in sides for one in (("send", "recv") if role == "both" else (role,))}
    assert parted == wanted


@pytest.mark.parametrize("name", ["resnet_dp8_level0", "resnet_dp8_level1", "resnet_dp8_level1_text"])
def test_capture_without_a_pipeline_has_no_blocks(shared: Path, name: str) -> None:
    profile = load(shared / "data" / "ascend" / "real" / name)
    assert profile.spans.is_empty()
    assert all("no pipeline blocks" in note.text for note in profile.notes)
    assert profile.collectives.group_by("rank").len()["len"].unique().to_list() == [4]


def test_real_communication_and_counters(shared: Path) -> None:
    real = shared / "data" / "ascend" / "real"
    for told in json.loads((real / "expected_resnet.json").read_text()):
        profile = load(real / told["file"].split("/")[0])
        rank = told["rank_device"][0][0]
        ours = profile.collectives.filter(pl.col("rank") == rank).select("ordinal", "start_ns", "end_ns").rows()
        assert ours == [(int(op.split("_")[-2]), start, end) for op, start, end in told["comm"]]
        assert profile.hosts["label"].to_list() == [told["host"][0][1]]
        assert "AI Core frequency" in profile.counters["name"]


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
    assert [note.text for note in seen.notes] == ["is cut short; the events before the cut are used"]


@pytest.mark.parametrize("text", ["", '{"traceEvents": []}', "[{]", "[nothing]"])
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace_view.json"
    path.write_text(text)
    with pytest.raises(SourceError, match=r"trace_view\.json"):
        trace_view.read(path, Dialects())


def test_inspect_names_the_tables_without_times(shared: Path, run_cli: Cli) -> None:
    result = run_cli("inspect", shared / "data" / "ascend" / "real" / "qwen3_pp2_dp2_level2")
    assert result.returncode == 0, result.stderr
    assert "hold no times: op_statistic.csv, api_statistic.csv, step_trace_time.csv" in " ".join(
        (result.stdout + result.stderr).split()
    )


def test_an_empty_table_is_told(samples: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(samples / "mindspore", tmp_path / "logs")
    table = next(folder.glob("node0_4001_*/ASCEND_PROFILER_OUTPUT/kernel_details.csv"))
    table.write_bytes(b"")
    notes = trace_export.load(folder).profile.notes
    assert [n.where for n in notes if "is empty" in n.text and n.level == "warning"] == [str(table)]
