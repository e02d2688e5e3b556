"""Waiting for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable

HANGS_S = 300
"""What has not happened after so long never does, however busy the machine is."""


def wait_until(true: Callable[[], object], *, every: float = 0.02) -> None:
    """Returns as soon as `true()` is; fails when it never is."""
    deadline = time.monotonic() + HANGS_S
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(every)
