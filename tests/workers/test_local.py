"""The worker processes: order, faults of single items, and that none outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT
from tests.support.worker_tasks import Task, perform, temporary, threads
from trace_export.cli import terminal
from trace_export.errors import SourceError, TraceExportError
from trace_export.workers import local
from trace_export.workers.local import Workers, run, sensible


def tasks(*names: str) -> list[Task]:
    return [Task(Path(name)) for name in names]


@pytest.mark.parametrize("workers", [Workers(1), Workers(2), Workers(2, threads=True)])
def test_results_come_in_the_order_of_the_items(workers: Workers) -> None:
    told: list[int] = []
    results = run(perform, tasks("slow0.3", "a", "b", "c"), workers, told.append)
    assert [r[0] for r in results if isinstance(r, tuple)] == ["slow0.3", "a", "b", "c"]
    assert sorted(told) == [0, 1, 2, 3]


@pytest.mark.parametrize("workers", [Workers(1), Workers(2), Workers(2, threads=True)])
def test_an_item_that_fails_takes_no_other_along(workers: Workers) -> None:
    results = run(perform, tasks("a", "refuse", "mistake", "panic", "full", "hungry", "b"), workers)
    assert [r[0] for r in results if isinstance(r, tuple)] == ["a", "b"]
    errors = [r for r in results if isinstance(r, TraceExportError)]
    assert [str(e) for e in errors] == [
        "refuse: is refused; give another",
        "mistake: internal error in its reader, ZeroDivisionError: a mistake; see --debug",
        "panic: internal error in its reader, PanicException: lost its nerve; see --debug",
        "full: reading it failed (No space left on device); check its disk, and that of temporary files (TMPDIR)",
        "hungry: does not fit into memory; read fewer at a time with --jobs 1",
    ]
    assert "ZeroDivisionError" in errors[1].__notes__[0]  # the traceback, for --debug


def test_a_worker_that_dies_costs_its_item_only() -> None:
    results = run(perform, tasks("a", "killed1", "b", "exit", "killed2", "c", "d"), Workers(2))
    assert [r[0] for r in results if isinstance(r, tuple)] == ["a", "b", "c", "d"]
    errors = [str(r) for r in results if isinstance(r, SourceError)]
    assert [e.split(",")[0] for e in errors] == [
        "killed1: the process that read it was killed (SIGKILL)",
        "exit: the process that read it ended with exit code 7",
        "killed2: the process that read it was killed (SIGKILL)",
    ]


def test_workers_that_cannot_start_are_not_replaced_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(local, "_START", "raise SystemExit(3)")
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(1) or popen(*a, **k))
    with pytest.raises(TraceExportError, match=r"worker process|Broken pipe"):
        run(perform, tasks(*"abcdefgh"), Workers(2))
    assert len(started) <= 3


def test_a_worker_that_cannot_be_loaded_says_so_in_a_line() -> None:
    start = local._START.format(path=sys.path, module="trace_export.no_such", descriptor=0)
    ended = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, check=False)
    assert ended.stderr.startswith("trace-export: a worker process cannot start (ModuleNotFoundError: ")
    assert ended.stderr.count("\n") == 1


def test_a_worker_that_is_killed_from_outside_costs_one_item() -> None:
    killed = []

    def kill_the_other(index: int) -> None:
        for child in psutil.Process().children():
            if not killed:
                child.kill()
                killed.append(child.pid)

    results = run(perform, tasks("a", *[f"slow0.0{n}" for n in range(1, 9)]), Workers(2), kill_the_other)
    assert len(killed) == 1
    assert sum(isinstance(r, SourceError) for r in results) <= 1
    assert sum(isinstance(r, tuple) for r in results) >= 8


def test_workers_use_one_thread_each_and_no_more_processes_than_items() -> None:
    assert run(threads, tasks("a", "b"), Workers(8)) == [1, 1]
    pids = {r[1] for r in run(perform, tasks("slow0.2", "slow0.2", "slow0.2"), Workers(64)) if isinstance(r, tuple)}
    assert len(pids) == 3
    assert os.getpid() not in pids


def test_no_process_and_no_temporary_file_is_left(tmp_path: Path) -> None:
    results = run(temporary, [Task(tmp_path / "a"), Task(tmp_path / "b")], Workers(2))
    assert all(isinstance(r, SourceError) for r in results)
    left = [Path((tmp_path / name).read_text()) for name in ("a", "b")]
    assert not any(file.exists() for file in left)
    assert not psutil.Process().children()


def test_a_callback_that_fails_ends_the_workers() -> None:
    def stop(index: int) -> None:
        raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(perform, tasks("a", "slow60", "slow60"), Workers(2), stop)
    assert time.monotonic() - started < 10
    assert not psutil.Process().children()


SCRIPT = """
import sys
from pathlib import Path
from tests.support.worker_tasks import Task, perform
from trace_export.workers.local import Workers, run
run(perform, [Task(Path("slow60")) for _ in range(4)], Workers(2))
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_worker_outlives_its_parent(how: signal.Signals) -> None:
    """A script without a main guard works too; its workers end with it at once and print nothing."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        workers = wait_for(lambda: psutil.Process(parent.pid).children(), 2)
        time.sleep(0.5)
        os.killpg(parent.pid, how)  # as the terminal does: to the whole group
        _, said = parent.communicate(timeout=10)
    finally:
        parent.kill()
    _, alive = psutil.wait_procs(workers, timeout=5)
    assert not alive
    assert said.count("Traceback") == (how == signal.SIGINT)  # the parent's own; the command line has a sentence for it


def wait_for(look: object, count: int) -> list[psutil.Process]:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        found = look()  # type: ignore[operator]
        if len(found) >= count:
            return found  # type: ignore[no-any-return]
        time.sleep(0.02)
    raise AssertionError("the workers did not start")


def test_workers_follow_time_cores_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least of: the sum; 0.35 s and the sum by the cores, or the longest; side by side, 0.65 of the sum."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.setattr(local, "free_memory", lambda: 64 << 30)
    assert sensible([], 0, beside=False) == Workers(1)
    assert sensible([60.0], 1 << 30, beside=True) == Workers(1)
    assert sensible([0.1] * 3, 1, beside=False) == Workers(1)
    assert sensible([0.1] * 3, 1, beside=True) == Workers(2, threads=True)
    assert sensible([0.05] * 64, 1, beside=False) == Workers(16)
    assert sensible([0.05] * 64, 1, beside=True) == Workers(16)  # 0.55 s, threads 2.1 s
    assert sensible([5.0, 0.1], 1, beside=False) == Workers(1)  # the longest decides
    assert sensible([1.0] * 4, 1 << 30, beside=False) == Workers(4)
    monkeypatch.setattr(local, "free_memory", lambda: 4 << 30)
    assert sensible([1.0] * 4, 1 << 30, beside=False) == Workers(3)
    monkeypatch.setattr(local, "free_memory", lambda: 100 << 20)
    assert sensible([1.0] * 4, 1 << 30, beside=True) == Workers(1)


def test_threads_that_are_given_up_begin_nothing_more() -> None:
    def stop(index: int) -> None:
        raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(perform, tasks("a", *["slow0.3"] * 40), Workers(2, threads=True), stop)
    assert time.monotonic() - started < 3


def test_free_memory_is_what_the_system_says() -> None:
    assert 0 < local.free_memory() <= psutil.virtual_memory().total


def test_debug_shows_where_a_reader_went_wrong(capfd: pytest.CaptureFixture[str]) -> None:
    failures = [e for e in run(perform, tasks("mistake", "refuse"), Workers(1)) if isinstance(e, TraceExportError)]
    terminal.errors(failures)
    assert "Traceback" not in capfd.readouterr().err
    terminal.errors(failures, debug=True)
    told = capfd.readouterr().err
    assert told.count("Traceback") == 1
    assert "worker_tasks.py" in told
