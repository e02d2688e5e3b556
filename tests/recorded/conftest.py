"""The extra suite: profiles that other tools recorded, for whoever has them. What they prove is proven without them in
the other folders; here it is proven of the real thing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import RECORDED, unchanged


@pytest.fixture(scope="session")
def recorded() -> Iterator[Path]:
    """The folder that TRACE_EXPORT_RECORDED names, with a folder for each profiler."""
    assert RECORDED is not None
    with unchanged(Path(RECORDED).resolve()) as folder:
        yield folder
