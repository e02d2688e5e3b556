"""Marks kept in memory: to test the instrumentation of one's own training loop, where no profiler runs."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

from trace_export.instrument.marks import Mark, Where


class Recorded(NamedTuple):
    """A block with its host times, in unix nanoseconds, and the thread it began on."""

    mark: Mark
    where: Where
    start_ns: int
    end_ns: int
    thread: int


class Recorder:
    """`marks` holds the blocks that have ended, in the order in which they ended."""

    def __init__(self) -> None:
        self.marks: list[Recorded] = []

    def begin(self, mark: Mark, where: Where) -> tuple[Mark, Where, int]:
        return mark, where, time.time_ns()

    def end(self, token: tuple[Mark, Where, int]) -> None:
        mark, where, start_ns = token
        self.marks.append(Recorded(mark, where, start_ns, time.time_ns(), threading.get_ident()))
