"""What profilers leave beside or in place of a profile: recognised, and refused with what makes a profile of it."""

import shutil
from pathlib import Path

import pytest

from tests.conftest import AscendRun
from tests.support.one_source import read
from trace_export.errors import SourceError
from trace_export.sources.choose import nothing_found
from trace_export.sources.find import find
from trace_export.sources.source import ReadOptions

CAPTURE = "node0_4000_20251127120000000_ascend"
RAW = "PROF_000001_20251127120000000_ABCDEF"


def file(folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("{}")


def said(folder: Path) -> str:
    result = find(folder)
    assert not result.sources
    return str(nothing_found(result, folder))


@pytest.mark.parametrize(
    ("capture", "command"),
    [
        (f"{CAPTURE}_pt", "python -c \"from torch_npu.profiler.profiler import analyse; analyse('{logs}')\""),
        (f"{CAPTURE}_ms", "python -c \"from mindspore.profiler.profiler import analyse; analyse('{logs}')\""),
        ("rank_0", f"msprof --export=on --type=db --output={RAW}"),
    ],
)
def test_raw_data_names_the_command(tmp_path: Path, capture: str, command: str) -> None:
    logs = tmp_path / "logs"
    file(logs / capture / RAW / "host", "start_info")
    file(logs / capture / RAW / "device_0" / "data", "x.slice_0")
    assert f"{RAW} is raw data; make a profile of it with {command.format(logs=logs)}" in said(logs)


def test_output_without_device_tasks_says_what_is_missing(tmp_path: Path) -> None:
    output = tmp_path / "rank_3" / "ASCEND_PROFILER_OUTPUT"
    file(output, "step_trace_time.csv")
    text = said(tmp_path)
    assert f"{output} is output without device tasks (no trace_view.json, kernel_details.csv or database)" in text


@pytest.mark.parametrize(
    "name",
    ["ascend_timeline_display_0.json", "step_trace_raw_0_detail_time.csv", "output_timeline_data_1.txt"],
)
def test_mindspore_before_2_3(tmp_path: Path, name: str) -> None:
    file(tmp_path / "profiler", name)
    assert "profiler is output of MindSpore before 2.3" in said(tmp_path)


def test_json_lines_of_msmonitor(tmp_path: Path) -> None:
    name = "msmonitor_{}_20251127120000000_{}.{}"
    lines = tmp_path / name.format(4000, 0, "jsonl")
    file(tmp_path, lines.name)
    assert f"{lines} is JSON lines of msMonitor, which are not read; record with --export-type DB" in said(tmp_path)
    file(tmp_path, name.format(4000, 0, "db"))
    file(tmp_path, name.format(4001, 1, "jsonl"))
    result = find(tmp_path)
    assert [source.rank for source in result.sources] == [0]
    assert [(n.code, n.count, n.where) for n in result.notes] == [
        ("capture-not-exported", 1, str(tmp_path / name.format(4001, 1, "jsonl")))
    ]


def test_raw_data_beside_its_own_profile_is_passed_over(samples: Path, tmp_path: Path) -> None:
    shutil.copytree(samples / "ascend", tmp_path / "logs")
    capture = next((tmp_path / "logs").glob("node0_4000_*"))
    file(capture / RAW / "host", "start_info")
    assert not [n for n in find(tmp_path / "logs").notes if n.code == "capture-not-exported"]
    file(tmp_path / "logs" / f"{CAPTURE.replace('4000', '4009')}_pt" / RAW / "host", "start_info")
    (note,) = [n for n in find(tmp_path / "logs").notes if n.code == "capture-not-exported"]
    assert (note.level, note.count) == ("warning", 1)
    assert "node0_4009" in note.where


def test_host_ranges_without_markers(ascend_run: AscendRun) -> None:
    folder, _ = ascend_run("mindspore text without markers")
    source = find(folder).sources[0]
    with pytest.raises(SourceError, match="nothing of the host to draw; leave out `host_ranges`"):
        read(source, ReadOptions(host_ranges=True))
