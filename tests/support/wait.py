"""Waiting for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(true: Callable[[], object], seconds: float = 60) -> None:
    """Returns as soon as `true()` is; fails when it never is."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
