"""Reductions on a real Dask cluster: merged in order, whatever dies, and few results held by any process."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.dask_cluster import BLAMES_ALL, DaskCluster, dask_cluster
from tests.support.held import Held, failure, hold, join
from tests.support.worker_tasks import Task, tasks
from trace_export.errors import TraceExportError
from trace_export.workers import dask, dask_client, work
from trace_export.workers.cluster import Cluster
from trace_export.workers.work import MOST

pytest.importorskip("distributed")


def reduced(cluster: DaskCluster, items: list[Task], done: Callable[[int], None] = lambda index: None) -> Held:
    return work.reduce(hold, items, Cluster(cluster.address), join, failure, done)


def test_no_worker_holds_more_than_32_results(two_workers: DaskCluster) -> None:
    """Of 120 items, whose number of results each worker is asked for again and again, from another client."""
    names = [f"t{n}" for n in range(120)]
    most = []
    with dask_client.connected(two_workers.address) as client:

        def look(index: int) -> None:
            most.append(max((len(keys) for keys in client.has_what().values()), default=0))

        found = reduced(two_workers, tasks(*names), look)
    assert found.names == tuple(names)
    assert len(most) == len(names)
    assert 1 < max(most) <= MOST


@pytest.mark.parametrize("count", [1, 7, 8, 9, 65])
def test_every_number_of_items_makes_one_result(two_workers: DaskCluster, count: int) -> None:
    assert reduced(two_workers, tasks(*(f"t{n}" for n in range(count)))).names == tuple(f"t{n}" for n in range(count))


def test_items_that_fail_are_what_failed_makes_of_them(two_workers: DaskCluster) -> None:
    found = reduced(two_workers, tasks("a", "refuse", *"bcdefghi", "mistake"))
    assert found.names == ("a", "refuse failed", *"bcdefghi", "mistake failed")


@pytest.mark.parametrize("seed", range(3))
def test_a_worker_that_dies_at_any_moment_costs_nothing(two_workers: DaskCluster, seed: int) -> None:
    """Neither what it was doing nor the results that only it had."""
    moment = random.Random(seed).randrange(60)

    def kill(index: int) -> None:
        done.append(index)
        if len(done) == moment:
            two_workers.workers["left"].send_signal(signal.SIGKILL)

    done: list[int] = []
    names = [f"t{n}" for n in range(80)]
    assert reduced(two_workers, tasks(*names), kill).names == tuple(names)
    assert sorted(done) == list(range(80))
    assert two_workers.workers["left"].wait() == -signal.SIGKILL


def test_an_item_that_kills_its_workers_costs_itself(tmp_path: Path) -> None:
    """Not what else its worker was given, which Dask blames as well, here for one death."""
    with dask_cluster(tmp_path, *"abc", **BLAMES_ALL) as cluster:
        found = reduced(cluster, tasks("t0", "killed", *(f"t{n}" for n in range(1, 12))))
    assert found.names == ("t0", "killed failed", *(f"t{n}" for n in range(1, 12)))


def test_without_a_worker_it_ends(two_workers: DaskCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not read is what `failed` makes of it."""
    monkeypatch.setattr(dask, "GONE_S", 0)

    def kill_all(index: int) -> None:
        for worker in two_workers.workers.values():
            worker.kill()

    found = reduced(two_workers, tasks("a", *["slow0.1"] * 40), kill_all).names
    assert found[0] == "a"
    assert found[-1] == "slow0.1 failed"


def test_a_worker_with_other_code_is_refused(two_workers: DaskCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here all are: the command thinks that its own code is another one."""
    ours = dask_client.identity()
    monkeypatch.setattr(dask_client, "identity", lambda: ours._replace(code="cafe"))
    with pytest.raises(TraceExportError, match=r"instead of .*cafe"):
        reduced(two_workers, tasks("a", "b"))
