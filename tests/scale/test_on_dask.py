"""Overviews on a Dask cluster: the same bytes as here, also when a worker dies at any moment."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

import trace_export
from samples.generators.paddle import Job, write_logs
from tests.support.dask_cluster import DaskCluster, dask_cluster
from tests.support.many_ranks import ManyRanks, write
from trace_export.progress import Progress, silent
from trace_export.read import load_options
from trace_export.run import Request
from trace_export.scale import files, parts
from trace_export.scale.build import overview
from trace_export.scale.replicas import look
from trace_export.writers.outputs import Outputs

pytest.importorskip("distributed")

RUN = ManyRanks(stages=2, tensor=2, replicas=6, microbatches=4, steps=1)


@pytest.fixture(scope="module", autouse=True)
def parts_are_small() -> Iterator[None]:
    """Each of the three has two replicas."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "RANKS_A_PART", 8)
        yield


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many")
    write(folder, RUN)
    return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    with dask_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def here(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files that local processes write."""
    return written(logs, tmp_path_factory.mktemp("here"))


def written(logs: Path, out: Path, scheduler: str | None = None, progress: Progress = silent) -> dict[str, bytes]:
    """The files of an overview that is read replica by replica."""
    wanted = Request(load_options(logs, {"scheduler": scheduler, "jobs": None if scheduler else 1}))
    result = overview(wanted, look(wanted.source, progress), progress=progress, whole_ranks=8)
    assert result.unread == 0
    with Outputs() as outputs:
        files.write(result, "many", ["html", "parquet"], out, logs, outputs)
    return {path.name: path.read_bytes() for path in outputs.written}


def killing(cluster: DaskCluster, what: str, moment: int) -> Callable[[str, int, int], None]:
    """Kills the worker `left` when this many of the items that `what` counts are done."""

    def report(doing: str, done: int, total: int) -> None:
        if doing == what and done == moment and "left" in cluster.workers:
            cluster.workers["left"].send_signal(signal.SIGKILL)

    return report


def test_the_cluster_writes_the_same_bytes(
    logs: Path, cluster: DaskCluster, here: dict[str, bytes], tmp_path: Path
) -> None:
    cluster.make_whole("left", "right")
    assert written(logs, tmp_path, cluster.address) == here


@pytest.mark.parametrize(
    ("what", "moment"), [("looking for ranks", 5), ("reading replicas", 0), ("reading replicas", 1)]
)
def test_a_worker_that_dies_changes_no_byte(
    logs: Path, cluster: DaskCluster, here: dict[str, bytes], tmp_path: Path, what: str, moment: int
) -> None:
    cluster.make_whole("left", "right")
    assert written(logs, tmp_path, cluster.address, killing(cluster, what, moment)) == here
    assert cluster.workers["left"].wait() == -signal.SIGKILL


def test_sizes_that_nobody_gives_are_seen_there(cluster: DaskCluster, tmp_path: Path) -> None:
    """By the workers: perhaps the profiles cannot be read here."""
    write_logs(tmp_path / "logs", Job(2, 6, tensor=2, data=4, machines=2, clock_errors_us=(0, 3_000)))
    cluster.make_whole("left", "right")
    with mock.patch("trace_export.workers.work.attempt", side_effect=AssertionError):
        there = trace_export.overview(tmp_path / "logs", tmp_path / "there", scheduler=cluster.address).overview
    here = trace_export.overview(tmp_path / "logs", tmp_path / "here", jobs=1).overview
    assert there.ranks.equals(here.ranks)
    assert here.replicas["replica"].to_list() == [0, 1, 2, 3]
