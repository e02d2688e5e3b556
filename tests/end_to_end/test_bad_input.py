"""What goes wrong outside the program ends in one sentence with a remedy, an exit code, and no half-written file."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, Cli


def sentence(result: subprocess.CompletedProcess[str]) -> str:
    """The one line of an error; a traceback is never one."""
    assert "Traceback" not in result.stderr, result.stderr
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    return lines[0]


def test_a_file_that_is_no_profile(run_cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("x")
    result = run_cli("--log_dir", tmp_path / "log")
    assert result.returncode == 1
    first = f"trace-export: {tmp_path / 'log'}: this file is not a profile; looked for profiles of paddle, nsys"
    assert sentence(result).startswith(first)
    assert sentence(run_cli("report", tmp_path / "log")).startswith(first)
    assert first.replace("trace-export: ", "error: ") in run_cli("inspect", tmp_path / "log").stderr
    assert f"{tmp_path / 'log'}: this file is not a profile of nsys;" in sentence(
        run_cli("export", "--source", "nsys", tmp_path / "log")
    )
    (tmp_path / "notes").write_text("x")
    said = sentence(run_cli(tmp_path / "log", tmp_path / "notes"))
    assert f"{tmp_path}: none of the 2 files that were given is a profile; looked for" in said
    result = run_cli(tmp_path / "log", tmp_path / "absent")
    assert result.returncode == 2
    assert f"{tmp_path / 'absent'}: no such file; give one folder" in sentence(result)


@pytest.mark.parametrize(
    ("pattern", "ranks"),
    [
        ("paddle/single/workerlog.[12]", 2), ("nsys/two_hosts/node0.sqlite", 2), ("kineto/two_hosts/*701.*", 1),
        ("ascend/*400[12]*/ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_*.db", 2),
    ],
)  # fmt: skip
def test_files_are_read_by_themselves(run_cli: Cli, samples: Path, tmp_path: Path, pattern: str, ranks: int) -> None:
    """One file, or several: nothing else in their folder is read."""
    files = sorted(samples.glob(pattern))
    result = run_cli(*files, "--out", tmp_path, "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["ranks"] == ranks
    assert (tmp_path / "pipeline_profile.pftrace").is_file()


@pytest.mark.parametrize("logs", [True, False], ids=["logs lie in the folder itself", "nothing lies there"])
def test_multi_machine_without_machine_folders(logs: bool, run_cli: Cli, samples: Path, tmp_path: Path) -> None:
    if logs:
        shutil.copy(samples / "paddle" / "single" / "workerlog.0", tmp_path)
    result = run_cli("--log_dir", tmp_path, "--multi_machine")
    assert result.returncode == 1
    assert "--multi_machine was given, but no machine folder holds a profile; put the profiles" in sentence(result)


def test_a_binary_file_called_workerlog(run_cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "workerlog.0").write_bytes(random.Random(1).randbytes(200_000))
    result = run_cli("--log_dir", tmp_path)
    assert result.returncode == 1
    assert "no pipeline record in this log" in sentence(result)


def test_an_output_place_that_cannot_be_written(run_cli: Cli, samples: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where a folder should be")
    result = run_cli("--log_dir", samples / "paddle" / "single", "--out", tmp_path / "taken" / "deeper")
    assert result.returncode == 1
    assert "name another place with --out" in sentence(result)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_leaves_nothing_behind(run_cli: Cli, samples: Path, tmp_path: Path) -> None:
    limit = "ulimit -f 8; trap '' XFSZ; exec \"$@\""
    command = [
        "bash",
        "-c",
        limit,
        "bash",
        sys.executable,
        "-m",
        "trace_export",
        "--log_dir",
        str(samples / "paddle" / "single"),
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}  # it writes files
    result = subprocess.run(
        [*command, "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**environment, "PYTHONPATH": str(ROOT)},
    )
    assert result.returncode == 1
    assert "cannot be written: File too large" in sentence(result)
    assert all(p.stat().st_size < 8 * 1024 for p in tmp_path.iterdir())
    assert not [p for p in tmp_path.iterdir() if p.suffix not in (".pftrace", ".json")]


def test_debug_shows_where(run_cli: Cli, tmp_path: Path) -> None:
    result = run_cli("--log_dir", tmp_path, "--debug")
    assert result.returncode == 1
    assert "Traceback" in result.stderr


def test_packed_exports_are_named_in_place_of_what_was_looked_for(run_cli: Cli, tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"rank{number}.sqlite.gz").write_bytes(b"\x1f\x8b")
    said = sentence(run_cli("--log_dir", tmp_path))
    first = f"{tmp_path / 'rank0.sqlite.gz'} is packed: unpack it with gunzip (3 more like it); "
    assert said == (
        f"trace-export: {tmp_path}: no profile in this folder; {first}trace-export docs says how to collect one"
    )
