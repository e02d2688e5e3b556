"""A real Dask scheduler and workers, as processes on this machine: the same tables, and what happens when one dies."""

import os
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from samples.generators import paddle as generate_paddle
from tests.conftest import ROOT, Cli
from tests.support.command import command
from tests.support.dask_cluster import BLAMES_ALL, DaskCluster, dask_cluster
from tests.support.wait import HANGS_S, wait_until
from tests.support.worker_tasks import Task, perform, processes_named
from trace_export import load
from trace_export.errors import SourceError, TraceExportError, UsageError
from trace_export.workers import dask, dask_client, work
from trace_export.workers.cluster import Cluster
from trace_export.workers.dask import Folder
from trace_export.workers.dask_client import identity

pytest.importorskip("distributed")
config = pytest.importorskip("dask.config")


def places(*tasks: str, at: str = "") -> list[Any]:
    return [Folder(Path(task), at) if at else Task(Path(task)) for task in tasks]


def run(cluster: DaskCluster, items: list[Any], done: Callable[[int], None] = lambda index: None) -> list[Any]:
    return work.run(perform, items, Cluster(cluster.address), done)


def test_a_worker_dies_in_mid_run(two_workers: DaskCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its unfinished work is done by the other; what was bound to it is an error that names it."""
    killed = []

    def kill_left(index: int) -> None:
        if not killed:
            two_workers.workers["left"].send_signal(signal.SIGKILL)
            killed.append(index)

    items = [*places("a", "b", "slow0.2", "slow0.3", "slow0.1"), *places("hang", at="left"), *places("c", at="right")]
    monkeypatch.setattr(dask, "GONE_S", 0)
    results = run(two_workers, items, kill_left)
    free = [r[0] for r in results[:5] if isinstance(r, tuple)]
    assert free == ["a", "b", "slow0.2", "slow0.3", "slow0.1"]
    assert "left: hang: no worker is left that could read it" in str(results[5])
    assert isinstance(results[6], tuple)
    with pytest.raises(UsageError, match="no worker of the cluster has this name; hosts there: "):
        dask.in_each_folder(Cluster(two_workers.address, (("left", Path("x")),)), processes_named)


def test_a_machine_that_comes_back_goes_on(two_workers: DaskCluster) -> None:
    def replace_left(index: int) -> None:
        if index == 0:
            two_workers.workers["left"].send_signal(signal.SIGKILL)
            wait_until(lambda: two_workers.names() == ["right"])  # until then another one of its name is refused
            two_workers.start("left")

    items = [*places("a", at="left"), *places("slow1", "b", at="left")]
    results = run(two_workers, items, replace_left)
    assert [r[0] for r in results if isinstance(r, tuple)] == ["a", "slow1", "b"]


def test_tasks_that_fail_and_one_that_kills_every_worker(
    two_workers: DaskCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = run(two_workers, places("a", "refuse", "mistake", "b"))
    assert [r[0] for r in results if isinstance(r, tuple)] == ["a", "b"]
    assert "is refused" in str(results[1])
    assert "internal error in its reader, ZeroDivisionError" in str(results[2])
    monkeypatch.setattr(dask, "GONE_S", 0)
    (last,) = run(two_workers, places("killed"))
    assert str(last) == "killed: no worker is left that could read it; start workers again, with more memory"


def test_an_item_that_kills_its_workers_costs_itself(tmp_path: Path) -> None:
    """Not what else its worker was given, which Dask blames as well, here for one death."""
    others = [f"t{n}" for n in range(12)]
    with dask_cluster(tmp_path, *"abc", **BLAMES_ALL) as cluster:
        results = run(cluster, places("killed", *others))
    assert [result[0] for result in results if isinstance(result, tuple)] == others
    assert "killed: the Dask workers that read it died or lost it" in str(results[0])


def test_an_item_that_kills_the_workers_of_its_machine_costs_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what else only this machine can read, though its worker, which is started anew each time, is given all."""
    with dask_cluster(tmp_path, "left", "right", **BLAMES_ALL) as cluster:

        def started_anew(request: Callable[..., Any], address: str) -> Any:
            cluster.make_whole("left", "right")
            return dask_client.ask(request, address)

        monkeypatch.setattr(dask, "ask", started_anew)
        results = run(cluster, places("killed", "a", "b", at="left"))
    assert [result[0] for result in results if isinstance(result, tuple)] == ["a", "b"]
    assert "left: killed: the Dask workers that read it died or lost it" in str(results[0])


def test_what_is_left_of_a_machine_without_workers_is_given_up_at_once(
    two_workers: DaskCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one item after the other: each would wait for a worker."""

    def gone(index: int) -> None:
        if index == 2:
            two_workers.workers.pop("left").kill()
            monkeypatch.setattr(dask, "GONE_S", 1)

    results = run(two_workers, [*places(*["hang"] * 2, at="left"), *places("a", at="right")], gone)
    assert ["no worker is left that could read it" in str(result) for result in results] == [True, True, False]


def test_several_sources_in_a_task(two_workers: DaskCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask, "MANY", 0)
    ended: list[int] = []
    items = [*places(*"abcdefghij", "refuse"), *places("k", "l", at="right")]
    results = run(two_workers, items, ended.append)
    assert [r[0] for r in results if isinstance(r, tuple)] == list("abcdefghijkl")
    assert "is refused" in str(results[10])
    assert sorted(ended) == list(range(13))


def test_several_items_whose_task_is_lost_are_read_one_by_one(
    two_workers: DaskCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask, "MANY", 0)
    results = run(two_workers, places("a", "b", "unpicklable", "c"))
    assert [r[0] for r in results if isinstance(r, tuple)] == ["a", "b", "c"]
    assert str(results[2]).startswith("unpicklable: the Dask workers that read it died or lost it")


def test_each_machine_reads_its_own_disk(two_workers: DaskCluster, tmp_path: Path, run_cli: Cli) -> None:
    """Two machines of one run, apart: the same blocks as when both lie in one folder."""
    whole = tmp_path / "whole"
    truth = generate_paddle.write(whole, stages=4, microbatches=4, machines=2, clock_errors_us=(0, 0))
    for worker, machine in (("left", "machine0"), ("right", "machine1")):
        shutil.copytree(whole / machine, tmp_path / worker)
    where = [f"--at={name}:{tmp_path / name}" for name in ("left", "right")]
    result = run_cli("--scheduler", two_workers.address, *where, "--format", "csv", "--out", tmp_path / "apart")
    assert result.returncode == 0, result.stderr
    assert "error" not in result.stderr
    expected = load(whole).spans.sort("rank", "start_ns")
    lines = (tmp_path / "apart" / "pipeline_profile.csv").read_text().splitlines()
    assert len(lines) - 1 == expected.height == len(truth)
    plan = tmp_path / "plan.toml"
    plan.write_text(f'[machines]\nleft = "{tmp_path / "left"}"\nright = ["{tmp_path / "right"}"]\n')
    shared = load(whole, scheduler=two_workers.address)
    planned = load(scheduler=two_workers.address, at=str(plan))
    assert shared.spans.sort("rank", "start_ns").equals(expected)
    assert planned.spans.sort("rank", "start_ns").equals(expected)
    assert planned.hosts["host"].to_list() == ["left", "right"]
    everyone = load(scheduler=two_workers.address, at=f"*:{whole}")
    assert everyone.spans.sort("rank", "start_ns").equals(expected)
    with pytest.raises(TraceExportError, match=f"left: {tmp_path / 'nowhere'}: no such file or folder"):
        load(scheduler=two_workers.address, at=f"left:{tmp_path / 'nowhere'}")


def test_the_table_of_insight_with_a_cluster(
    two_workers: DaskCluster, samples: Path, tmp_path: Path, run_cli: Cli
) -> None:
    """From a folder that all share the same table as without a cluster; of databases elsewhere a sentence."""
    wanted = ("ascend", "--log_dir", samples / "ascend", "--format", "csv", "--step-task-info")
    tables = []
    for name, how in (("here", ()), ("there", ("--scheduler", two_workers.address))):
        result = run_cli(*wanted, *how, "--out", tmp_path / name)
        assert result.returncode == 0, result.stderr
        actual = sorted((tmp_path / name / "step_task_info").rglob("*.db"))
        assert len(actual) == 4
        tables.append([rows_of(path) for path in actual])
    assert tables[0] == tables[1]
    assert all(tables[0])
    place = f"--at=left:{samples / 'ascend'}"
    result = run_cli("export", "--source", "ascend", "--scheduler", two_workers.address, place,
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
        (None, None, ["a:b"], "at: .* no scheduler is given"),
        ("logs", "tcp://x:1", ["a:b"], "at: both folders of machines and a log_dir are given"),
        (None, "tcp://x:1", ["nonsense"], 'at: "nonsense" is not MACHINE:FOLDER'),
        (None, "tcp://x:1", ["absent.toml"], "absent.toml cannot be read"),
        (None, "tcp://x:1", ["broken.toml"], "broken.toml is not a plan"),
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
        load(folder, scheduler=scheduler, at=at)


def test_device_tasks_do_not_travel(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="detail: kernels needs the profiles on this machine"):
        load(tmp_path, detail="kernels", scheduler="tcp://x:1")


def test_no_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_client, "CONNECT_S", 0.1)
    with pytest.raises(TraceExportError, match="no Dask scheduler answers there"):
        work.run(perform, places("a"), Cluster("tcp://127.0.0.1:1"))


# --- code and results


@pytest.fixture
def other_package(tmp_path: Path) -> Path:
    """A folder with another trace_export, whose readers return nothing."""
    folder = tmp_path / "other"
    shutil.copytree(ROOT / "trace_export", folder / "trace_export", ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "trace_export" / "workers" / "attempt.py").open("a") as module:
        module.write("\ndef attempt(function, item):\n    return None\n")
    return folder


def test_a_worker_with_other_code_is_refused(
    two_workers: DaskCluster, other_package: Path, samples: Path, tmp_path: Path, run_cli: Cli
) -> None:
    two_workers.start("odd", other_package)
    wait_until(lambda: joined(two_workers.address) == 3)
    result = run_cli(samples / "paddle" / "single", "--scheduler", two_workers.address, "--out", tmp_path / "out")
    assert (result.returncode, result.stdout) == (1, "")
    assert "trace-export: the Dask worker tcp://127.0.0." in result.stderr
    assert f"instead of {identity()['trace_export']}; install the same trace-export" in result.stderr
    assert not (tmp_path / "out").exists()


def joined(address: str) -> int:
    with dask_client.connected(address) as client:
        return len(client.nthreads())


def test_a_worker_with_other_code_that_joins_later_reads_nothing(
    two_workers: DaskCluster, other_package: Path, tmp_path: Path
) -> None:
    """Each source that was given to it is an error."""

    def replace_all(index: int) -> None:
        if "odd" not in two_workers.workers:
            two_workers.start("odd", other_package)
            wait_until(lambda: joined(two_workers.address) == 3)
            for name in ("left", "right"):
                two_workers.workers[name].kill()
            alone.touch()

    alone = tmp_path / "until it is alone"
    items = places(*"abcdef", *[str(alone)] * 20)
    results = run(two_workers, items, replace_all)
    errors = [str(r) for r in results if isinstance(r, SourceError)]
    assert errors
    assert all("the Dask worker that read it runs other code: trace_export" in error for error in errors)
    assert {type(r) for r in results} <= {tuple, SourceError}


# --- what hangs and what dies


def test_a_stopped_worker_is_a_sentence(
    two_workers: DaskCluster, samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_client, "ANSWER_S", 0.5)
    two_workers.stop(two_workers.workers["left"])
    with pytest.raises(TraceExportError, match=r"the Dask cluster did not answer within 0\.5 s; its scheduler"):
        run(two_workers, places("a"))


def test_a_scheduler_that_stops_while_it_reads_is_a_sentence(
    own_cluster: DaskCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(index: int) -> None:
        own_cluster.stop(own_cluster.scheduler)
        monkeypatch.setattr(dask_client, "ANSWER_S", 0.5)
        monkeypatch.setattr(dask_client, "CONNECT_S", 0.1)

    with pytest.raises(TraceExportError, match=r"the Dask cluster did not answer within 0\.5 s"):
        run(own_cluster, places("a", "hang"), stop)


def test_a_worker_that_stops_while_it_reads_costs_what_it_has(
    two_workers: DaskCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask counts it as dead after its worker-ttl; what is not bound to its machine is read by the other."""
    monkeypatch.setattr(dask, "GONE_S", 0)

    async def long_ago(dask_scheduler: Any) -> None:
        """The last sign of life of `left` was so long ago."""
        for worker in dask_scheduler.workers.values():
            worker.last_seen -= 3600 * (worker.name == "left")
        await dask_scheduler.check_worker_ttl()

    def stop(index: int) -> None:
        if index == 0:
            two_workers.stop(two_workers.workers["left"])
            with dask_client.connected(two_workers.address) as client:
                client.run_on_scheduler(long_ago)

    items = [*places("a", at="right"), *places("hang", at="left"), *places(*"bcdef")]
    results = run(two_workers, items, stop)
    assert [r[0] for r in results if isinstance(r, tuple)] == list("abcdef")
    assert "left: hang: no worker is left that could read it" in str(results[1])


def test_the_scheduler_may_give_up_earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As its own no-workers-timeout says."""
    monkeypatch.setattr(dask, "GONE_S", 3600.0)
    with dask_cluster(tmp_path, "left", "right", SCHEDULER__NO_WORKERS_TIMEOUT="500ms") as cluster:

        def kill_all(index: int) -> None:
            for worker in cluster.workers.values():
                worker.kill()

        results = run(cluster, [*places("a"), *places("hang", at="left")], kill_all)
    assert "no worker is left that could read it" in str(results[1])


QUICKLY = """
import sys
from trace_export.cli import main
from trace_export.workers import dask_client

dask_client.ANSWER_S = float(sys.argv.pop(1))
main()
"""


def test_a_scheduler_that_dies_while_it_reads_is_one_sentence(own_cluster: DaskCluster, tmp_path: Path) -> None:
    """And no line of Dask's log."""
    logs = tmp_path / "logs"
    logs.mkdir()
    with (logs / "workerlog.0").open("wb") as file:
        file.truncate(200 << 30)  # hours of zeros to read, no space on the disk
    command = [sys.executable, "-c", QUICKLY, str(HANGS_S), str(logs), "--scheduler", own_cluster.address]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "out")], env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: any(is_open(worker.pid, logs) for worker in own_cluster.workers.values()), by=process)
        own_cluster.kill()
        _, said = process.communicate(timeout=HANGS_S)
    finally:
        process.kill()
    assert process.returncode == 1
    assert said == (
        f"trace-export: {own_cluster.address}: the connection to the Dask scheduler broke while profiles were read; "
        "start the scheduler and its workers again\n"
    )
    assert not (tmp_path / "out").exists()


def is_open(pid: int, folder: Path) -> bool:
    """Whether the process has a file of the folder open."""
    return any(file.path.startswith(str(folder)) for file in psutil.Process(pid).open_files())


# --- TLS, by Dask's own configuration


DOCS = ROOT / "trace_export" / "docs"


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Dask's settings for certificates that the commands of docs/dask.md make."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not here")
    folder = tmp_path_factory.mktemp("certificates")
    for line in (DOCS / "dask.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("openssl "):
            subprocess.run(shlex.split(line), cwd=folder, check=True, capture_output=True)
    settings = {"CA_FILE": "ca.pem"}
    for role in ("SCHEDULER", "WORKER", "CLIENT"):
        settings |= {f"{role}__CERT": "cluster.pem", f"{role}__KEY": "cluster.key"}
    return {f"COMM__TLS__{key}": str(folder / name) for key, name in settings.items()}


def test_a_cluster_behind_tls(
    tls: dict[str, str], samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the certificates of the page it is read; without them, or over plain TCP, nobody gets in."""
    (tmp_path / "cluster").mkdir()
    known = {f"distributed.{key.lower().replace('__', '.').replace('_', '-')}": path for key, path in tls.items()}
    with dask_cluster(tmp_path / "cluster", protocol="tls", COMM__REQUIRE_ENCRYPTION="true", **tls) as cluster:

        def export(address: str, settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
            with config.set(settings):
                options = ("--format", "csv", "--out", tmp_path / "out", "--scheduler", address)
                return command(samples / "paddle" / "single", *options)

        with config.set(known):
            cluster.make_whole("left")
        assert export(cluster.address, known).returncode == 0
        assert (tmp_path / "out" / "pipeline_profile.csv").is_file()
        monkeypatch.setattr(dask_client, "CONNECT_S", 2)
        for address, settings in (
            (cluster.address, {}),
            (cluster.address.replace("tls:", "tcp:"), known),
            (cluster.address.replace("tls:", "tcp:"), {}),
        ):
            refused = export(address, settings)
            assert refused.returncode == 1
            assert refused.stderr.startswith(f"trace-export: {address}: no Dask scheduler answers there")
            assert refused.stderr.count("\n") == 1
