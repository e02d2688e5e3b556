"""Results that are counted as long as somebody holds them; a module of its own, because workers import it by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tests.support.worker_tasks import Task, perform
from trace_export.errors import TraceExportError


class Held:
    """The names of some tasks; `now` and `most` of these objects are, and were, in this process."""

    now: ClassVar[int] = 0
    most: ClassVar[int] = 0

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        Held.now += 1
        Held.most = max(Held.most, Held.now)

    def __reduce__(self) -> tuple[type[Held], tuple[tuple[str, ...]]]:
        return Held, (self.names,)

    def __del__(self) -> None:
        Held.now -= 1


def hold(task: Task) -> Held:
    return Held((perform(task)[0],))


def join(parts: Sequence[Held]) -> Held:
    """Of so many together that it is one more at most."""
    return Held(tuple(name for part in parts for name in part.names))


def failure(error: TraceExportError, task: Task) -> Held:
    return Held((f"{task.path.name} failed",))
