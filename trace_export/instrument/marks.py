"""What a block is called, and the one way by which every block begins and ends.

Nothing here may disturb the training run: the first error turns the marks off with one sentence in the log.
This package runs inside the training process, so it imports nothing but the standard library, also not the rest of
trace_export, and stays within the syntax of Python 3.9.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

log = logging.getLogger("trace_export.instrument")

RANK_VARIABLES = ("RANK", "PADDLE_TRAINER_ID", "RANK_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
"""Where the launchers (torchrun, paddle.distributed.launch, msrun, mpirun, srun) put the global rank."""


class Mark(NamedTuple):
    """A block of pipeline work, or a step, as a profiler shall see it. None where nobody knows.

    `kind` is F, B, W, FB (forward of one micro-batch overlapped with the backward of another), OPT or STEP; `stage` the
    rank's place in its pipeline; `name` what the framework calls the function, for the dialects that carry it.
    """

    kind: str
    microbatch: int | None = None
    chunk: int | None = None
    microbatch_b: int | None = None
    chunk_b: int | None = None
    stage: int | None = None
    step: int | None = None
    rank: int | None = None
    name: str | None = None


class Backend(Protocol):
    """A profiler's way to take marks. `end` gets what `begin` gave."""

    def begin(self, mark: Mark) -> Any: ...

    def end(self, token: Any) -> None: ...


class Open(NamedTuple):
    """A block that has begun and not ended."""

    backend: Backend
    token: Any
    lingering: bool


def text(mark: Mark) -> str:
    """The mark in the dialect of trace_export: `te:F3.0 stage=1 step=7 rank=5`, `te:F5.0+B2.1 …`, `te:Optimizer …`.

    The numbers are micro-batch and chunk; what is not known is left out.
    """
    if mark.kind == "FB":
        return (
            f"te:F{_number(mark.microbatch, mark.chunk)}+B{_number(mark.microbatch_b, mark.chunk_b)}"
            f"{_where(mark.stage, mark.step, mark.rank)}"
        )
    if mark.kind in ("OPT", "STEP"):
        return f"te:{'Optimizer' if mark.kind == 'OPT' else 'Step'}{_where(mark.stage, mark.step, mark.rank)}"
    return f"te:{mark.kind}{_number(mark.microbatch, mark.chunk)}{_where(mark.stage, mark.step, mark.rank)}"


def _number(microbatch: int | None, chunk: int | None) -> str:
    if microbatch is None:
        return "" if chunk is None else f"?.{chunk}"
    return f"{microbatch}" if chunk is None else f"{microbatch}.{chunk}"


@functools.lru_cache(maxsize=64)
def _where(stage: int | None, step: int | None, rank: int | None) -> str:
    known = (("stage", stage), ("step", step), ("rank", rank))
    return "".join(f" {name}={value}" for name, value in known if value is not None)


class _Thread(threading.local):
    """The block that is open on a thread."""

    block: Open | None = None


class _State:
    """What holds for the whole process."""

    def __init__(self) -> None:
        self.backend: Backend | None = None
        self.choose: Callable[[], Backend | None] | None = None
        self.rank: int | None = None
        self.stage: int | None = None
        self.passes = -1
        self.step: int | None = None
        self.off = False


_thread = _Thread()
state = _State()


def global_rank() -> int | None:
    """The process's global rank: torch.distributed knows it, else the launcher's environment, else nobody."""
    if state.rank is None:
        torch: Any = sys.modules.get("torch")
        distributed = getattr(torch, "distributed", None)
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            state.rank = int(distributed.get_rank())
        else:
            found = (os.environ[name] for name in RANK_VARIABLES if name in os.environ)
            state.rank = next((int(value) for value in found if value.isdecimal()), None)
    return state.rank


def current_step() -> int | None:
    """The step that the user has named, else the number of the schedule's pass since the start, else None."""
    if state.step is not None:
        return state.step
    return state.passes if state.passes >= 0 else None


def begin_pass() -> None:
    """A pipeline schedule starts its pass over a batch: that is a step, unless the user counts steps himself."""
    close(lingering_only=True)
    state.passes += 1


def begin(mark: Mark, lingering: bool = False) -> Open | None:
    """The block begins, unless one is open on this thread: the outermost wins, so that blocks never nest.

    A `lingering` block is one whose end may never be told (an optimizer that raises): the next block ends it.
    """
    block = _thread.block
    if block is not None:
        if not block.lingering:
            return None
        end(block)
    _thread.block = block = begin_range(mark, lingering)
    return block


def end(block: Open | None) -> None:
    """The block ends; nothing happens when it has ended already."""
    if block is not None and _thread.block is block:
        _thread.block = None
        end_range(block)


def begin_range(mark: Mark, lingering: bool = False) -> Open | None:
    """The mark goes to the profiler, with the step and the rank; blocks may lie inside. None when the marks are off."""
    if state.off:
        return None
    try:
        backend = state.backend or _choose()
        if backend is None:
            return None
        if mark.stage is not None:
            state.stage = mark.stage  # a rank has one place, also for its optimizer, which is not told it
        mark = mark._replace(stage=state.stage, step=current_step(), rank=global_rank())
        return Open(backend, backend.begin(mark), lingering)
    except Exception as error:
        give_up(error)
        return None


def end_range(range_: Open | None) -> None:
    """The end of what `begin_range` gave."""
    if range_ is None:
        return
    try:
        range_.backend.end(range_.token)
    except Exception as error:
        give_up(error)


def linger(block: Open | None) -> None:
    """The function has returned, but its block goes on until `close` or the next block."""
    if block is not None and _thread.block is block:
        _thread.block = block._replace(lingering=True)


def close(lingering_only: bool = False) -> None:
    """Ends the block that is open on this thread."""
    block = _thread.block
    if block is not None and (block.lingering or not lingering_only):
        end(block)


def give_up(error: Exception) -> None:
    """Turns the marks off for the rest of the process."""
    state.off = True
    log.warning("trace_export: the marks are off from here on: %s: %s", type(error).__name__, error)


def _choose() -> Backend | None:
    if state.choose is None:
        from trace_export.instrument.backends import choose

        state.choose = choose
    state.backend = state.choose()
    if state.backend is None:
        state.off = True
        log.warning(
            "trace_export: no blocks are marked: neither NVTX, MSTX, torch.profiler nor Paddle is there to take marks"
        )
    return state.backend
