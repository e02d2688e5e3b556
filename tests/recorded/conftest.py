"""The extra suite: profiles that other tools recorded, for whoever has them. What they prove is proven without them in
the other folders; here it is proven of the real thing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import RECORDED


@pytest.fixture(scope="session")
def recorded() -> Path:
    """The folder that TRACE_EXPORT_RECORDED names, with a folder for each profiler."""
    assert RECORDED is not None
    return Path(RECORDED).resolve()
