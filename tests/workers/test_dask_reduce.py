"""Reductions on a real Dask cluster: merged in order, whatever dies, and few results held by any process."""

import random
import signal
from collections.abc import Callable

import pytest

from tests.support.dask_cluster import DaskCluster
from tests.support.held import Held, failure, hold, join
from tests.support.worker_tasks import Task, tasks
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

        result = reduced(two_workers, tasks(*names), look)
    assert result.names == tuple(names)
    assert len(most) == len(names)
    assert 1 < max(most) <= MOST


@pytest.mark.parametrize("count", [1, 7, 8, 9, 65])
def test_every_number_of_items_makes_one_result(two_workers: DaskCluster, count: int) -> None:
    assert reduced(two_workers, tasks(*(f"t{n}" for n in range(count)))).names == tuple(f"t{n}" for n in range(count))


def test_items_that_fail_are_what_failed_makes_of_them(two_workers: DaskCluster) -> None:
    result = reduced(two_workers, tasks("a", "refuse", *"bcdefghi", "mistake"))
    assert result.names == ("a", "refuse failed", *"bcdefghi", "mistake failed")


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


def test_without_a_worker_it_ends(two_workers: DaskCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not read is what `failed` makes of it."""
    monkeypatch.setattr(dask, "GONE_S", 0)

    def kill_all(index: int) -> None:
        """Once `a` is here, which began first; none of the others ends by itself."""
        for worker in two_workers.workers.values():
            worker.kill()

    assert reduced(two_workers, tasks("a", *["hang"] * 40), kill_all).names == ("a", *["hang failed"] * 40)
