"""A real Dask scheduler and workers, as processes on this machine: the same tables, and what happens when one dies."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from samples.generators import paddle as generate_paddle
from tests.conftest import ROOT, Cli
from tests.support.worker_tasks import perform, processes_named
from trace_export.cli import load_options
from trace_export.errors import TraceExportError, UsageError
from trace_export.export import LoadOptions, load
from trace_export.workers import dask as cluster
from trace_export.workers.dask import Cluster, Place

pytest.importorskip("distributed")


@dataclass
class Dask:
    """A cluster: its address, and its workers by name."""

    address: str
    workers: dict[str, subprocess.Popen[bytes]]
    start: Callable[[str], subprocess.Popen[bytes]]


def dask(*arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-W", "ignore", "-m", "distributed.cli." + str(arguments[0]), *map(str, arguments[1:])]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DASK_DISTRIBUTED__WORKER__MEMORY__TERMINATE": "false"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


@pytest.fixture
def two_workers(tmp_path: Path) -> Iterator[Dask]:
    """A scheduler with the workers `left` and `right`, without nannies: who dies stays dead."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    with ExitStack() as stack:

        def start(name: str) -> subprocess.Popen[bytes]:
            place = tmp_path / f"worker_{name}"
            options = ("--name", name, "--nthreads", 1, "--no-nanny", "--no-dashboard", "--local-directory", place)
            process = stack.enter_context(dask("dask_worker", address, *options))
            stack.callback(process.kill)
            return process

        scheduler = stack.enter_context(
            dask("dask_scheduler", "--host", "127.0.0.1", "--port", address.rpartition(":")[2], "--no-dashboard")
        )
        stack.callback(scheduler.kill)
        found = Dask(address, {name: start(name) for name in ("left", "right")}, start)
        wait_for(lambda: len(names(address)) == 2)
        yield found


def names(address: str) -> list[str]:
    """The names of the workers that are there."""
    try:
        with cluster._client(Cluster(address)) as client:
            return [w.name for w in cluster._workers(client)]
    except TraceExportError:
        return []


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def places(*tasks: str, at: str | None = None) -> list[Place]:
    return [Place(Path(task), at) for task in tasks]


def test_a_worker_dies_in_mid_run(two_workers: Dask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its unfinished work is done by the other; what was bound to it is an error that names it."""
    killed = []

    def kill_left(index: int) -> None:
        if not killed:
            two_workers.workers["left"].send_signal(signal.SIGKILL)
            killed.append(index)

    items = [*places("a", "b", "slow2", "slow2.1", "slow0.1"), *places("slow3", at="left"), *places("c", at="right")]
    monkeypatch.setattr(cluster, "GONE_S", 2.0)
    results = cluster.run(Cluster(two_workers.address), perform, items, kill_left)
    free = [r[0] for r in results[:5] if isinstance(r, tuple)]
    assert free == ["a", "b", "slow2", "slow2.1", "slow0.1"]
    assert "left: slow3: no worker is left that could read it" in str(results[5])
    assert isinstance(results[6], tuple)
    with pytest.raises(UsageError, match="no worker of the cluster has this name; hosts there: "):
        cluster.in_each_folder(Cluster(two_workers.address, (("left", Path("x")),)), processes_named)


def test_a_machine_that_comes_back_goes_on(two_workers: Dask) -> None:
    def replace_left(index: int) -> None:
        if index == 0:
            two_workers.workers["left"].send_signal(signal.SIGKILL)
            two_workers.start("left")

    items = [*places("a", at="left"), *places("slow1", "b", at="left")]
    results = cluster.run(Cluster(two_workers.address), perform, items, replace_left)
    assert [r[0] for r in results if isinstance(r, tuple)] == ["a", "slow1", "b"]


def test_tasks_that_fail_and_one_that_kills_every_worker(two_workers: Dask, monkeypatch: pytest.MonkeyPatch) -> None:
    results = cluster.run(Cluster(two_workers.address), perform, places("a", "refuse", "mistake", "b"))
    assert [r[0] for r in results if isinstance(r, tuple)] == ["a", "b"]
    assert "is refused" in str(results[1])
    assert "internal error in its reader, ZeroDivisionError" in str(results[2])
    monkeypatch.setattr(cluster, "GONE_S", 2.0)
    (last,) = cluster.run(Cluster(two_workers.address), perform, places("killed"))
    assert str(last) == "killed: no worker is left that could read it; start workers again, with more memory"


def test_several_sources_in_a_task(two_workers: Dask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "MANY", 0)
    told: list[int] = []
    items = [*places(*"abcdefghij", "refuse"), *places("k", "l", at="right")]
    results = cluster.run(Cluster(two_workers.address), perform, items, told.append)
    assert [r[0] for r in results if isinstance(r, tuple)] == list("abcdefghijkl")
    assert "is refused" in str(results[10])
    assert sorted(told) == list(range(13))


def test_several_sources_whose_task_is_lost_are_tried_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lost:
        def result(self, timeout: float) -> object:
            raise RuntimeError("its workers died")

    again: list[list[int]] = []
    run: Any = object.__new__(cluster._Run)
    lost = Lost()
    run.items, run.out = places("a", "b", "c"), {lost: [0, 1, 2]}
    monkeypatch.setattr(cluster._Run, "_submit", lambda self, part: again.append(part))
    run._look_at(lost)
    assert again == [[0], [1], [2]]
    assert run.out == {}


def test_each_machine_reads_its_own_disk(two_workers: Dask, tmp_path: Path, run_cli: Cli) -> None:
    """Two machines of one run, apart: the same blocks as when both lie in one folder."""
    whole = tmp_path / "whole"
    truth = generate_paddle.write(whole, stages=4, microbatches=4, machines=2, clock_errors_us=(0, 0))
    for worker, machine in (("left", "machine0"), ("right", "machine1")):
        shutil.copytree(whole / machine, tmp_path / worker)
    where = [f"--at={name}:{tmp_path / name}" for name in ("left", "right")]
    result = run_cli("--scheduler", two_workers.address, *where, "--format", "csv", "--out", tmp_path / "apart")
    assert result.returncode == 0, result.stderr
    assert "error" not in result.stderr
    expected = load(LoadOptions(whole)).profile.spans.sort("rank", "start_ns")
    lines = (tmp_path / "apart" / "pipeline_profile.csv").read_text().splitlines()
    assert len(lines) - 1 == expected.height == len(truth)
    plan = tmp_path / "plan.toml"
    plan.write_text(f'[machines]\nleft = "{tmp_path / "left"}"\nright = ["{tmp_path / "right"}"]\n')
    shared = load(LoadOptions(whole, cluster=Cluster(two_workers.address))).profile
    planned = load(LoadOptions(Path(), cluster=Cluster.parse(two_workers.address, [str(plan)]))).profile
    assert shared.spans.sort("rank", "start_ns").equals(expected)
    assert planned.spans.sort("rank", "start_ns").equals(expected)
    assert planned.hosts["host"].to_list() == ["left", "right"]
    everyone = Cluster.parse(two_workers.address, [f"*:{whole}"])
    assert load(LoadOptions(Path(), cluster=everyone)).profile.spans.sort("rank", "start_ns").equals(expected)
    missing = Cluster(two_workers.address, (("left", tmp_path / "nowhere"),))
    with pytest.raises(TraceExportError, match=f"left: {tmp_path / 'nowhere'}: there is no such folder"):
        load(LoadOptions(Path(), cluster=missing))


def test_the_table_of_insight_with_a_cluster(two_workers: Dask, samples: Path, tmp_path: Path, run_cli: Cli) -> None:
    """From a folder that all share the same table as without a cluster; of databases elsewhere a sentence."""
    wanted = ("ascend", "--log_dir", samples / "ascend", "--format", "csv", "--step-task-info")
    tables = []
    for name, how in (("here", ()), ("there", ("--scheduler", two_workers.address))):
        result = run_cli(*wanted, *how, "--out", tmp_path / name)
        assert result.returncode == 0, result.stderr
        found = sorted((tmp_path / name / "step_task_info").rglob("*.db"))
        assert len(found) == 4
        tables.append([rows_of(path) for path in found])
    assert tables[0] == tables[1]
    assert all(tables[0])
    result = run_cli("ascend", "--scheduler", two_workers.address, f"--at=left:{samples / 'ascend'}",
                     "--step-task-info", "--out", tmp_path / "apart")  # fmt: skip
    assert result.returncode == 2
    assert "--step-task-info writes into databases on this machine" in result.stderr
    assert not (tmp_path / "apart").exists()


def rows_of(path: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute("SELECT name, startNs, endNs, type FROM StepTaskInfo ORDER BY rowid").fetchall()


@pytest.mark.parametrize(
    ("folder", "scheduler", "at", "words"),
    [
        (None, None, ["a:b"], "--at needs --scheduler"),
        ("logs", "tcp://x:1", ["a:b"], "both --at and a folder given"),
        (None, "tcp://x:1", ["nonsense"], '--at "nonsense" is not MACHINE:FOLDER'),
        (None, "tcp://x:1", ["absent.toml"], "absent.toml: cannot be read"),
        (None, "tcp://x:1", ["broken.toml"], "broken.toml: is not a plan"),
    ],
)
def test_wrong_usage(
    folder: str | None,
    scheduler: str | None,
    at: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.toml").write_text("[machines]\nnode1 = 3\n")
    with pytest.raises(UsageError, match=words):
        load_options.load_options(
            load_options.folder(Path(folder) if folder else None, None, scheduler, at), scheduler=scheduler, at=at
        )


def test_device_tasks_do_not_travel(tmp_path: Path) -> None:
    options = LoadOptions(tmp_path, detail="kernels", cluster=Cluster("tcp://x:1"))
    with pytest.raises(UsageError, match="--detail kernels needs the profiles on this machine"):
        load(options)


def test_no_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "CONNECT_S", 1)
    with pytest.raises(TraceExportError, match="no Dask scheduler answers there"):
        cluster.run(Cluster("tcp://127.0.0.1:1"), perform, places("a"))
