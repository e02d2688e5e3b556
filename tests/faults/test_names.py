"""Names that are no UTF-8, as archives from other systems leave them: read, drawn, and shown escaped."""

import os
from pathlib import Path

import orjson
import pytest

from samples.generators import paddle as generate_paddle
from tests.conftest import Cli
from tests.faults.inputs import INPUTS
from trace_export.errors import SourceError, path_text, printable
from trace_export.sources.spans import span_table

GBK = os.fsdecode("测试".encode("gbk"))
SHOWN = r"\xb2\xe2\xca\xd4"
FORMATS = "perfetto,chrome,svg,html,parquet,csv"


def test_bytes_that_are_no_utf8_are_shown_as_they_are() -> None:
    assert path_text(Path("/logs") / GBK / "点") == f"/logs/{SHOWN}/点"
    assert path_text("a\\xca") == "a\\xca"
    assert printable(f"{GBK}\n") == f"{SHOWN}\\n"
    assert str(SourceError(Path(GBK), "is empty")) == f"{SHOWN} is empty"


@pytest.mark.parametrize("kind", INPUTS)
def test_a_folder_whose_name_is_no_utf8_is_read_and_drawn(kind: str, tmp_path: Path, run_cli: Cli) -> None:
    logs, out = tmp_path / GBK, tmp_path / f"{GBK} out"
    logs.mkdir()
    INPUTS[kind].make(logs)
    result = run_cli("--log_dir", logs, "--out", out, "--format", "chrome", "--detail", "kernels", "--json")
    assert result.returncode == 0, result.stderr
    assert orjson.loads(result.stdout)["files"] == [f"{tmp_path}/{SHOWN} out/pipeline_profile.json"]
    assert orjson.loads((out / "pipeline_profile.json").read_bytes())


def test_a_folder_whose_name_is_no_utf8_is_drawn_in_every_format(tmp_path: Path, run_cli: Cli) -> None:
    logs, out = tmp_path / GBK, tmp_path / f"{GBK} out"
    logs.mkdir()
    INPUTS["paddle"].make(logs)
    result = run_cli("--log_dir", logs, "--out", out, "--format", FORMATS)
    assert result.returncode == 0, result.stderr
    assert SHOWN in result.stdout
    assert (out / "pipeline_profile.html").read_bytes().decode()
    for command in ("report", "inspect"):
        assert run_cli(command, logs).returncode == 0


@pytest.mark.parametrize(("kind", "file"), [("nsys", "node0.sqlite"), ("kineto", "one.pt.trace.json")])
def test_a_file_whose_name_is_no_utf8_is_read_and_drawn(kind: str, file: str, tmp_path: Path, run_cli: Cli) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    INPUTS[kind].make(logs)
    (logs / file).rename(logs / f"{GBK}{file}")
    result = run_cli("--log_dir", logs, "--out", tmp_path / "out", "--detail", "kernels", "--json")
    assert result.returncode == 0, result.stderr


def test_a_host_whose_name_is_no_utf8_is_drawn_and_moved(tmp_path: Path, run_cli: Cli) -> None:
    logs = tmp_path / "logs"
    generate_paddle.write(logs, stages=2, microbatches=2, steps=1, machines=2, clock_errors_us=(0, 0))
    (logs / "machine1").rename(logs / GBK)
    result = run_cli("--log_dir", logs, "--align", "none", "--offset", f"{GBK}=1ms", "--out", tmp_path, "--json")
    assert result.returncode == 0, result.stderr
    hosts = {clock["host"]: clock["user_offset_ns"] for clock in orjson.loads(result.stdout)["clocks"]}
    assert hosts == {"machine0": None, SHOWN: 1_000_000}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_whose_name_is_no_utf8_is_read(suffix: str, tmp_path: Path, run_cli: Cli) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    INPUTS["paddle"].make(logs)
    assert run_cli("--log_dir", logs, "--out", tmp_path, "--format", suffix[1:]).returncode == 0
    table = (tmp_path / f"pipeline_profile{suffix}").rename(tmp_path / f"{GBK}{suffix}")
    assert span_table.read_table(table).ranks["source"].to_list() == [f"{tmp_path}/{SHOWN}{suffix}"]
    assert run_cli("report", table).returncode == 0
