"""A Dask cluster that the tests of a file share."""

from __future__ import annotations

from collections.abc import Iterator

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
