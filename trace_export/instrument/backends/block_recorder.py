"""The recorder: appends every block to a file of the rank, besides what the marks do for a profiler.

Blocks have the host's times and are written as they end. Where the process computes on a device they have the device's
times, and are written when the device has passed the step. Whatever goes wrong ends the recording with one sentence in
the log, and neither the run nor the marks.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from trace_export.instrument import marks
from trace_export.instrument.backends.block_file import BlockFile
from trace_export.instrument.backends.device_times import DeviceTimes, Timed, clock, find_device
from trace_export.instrument.marks import Backend, Mark, Where

LIMIT_VARIABLE = "TRACE_EXPORT_RECORD_LIMIT"
"""Environment variable with the megabytes that a rank may take on the disk."""
LIMIT_MB = "64"
MOST_MARKS = 4096
"""This many different blocks are kept as text."""
VERSION = 1
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


_Token = tuple[Any, "Mark | None", Where, int, Any]
"""What the profiler's `begin` gave, the block (None: it is not recorded) and its place, when the host began it, and the
device's event (None: the host takes the times)."""


class BlockRecorder:
    """Records to `folder`, and passes each mark on to `profiler` (None: there is none)."""

    def __init__(self, folder: str, profiler: Backend | None) -> None:
        self._folder, self._profiler = Path(folder).absolute(), profiler
        self._file: BlockFile | None = None
        self._device: DeviceTimes | None = None
        self._where: Where | None = None
        self._facts: dict[str, int] = {}
        self._numbers: dict[Mark, str] = {}
        self._unix_ns, self._clock_ns = _one_moment()
        self._lock = threading.RLock()
        self._over = False
        atexit.register(self._safely, self._end)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def begin(self, mark: Mark, where: Where) -> _Token:
        taken = not self._over and mark[0] != "STEP"
        if taken and where is not self._where:
            self._safely(self._move, where)  # before both read their clocks: it may take longer than a block
        of_profiler = None if self._profiler is None else self._profiler.begin(mark, where)
        ns = clock()
        if not taken:
            return of_profiler, None, where, 0, None
        if self._device is None:
            return of_profiler, mark, where, ns, None
        event = self._safely(self._device.event)
        return of_profiler, None if event is None else mark, where, ns, event

    def end(self, token: _Token) -> None:
        ns = clock()
        of_profiler, mark, where, began_ns, event = token
        if self._profiler is not None:
            self._profiler.end(of_profiler)
        if mark is not None and not self._over:
            try:  # as _safely, and faster
                self._add(mark, where, began_ns, event, ns)
            except BaseException as error:
                self._give_up(error)

    def _add(self, mark: Mark, where: Where, began_ns: int, event: Any, ns: int) -> None:
        try:
            numbers = self._numbers[mark]
        except (KeyError, TypeError):  # TypeError: a number of another library that has no hash
            numbers = self._numbers_of(mark)
        step = where.step
        text = f"{mark[0]},{'' if step is None else step},{numbers}"
        if event is None:
            (self._file or self._open()).append(f"{text}{began_ns},{ns - began_ns},h\n")
            return
        with self._lock:
            if self._device is not None and (ended := self._device.event()) is not None:
                self._device.add(Timed(text, event, ended, began_ns, ns))

    def _numbers_of(self, mark: Mark) -> str:
        """What the line of a block says of its micro-batches and chunks. The next steps have the same ones."""
        numbers = mark[1:5]
        text = "".join(f"{'' if number is None else number}," for number in numbers)
        if all(number is None or type(number) is int for number in numbers):
            if len(self._numbers) >= MOST_MARKS:
                self._numbers.clear()
            self._numbers[mark] = text
        return text

    def _write(self, lines: str) -> None:
        (self._file or self._open()).append(lines)

    def _open(self) -> BlockFile:
        with self._lock:  # the first blocks of several threads go to one file
            if self._file is None:
                rank = self._facts.get("rank")
                name = f"process{os.getpid()}" if rank is None else f"rank{rank}"
                self._file = BlockFile(self._folder / f"{name}.blocks", _limit(), self._header)
            return self._file

    def _header(self) -> str:
        times = {"unix_ns": self._unix_ns, "clock_ns": self._clock_ns}
        process = {"host": socket.gethostname(), "boot": _boot(), "pid": os.getpid()}
        content = {"trace_export_blocks": VERSION, **process, **times, **self._facts}
        return f"#{json.dumps(content, separators=(',', ':'))}\n"

    def _move(self, where: Where) -> None:
        """The next blocks are elsewhere, mostly in another step. What is newly known is written."""
        with self._lock:
            step = self._where
            self._where = where
            if step is None or step.step != where.step:
                self._next_step()
            values = {"rank": where.rank, "world": marks.world_size(), "stage": where.stage, **marks.state.layout}
            facts = {name: value for name, value in values.items() if value is not None}
            if facts != self._facts:
                before, self._facts = self._facts, facts
                if "rank" in before and before["rank"] != where.rank:
                    self._file = None  # that of a rank which the launcher called so, and the framework calls otherwise
                if self._file is not None:
                    self._file.append(self._header())

    def _next_step(self) -> None:
        if self._device is None and (module := find_device()) is not None:
            self._device = DeviceTimes(module, self._write)
            marks.state.layout["device"] = int(module.current_device())
        if self._device is not None:
            self._device.next_step()

    def _end(self) -> None:
        with self._lock:
            if self._device is not None and not self._over:
                self._device.write_passed()

    def _forked(self) -> None:
        """A process that was forked from one that has begun to record has no part in its file, nor in its device."""
        self._over = self._over or self._file is not None or self._device is not None
        self._lock = threading.RLock()

    def _safely(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except BaseException as error:
            self._give_up(error)
            return None

    def _give_up(self, error: BaseException) -> None:
        marks.raise_if_users(error)
        if not self._over:
            what = f"{type(error).__name__}: {error}"
            marks.log.warning("trace_export: the recording to %s ends here: %s", self._folder, what)
        self._over = True


def _limit() -> int:
    text = os.environ.get(LIMIT_VARIABLE) or LIMIT_MB
    try:
        return int(float(text) * 1e6)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{LIMIT_VARIABLE}={text} is not a number of megabytes") from error


def _one_moment() -> tuple[int, int]:
    """Unix time and the clock of the blocks, read together as closely as possible."""
    readings = []
    for _ in range(5):
        before, unix, after = clock(), time.time_ns(), clock()
        readings.append((after - before, unix, (before + after) // 2))
    _, unix, between = min(readings)
    return unix, between


def _boot() -> str | None:
    """The id of the machine's boot: machines may have the same name, but not the same boot."""
    with suppress(OSError), BOOT_ID.open(encoding="ascii") as file:
        return file.read(8)
    return None
