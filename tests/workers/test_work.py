"""Mapping over items in this process, on threads and on processes: the same results and errors in the same order."""

from pathlib import Path

import pytest

from tests.support.worker_tasks import Task, perform, tasks
from trace_export.cli import terminal
from trace_export.errors import TraceExportError
from trace_export.workers.sizing import Workers
from trace_export.workers.work import run


@pytest.mark.parametrize("workers", [Workers(1), Workers(2), Workers(2, threads=True)])
def test_results_come_in_the_order_of_the_items(workers: Workers) -> None:
    ended: list[int] = []
    results = run(perform, tasks("slow0.3", "a", "b", "c"), workers, ended.append)
    assert [r[0] for r in results if isinstance(r, tuple)] == ["slow0.3", "a", "b", "c"]
    assert sorted(ended) == [0, 1, 2, 3]


@pytest.mark.parametrize("workers", [Workers(1), Workers(2), Workers(2, threads=True)])
def test_an_item_that_fails_takes_no_other_along(workers: Workers) -> None:
    results = run(perform, tasks("a", "refuse", "mistake", "panic", "full", "hungry", "b"), workers)
    assert [r[0] for r in results if isinstance(r, tuple)] == ["a", "b"]
    errors = [r for r in results if isinstance(r, TraceExportError)]
    assert [str(e) for e in errors] == [
        "refuse is refused; give another",
        "mistake: internal error in its reader, ZeroDivisionError: a mistake; see --debug",
        "panic: internal error in its reader, PanicException: lost its nerve; see --debug",
        "full: reading it failed (No space left on device); check its disk, and that of temporary files (TMPDIR)",
        "hungry does not fit into memory; read fewer at a time with `jobs` 1",
    ]
    assert "ZeroDivisionError" in errors[1].__notes__[0]  # the traceback, for --debug


def test_threads_that_are_given_up_begin_nothing_more() -> None:
    begun: list[Path] = []

    def begin(task: Task) -> None:
        begun.append(task.path)

    def stop(index: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(begin, tasks(*["a"] * 10_000), Workers(2, threads=True), stop)
    assert len(begun) < 10_000


def test_debug_shows_where_a_reader_went_wrong(capfd: pytest.CaptureFixture[str]) -> None:
    failures = [e for e in run(perform, tasks("mistake", "refuse"), Workers(1)) if isinstance(e, TraceExportError)]
    terminal.errors(failures)
    assert "Traceback" not in capfd.readouterr().err
    terminal.errors(failures, debug=True)
    printed = capfd.readouterr().err
    assert printed.count("Traceback") == 1
    assert "worker_tasks.py" in printed
