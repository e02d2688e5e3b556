"""The device's own times of blocks, without ever waiting for it.

Events are recorded on the stream that the block's work goes to. They are looked at when a later step begins, and only
where the device has passed all of a step's. A stream that has no other work passes its event at once, so an event on
such a stream, one for each step, relates the device's clock to the host's. No event is passed before the host recorded
it: where that relation says so, the device passed the step's event late, and its clock is moved by as much.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

clock = time.perf_counter_ns
MODULES = ("npu", "cuda")
"""Of torch, with the same classes Event and Stream; that of torch_npu is there once it was imported."""
LONGEST_STEP = 4096
"""Blocks, after which the clocks meet again though no step has begun."""


class Timed(NamedTuple):
    """A block between two events, and when the host recorded these; `text` is the begin of its line."""

    text: str
    begin: Any
    end: Any
    began_ns: int
    ended_ns: int


class _Step:
    """The event on the stream of its own, when the host recorded it, and the blocks since then."""

    def __init__(self, reference: Any, recorded_ns: int) -> None:
        self.reference, self.recorded_ns = reference, recorded_ns
        self.blocks: list[Timed] = []


def find_device() -> Any:
    """The module of the device that this process computes on, None where it has not used any."""
    torch: Any = sys.modules.get("torch")
    modules = (getattr(torch, name, None) for name in MODULES)
    return next((module for module in modules if module is not None and module.is_initialized()), None)


class DeviceTimes:
    """`emit` gets the lines of the blocks of a step, once the device has passed all of them."""

    def __init__(self, module: Any, emit: Callable[[str], None]) -> None:
        self._module, self._emit = module, emit
        self._capturing = getattr(module, "is_current_stream_capturing", lambda: False)
        self._stream = module.Stream()
        self._unused: list[Any] = []
        self._steps: deque[_Step] = deque()

    def event(self) -> Any:
        """An event on the current stream; None while it is captured into a graph, when nothing runs."""
        if self._capturing():
            return None
        event = self._new()
        event.record()
        return event

    def _new(self) -> Any:
        return self._unused.pop() if self._unused else self._module.Event(enable_timing=True)

    def add(self, block: Timed) -> None:
        if not self._steps or len(self._steps[-1].blocks) >= LONGEST_STEP:
            self.next_step()
        self._steps[-1].blocks.append(block)

    def next_step(self) -> None:
        """The blocks that follow are of another step; those of the steps before are written where they are over."""
        if self._capturing():
            return
        self.write_passed()
        reference = self._new()
        recorded_ns = clock()
        reference.record(self._stream)
        self._steps.append(_Step(reference, recorded_ns))

    def write_passed(self) -> None:
        """Writes the steps whose events the device has all passed."""
        while self._steps:
            step = self._steps[0]
            events = [step.reference, *(event for block in step.blocks for event in (block.begin, block.end))]
            if not all(event.query() for event in events):
                return
            self._steps.popleft()
            if step.blocks:
                self._emit(_lines(step))
            self._unused += events


def _lines(step: _Step) -> str:
    """The lines of a step's blocks, in host time."""

    def since(event: Any) -> int:
        elapsed: float = step.reference.elapsed_time(event)  # milliseconds, of 24 bits
        return round(elapsed * 1e6)

    blocks = [(block, since(block.begin), since(block.end)) for block in step.blocks]
    met_ns = step.recorded_ns
    for block, begin, end in blocks:
        met_ns = max(met_ns, block.began_ns - begin, block.ended_ns - end)
    return "".join(f"{block.text}{met_ns + begin},{max(end - begin, 0)},d\n" for block, begin, end in blocks)
