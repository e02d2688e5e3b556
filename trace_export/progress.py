"""How work that takes long reports what it does."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and out of how much."""


def silent(what: str, done: int, total: int) -> None:
    """No-op progress callback."""


def counted(progress: Progress, what: str, total: int) -> Callable[[int], None]:
    """A function that counts its calls, each for one source that is done."""
    done = count(1)
    progress(what, 0, total)
    return lambda index: progress(what, next(done), total)
