"""The worker processes: faults of single items, workers that cannot start, and that none outlives its parent."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT
from tests.support.wait import HANGS_S, wait_for_end, wait_until
from tests.support.worker_tasks import Task, meet, perform, tasks, temporary, threads
from trace_export.errors import SourceError, TraceExportError
from trace_export.workers import process
from trace_export.workers.sizing import Workers
from trace_export.workers.work import run


def workers_of(parent: int | None = None) -> list[psutil.Process]:
    """The worker processes of a process, by default of this one."""
    return [child for child in psutil.Process(parent).children() if process.__file__ in child.cmdline()]


def test_a_worker_that_dies_costs_its_item_only() -> None:
    results = run(perform, tasks("a", "killed1", "b", "exit", "killed2", "c", "d"), Workers(2))
    assert [r[0] for r in results if isinstance(r, tuple)] == ["a", "b", "c", "d"]
    errors = [str(r) for r in results if isinstance(r, SourceError)]
    assert [e.partition(" twice")[0] for e in errors] == [
        "killed1: the process that read it was killed (SIGKILL)",
        "exit: the process that read it ended with exit code 7",
        "killed2: the process that read it was killed (SIGKILL)",
    ]


def test_a_worker_that_is_killed_from_outside_costs_nothing() -> None:
    """What it had is given to the next one."""
    killed = []

    def kill_one(index: int) -> None:
        if not killed:
            killed.append(workers_of()[0])
            killed[0].kill()

    results = run(perform, tasks(*"abcdefghi"), Workers(2), kill_one)
    assert len(killed) == 1
    assert [r[0] for r in results if isinstance(r, tuple)] == list("abcdefghi")


def test_workers_use_one_thread_each_and_no_more_processes_than_items(tmp_path: Path) -> None:
    assert run(threads, tasks("a", "b"), Workers(8)) == [1, 1]
    (tmp_path / "3").mkdir()
    processes = run(meet, [Task(tmp_path / "3" / name) for name in "abc"], Workers(64))
    assert len({*processes, os.getpid()}) == 4


@pytest.mark.usefixtures("no_process_left")
def test_no_process_and_no_temporary_file_is_left(tmp_path: Path) -> None:
    results = run(temporary, [Task(tmp_path / "a"), Task(tmp_path / "b")], Workers(2))
    assert all(isinstance(r, SourceError) for r in results)
    left = [Path((tmp_path / name).read_text()) for name in ("a", "b")]
    assert not any(file.exists() for file in left)


@pytest.mark.parametrize("before_its_item", [False, True])
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise SystemExit(3)", "worker process ended with exit code 3 as it started"),
        (
            "import os; os.kill(os.getpid(), 9)",
            r"worker process was killed \(SIGKILL\) as it started",
        ),
    ],
)
def test_workers_that_cannot_start_are_not_replaced(
    code: str, words: str, before_its_item: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they end before they are given an item or, perhaps, after it."""
    started = []
    popen = subprocess.Popen

    def count(command: list[str], *given: object, **named: object) -> object:
        child = popen(command, *given, **named)  # type: ignore[call-overload]
        if process.__file__ in command:
            started.append(child)
            if before_its_item:
                child.wait()
        return child

    (tmp_path / "process.py").write_text(code)
    monkeypatch.setattr(process, "__file__", str(tmp_path / "process.py"))
    monkeypatch.setattr(subprocess, "Popen", count)
    with pytest.raises(TraceExportError, match=words):
        run(perform, tasks(*"abcdefgh"), Workers(2))
    assert len(started) == 2


def test_a_worker_that_lacks_a_module_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(TraceExportError, match=r"^a worker process cannot start \(ModuleNotFoundError: .*`jobs` 1$"):
        run(perform, tasks("a", "b"), Workers(2))


@pytest.mark.usefixtures("no_process_left")
def test_a_callback_that_fails_ends_the_workers(tmp_path: Path) -> None:
    """At once: the work that hangs is not waited for."""

    def stop(index: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(perform, tasks("a", "hang", "hang"), Workers(2), stop)


HANG = """
import sys
from pathlib import Path
from tests.support.worker_tasks import Task, hang
from trace_export.workers.work import run
from trace_export.workers.sizing import Workers
run(hang, [Task(Path(sys.argv[1]) / name) for name in "abcd"], Workers(2))
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_worker_outlives_its_parent(how: signal.Signals, tmp_path: Path) -> None:
    """A script without a main guard works too; its workers end with it at once and print nothing."""
    begun, scratch = tmp_path / "begun", tmp_path / "scratch"
    begun.mkdir()
    scratch.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)}
    command = [sys.executable, "-c", HANG, str(begun)]
    parent = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        wait_until(lambda: len(list(begun.iterdir())) == 2, by=parent)
        workers = workers_of(parent.pid)
        os.killpg(parent.pid, how)  # as the terminal does: to the whole group
        _, said = parent.communicate(timeout=HANGS_S)
    finally:
        parent.kill()
    assert len(workers) == 2
    wait_for_end(workers)
    assert said.count("Traceback") == (how == signal.SIGINT)  # the parent's own; the command line has a sentence for it
    assert bool(list(scratch.iterdir())) == (how != signal.SIGINT)  # only that one is an exception
