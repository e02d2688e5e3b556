"""The memory formula of `trace_export/docs/scale.md`, checked by runs that the system kills when they need more."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from samples.generators.kineto_trace import Trace
from tests.conftest import ROOT
from tests.support import long_runs
from tests.support.wait import HANGS_S, wait_until

PROCESS_BYTES, LAUNCH_BYTES = 200 << 20, 64
"""A process that reads: this much, and this much for each GPU launch in its file."""
GROUPS = {
    Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes",
    Path("/sys/fs/cgroup"): "memory.max",
}
"""Where groups of processes get their limits, in both versions of the interface."""


@contextmanager
def limited(size: int) -> Iterator[Path]:
    """A group of processes that may have this many bytes; the system's cache of files does not count for it."""
    for root, file in GROUPS.items():
        group = root / f"trace_export_test_{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if not (group / file).exists():
                continue
            (group / file).write_text(str(size))
            with _emptied(group / "cgroup.procs") as processes:
                yield processes
            return
        finally:
            group.rmdir()
    pytest.skip("no limit on memory can be set here")


@contextmanager
def _emptied(processes: Path) -> Iterator[Path]:
    """The list of a group's members; at the end none is left, as the shell that removes temporary files."""
    try:
        yield processes
    finally:
        wait_until(lambda: not processes.read_text())


def run_in(processes: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """The command as a member of the group of `processes`."""
    join = f'echo $$ > "{processes}" && exec "$@"'
    command = ["sh", "-c", join, "sh", sys.executable, "-m", "trace_export", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANGS_S, check=False)


def test_all_device_work_of_a_long_session_in_bounded_memory(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    long_runs.nsys(folder, 40, stages=1, kernels=500)
    with closing(sqlite3.connect(folder / "rank0.sqlite")) as db:
        (kernels,) = db.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()
    assert kernels > 700_000
    options = ("--log_dir", folder, "--out", tmp_path / "out", "--detail", "kernels", "--format", "perfetto", "--quiet")
    with limited(PROCESS_BYTES + LAUNCH_BYTES * kernels) as group:
        result = run_in(group, *options, "--jobs", 1)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "out" / "pipeline_profile.pftrace").stat().st_size > 40 * kernels  # all of them are there


def test_a_trace_of_kernels_alone_in_bounded_memory(tmp_path: Path) -> None:
    """300,000 kernels with names of 160 characters, a file of 100 MB, in both formats."""
    folder = tmp_path / "logs"
    folder.mkdir()
    trace = Trace()
    trace.range(0, 10**9, "F0.0.0")
    trace.kernel(20_000, 25_000, trace.call(5_000))
    head, tail = trace.text().split("\n  ],")
    with (folder / "rank0.json").open("w") as file:
        file.write(head)
        for i in range(300_000):
            event = f'"ph": "X", "cat": "kernel", "name": "{i % 50:0160}", "pid": 0, "tid": 7, "ts": {40 + 5 * i}.250'
            arguments = f'"device": 0, "stream": {7 + i % 3}, "correlation": {100_000 + i}, "grid": [1, 1, 1]'
            file.write(f',\n  {{\n    {event}, "dur": 4.250,\n    "args": {{\n      {arguments}\n    }}\n  }}')
        file.write("\n  ]," + tail)
    with limited(210 << 20) as group:
        result = run_in(group, "--log_dir", folder, "--out", tmp_path / "out", "--detail", "kernels")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "out" / "pipeline_profile.json").stat().st_size > 200 * 300_000


def test_a_run_that_gets_too_little_dies_alone(tmp_path: Path) -> None:
    """The test above can fail: the same with a tenth of the memory is killed, and leaves no output."""
    folder = tmp_path / "logs"
    folder.mkdir()
    long_runs.nsys(folder, 1, stages=1, kernels=150)
    with limited(40 << 20) as group:
        result = run_in(group, "--log_dir", folder, "--out", tmp_path / "out", "--detail", "kernels")
    assert result.returncode < 0
    assert not (tmp_path / "out").exists()


def test_without_room_for_scipy_the_fit_ends() -> None:
    """The OpenBLAS in scipy asks for its buffers for ever where there is no memory for them."""
    code = """
import re, resource
from pathlib import Path
import numpy as np
from trace_export.clocks.linalg import matrix
used = int(re.search(r"VmData:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (used + (24 << 20), resource.RLIM_INFINITY))
matrix(np.array([0]), np.array([0]), np.array([1.0]), (1, 1), dense=False)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=HANGS_S, check=False
    )
    assert ended.stderr.splitlines()[-1].startswith(("MemoryError", "numpy._core._exceptions._ArrayMemoryError"))
