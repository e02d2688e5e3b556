"""What is no regular file is never opened, whatever it is called: a pipe or a device may never end."""

import os
import select
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from tests.conftest import Cli
from tests.faults.inputs import INPUTS
from tests.support.wait import HANGS_S
from trace_export import files
from trace_export.errors import SourceError, UsageError
from trace_export.sources.find import find
from trace_export.sources.nsys import export_report
from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.read import read
from trace_export.sources.source import ReadOptions
from trace_export.viewer.first_step import first_step
from trace_export.workers.cluster import Cluster

BESIDE = {
    "paddle": ("envlog.0", "backup_env.0.json"),
    "recorder": ("rank0.blocks.earlier", "rank1.blocks"),
    "nsys": ("other.json", "other.sqlite", "other.db"),
    "kineto": ("other.pt.trace.json", "other.json.gz"),
    "ascend": ("profiler_info_0.json", "profiler_metadata.json", "ASCEND_PROFILER_OUTPUT/analysis.db"),
    "mindspore": ("profiler_info_0.json", "profiler_metadata.json", "ASCEND_PROFILER_OUTPUT/communication.json"),
}
"""Files that are looked for beside a source."""


def replaced_by_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


@pytest.mark.parametrize("kind", BESIDE)
def test_pipes_beside_a_source_are_not_opened(kind: str, tmp_path: Path, run_cli: Cli) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    source = INPUTS[kind].source(logs)
    home = next((p for p in (source.path, *source.path.parents) if p.name.endswith(("_ascend_pt", "_ascend_ms"))), logs)
    for name in BESIDE[kind]:
        replaced_by_pipe(home / name)
    result = run_cli("--log_dir", logs, "--out", tmp_path / "out", "--json")
    assert result.returncode == 0, result.stderr
    assert orjson.loads(result.stdout)["ranks"] == 1


@pytest.mark.parametrize("name", ["node0.sqlite-journal", "node0.sqlite-wal"])
def test_a_pipe_that_sqlite_would_open_is_refused(name: str, tmp_path: Path, run_cli: Cli) -> None:
    INPUTS["nsys"].make(tmp_path)
    os.mkfifo(tmp_path / name)
    result = run_cli("--log_dir", tmp_path, "--json")
    assert result.returncode == 1
    assert f"{name} beside it is not a regular file; remove that" in result.stderr


@pytest.mark.parametrize("option", ["--marker", "--align"])
def test_a_pipe_as_a_file_of_options_is_refused(option: str, tmp_path: Path, run_cli: Cli) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    INPUTS["nsys"].make(logs)
    os.mkfifo(tmp_path / "pipe.toml")
    result = run_cli("--log_dir", logs, option, tmp_path / "pipe.toml")
    assert result.returncode == 2
    assert str(tmp_path / "pipe.toml") in result.stderr


def test_a_pipe_is_no_trace_to_open(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pftrace")
    with pytest.raises(SourceError, match=r"pipe\.pftrace cannot be read \(not a regular file\)"):
        first_step(tmp_path / "pipe.pftrace")


def test_who_writes_into_a_pipe_is_not_disturbed(tmp_path: Path) -> None:
    """Opened for reading and closed again, the pipe would end its writer."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = subprocess.Popen([sys.executable, "-c", f"open({str(pipe)!r}, 'wb').write(b'still here')"])
    with pytest.raises(OSError, match="not a regular file"):
        files.open_file(pipe)
    assert pipe.read_bytes() == b"still here"
    assert writer.wait(HANGS_S) == 0


def test_a_file_that_becomes_a_pipe_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the question what it is and its opening."""
    path = tmp_path / "file"
    path.write_text("before")
    before = path.stat()
    replaced_by_pipe(path)
    monkeypatch.setattr(Path, "stat", lambda self, **_: before)
    with pytest.raises(OSError, match="not a regular file"):
        files.open_file(path)


def test_devices_are_no_sources(tmp_path: Path) -> None:
    for name in (
        "workerlog.0",
        "a.sqlite",
        "b.pt.trace.json",
        "profile_record_tmp_file_for_rank_0",
        "r.blocks",
        "rank1.blocks",
    ):
        (tmp_path / name).symlink_to("/dev/zero")
    assert stat.S_ISCHR((tmp_path / "a.sqlite").stat().st_mode)
    assert find(tmp_path).sources == ()


@pytest.mark.parametrize("kind", INPUTS)
def test_a_link_to_a_file_is_the_file(kind: str, tmp_path: Path) -> None:
    """As on a cluster, where the profiles of a run are linked into one folder."""
    elsewhere, logs = tmp_path / "elsewhere", tmp_path / "logs"
    elsewhere.mkdir()
    source = INPUTS[kind].source(elsewhere)
    spans = read(source, ReadOptions()).spans
    shutil.copytree(elsewhere, logs)
    for path in [p for p in logs.rglob("*") if p.is_file()]:
        path.unlink()
        path.symlink_to(elsewhere / path.relative_to(logs))
    (linked,) = find(logs).sources
    assert read(linked, ReadOptions()).spans.equals(spans)


@pytest.fixture
def linked_run(tmp_path: Path) -> Path:
    """A folder with the link machine0 to a folder outside, which holds the links of a circle, and /proc."""
    outside, logs = tmp_path / "outside", tmp_path / "logs"
    outside.mkdir()
    logs.mkdir()
    INPUTS["paddle"].make(outside)
    (logs / "machine0").symlink_to(outside)
    (outside / "back").symlink_to(logs)
    return logs


def test_links_out_of_the_folder_are_followed_when_asked_for(linked_run: Path, tmp_path: Path, run_cli: Cli) -> None:
    out = ("--out", tmp_path / "out", "--json")
    refused = run_cli("--log_dir", linked_run, *out)
    assert refused.returncode == 1
    assert "--follow-links (1)" in refused.stderr
    followed = run_cli("--log_dir", linked_run, "--follow-links", *out)
    assert followed.returncode == 0, followed.stderr
    assert orjson.loads(followed.stdout)["ranks"] == 1
    itself = run_cli("--log_dir", linked_run / "machine0", *out)
    assert itself.returncode == 0, itself.stderr


def test_a_link_to_proc_is_not_walked(linked_run: Path, tmp_path: Path, run_cli: Cli) -> None:
    INPUTS["paddle"].make(linked_run)
    (linked_run / "proc").symlink_to("/proc")
    result = run_cli("--log_dir", linked_run, "--out", tmp_path / "out", "--json")
    assert result.returncode == 0, result.stderr
    by_code = {note["code"]: note for note in orjson.loads(result.stdout)["notes"]}
    assert by_code["links-not-followed"]["count"] == 2
    assert by_code["links-not-followed"]["where"] == str(linked_run / "machine0")


def test_an_exporter_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what it has started: the program of Nsight Systems is a script that starts others."""
    programs, reports, alive = tmp_path / "bin", tmp_path / "reports", tmp_path / "alive"
    programs.mkdir()
    reports.mkdir()
    os.mkfifo(alive)
    nsys = programs / "nsys"
    nsys.write_text(f'#!/bin/sh\nexec >"{alive}"\nsleep 1000 &\necho started\nwait\n')
    nsys.chmod(0o755)
    (reports / "x.nsys-rep").write_bytes(b"report")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(export_report, "TIMEOUT_S", 0.0)
    (source,) = find(reports).sources
    with open(alive, "rb", buffering=0, opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as held:
        wait = subprocess.Popen.wait

        def once_started(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
            if timeout is not None:
                assert select.select([held], [], [], HANGS_S)[0], "it has started nothing"
            return wait(process, timeout)

        monkeypatch.setattr(subprocess.Popen, "wait", once_started)
        with pytest.raises(SourceError, match=r"x\.nsys-rep: nsys export did not finish in 0 minutes; run nsys export"):
            read(source, ReadOptions())
        assert held.read(100) == b"started\n"
        assert select.select([held], [], [], HANGS_S)[0], "what it has started did not end"
        assert held.read() == b""


@pytest.mark.parametrize(
    ("content", "why"),
    [("[" * 100_000, "more than 16,384 bytes"), ("x=" + "[" * 10_000, "nested too deeply"), ("a." * 9_000, "16,384")],
)
@pytest.mark.parametrize("option", [lambda file: Dialects.of((file,)), lambda file: Cluster.parse("tcp://x:1", [file])])
def test_a_file_of_options_is_of_bounded_size(
    option: Callable[[str], object], content: str, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "options.toml"
    path.write_text(content)
    with pytest.raises(UsageError, match=why):
        option(str(path))
