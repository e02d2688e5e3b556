"""A run of many ranks with planted exceptions, and its overview, for all tests of overviews."""

from pathlib import Path

import pytest

import trace_export
from tests.support.many_ranks import ManyRanks, write

PLANTED = ManyRanks(stages=4, tensor=2, replicas=12, microbatches=8).with_exceptions()


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ManyRanks]:
    """96 ranks on 48 hosts, with exceptions."""
    folder = tmp_path_factory.mktemp("many")
    write(folder, PLANTED)
    return folder, PLANTED


@pytest.fixture(scope="session")
def written(
    planted: tuple[Path, ManyRanks], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, trace_export.Overviewed]:
    """The folder of its page and tables, and what they show."""
    out = tmp_path_factory.mktemp("overview")
    return out, trace_export.overview(planted[0], out, ["html", "parquet"], jobs=1)
