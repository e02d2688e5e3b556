"""A scratch folder is gone when its process is, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT
from tests.support.command import command
from tests.support.wait import wait_until
from trace_export import scratch
from trace_export.scratch import scratch_folder


@pytest.mark.usefixtures("no_process_left")
def test_the_folder_is_private_and_gone_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ZeroDivisionError), scratch_folder() as folder:
        assert folder.parent == tmp_path
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "deep" / "er").mkdir(parents=True)
        (folder / "deep" / "er" / "file").write_text("x")
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_without_a_place_for_it_there_is_a_sentence(
    samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container whose file system is read-only."""
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: [str(tmp_path / "absent")])
    export = (samples / "nsys" / "two_hosts", "--detail", "kernels", "--jobs", 1, "--out", tmp_path / "out")
    done = command(*export)
    assert done.returncode == 1
    assert done.stderr.startswith("trace-export: no folder for temporary files can be written to; set TMPDIR to a")
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    done = command(*export)
    assert done.returncode == 1
    assert f"{tmp_path / 'absent'}: takes no temporary files (No such file or directory); set TMPDIR" in done.stderr


def test_without_a_shell_the_end_of_the_block_still_removes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object, **named: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(scratch.subprocess, "Popen", refuse)
    with scratch_folder() as folder:
        (folder / "file").write_text("x")
    assert not list(tmp_path.iterdir())


HOLD = """
import subprocess, sys, time
from trace_export.scratch import scratch_folder
with scratch_folder() as folder:
    child = subprocess.Popen(
        [sys.executable, "-c", "import pathlib, sys; [pathlib.Path(sys.argv[1], str(n)).touch() for n in range(10**9)]",
         folder], start_new_session=True)
    while not list(folder.iterdir()):
        time.sleep(0.01)
    print(child.pid, flush=True)
    child.wait()
"""


@pytest.mark.parametrize("how", [signal.SIGHUP, signal.SIGTERM, signal.SIGKILL])
def test_the_folder_goes_with_its_process(how: signal.Signals, tmp_path: Path) -> None:
    """The whole group is killed, and what it had started still writes into the folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD], env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    with process:
        assert process.stdout is not None
        child = psutil.Process(int(process.stdout.readline()))
        assert list(tmp_path.iterdir())
        os.killpg(process.pid, how)
    child.kill()
    wait_until(lambda: not list(tmp_path.iterdir()))
