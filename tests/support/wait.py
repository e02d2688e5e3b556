"""Waiting for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(true: Callable[[], object], *, every: float = 0.02) -> None:
    """Returns as soon as `true()` is; fails when it never is."""
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(every)
