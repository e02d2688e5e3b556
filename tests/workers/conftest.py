"""A Dask cluster that the tests of a file share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.dask_cluster import DaskCluster, dask_cluster


@pytest.fixture(scope="module")
def one_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    """A scheduler for all tests that leave it running."""
    with dask_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def two_workers(one_cluster: DaskCluster) -> DaskCluster:
    """The workers `left` and `right`, whatever became of those of the test before."""
    one_cluster.make_whole("left", "right")
    return one_cluster


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[DaskCluster]:
    """A cluster with the worker `left` for a test that ends its scheduler."""
    (tmp_path / "cluster").mkdir()
    with dask_cluster(tmp_path / "cluster", "left") as cluster:
        yield cluster
