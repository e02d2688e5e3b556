"""Names of blocks, and how every block begins and ends.

Nothing here may disturb the training run: the first error turns the marks off with one sentence in the log.
This package runs inside the training process, so it imports nothing but the standard library, also not the rest of
trace_export, and stays within the syntax of Python 3.9.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

log = logging.getLogger("trace_export.instrument")

RANK_VARIABLES = ("RANK", "PADDLE_TRAINER_ID", "RANK_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
"""Where the launchers (torchrun, paddle.distributed.launch, msrun, mpirun, srun) put the global rank."""
SIZE_VARIABLES = ("WORLD_SIZE", "PADDLE_TRAINERS_NUM", "RANK_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
"""Where they put the number of ranks."""


class Mark(NamedTuple):
    """A block of pipeline work, or a step, as a profiler shall see it. None where unknown.

    `kind` is F, B, W, FB (forward of one micro-batch overlapped with the backward of another), OPT or STEP; `stage` the
    rank's place in its pipeline; `name` what the framework calls the function, for the dialects that carry it.
    """

    kind: str
    microbatch: int | None = None
    chunk: int | None = None
    microbatch_b: int | None = None
    chunk_b: int | None = None
    stage: int | None = None
    name: str | None = None


class Where(NamedTuple):
    """What the blocks of a step on this rank have in common; `text` is how `text()` writes it."""

    stage: int | None
    step: int | None
    rank: int | None
    text: str


class Backend(Protocol):
    """A profiler's way to take marks. `end` gets what `begin` gave."""

    def begin(self, mark: Mark, where: Where) -> Any: ...

    def end(self, token: Any) -> None: ...


class Open:
    """A block that has begun and not ended."""

    __slots__ = ("backend", "lingering", "token")

    def __init__(self, backend: Backend, token: Any, lingering: bool) -> None:
        self.backend, self.token, self.lingering = backend, token, lingering


def text(mark: Mark, where: Where) -> str:
    """The mark in the dialect of trace_export: `te:F3.0 stage=1 step=7 rank=5`, `te:F5.0+B2.1 …`, `te:Optimizer …`.

    The numbers are micro-batch and chunk; what is not known is left out.
    """
    kind, microbatch, chunk, microbatch_b, chunk_b, _, _ = mark
    if kind == "FB":
        return f"te:F{_number(microbatch, chunk)}+B{_number(microbatch_b, chunk_b)}{where.text}"
    if kind == "OPT":
        return f"te:Optimizer{where.text}"
    if kind == "STEP":
        return f"te:Step{where.text}"
    return f"te:{kind}{_number(microbatch, chunk)}{where.text}"


def _number(microbatch: int | None, chunk: int | None) -> str:
    if chunk is None:
        return "" if microbatch is None else str(microbatch)
    return f"{'?' if microbatch is None else microbatch}.{chunk}"


class _Thread(threading.local):
    """The block that is open on a thread."""

    block: Open | None = None


class _State:
    """What holds for the whole process. `layout`: what the framework says of this rank's place in the job, and of the
    sizes of the job, by the names of docs/collect/recorder.md."""

    def __init__(self) -> None:
        self.backend: Backend | None = None
        self.choose: Callable[[], Backend | None] | None = None
        self.where: Where | None = None
        self.passes = -1
        self.step: int | None = None
        self.layout: dict[str, int | None] = {}
        self.off = False


_thread = _Thread()
state = _State()


def global_rank() -> int | None:
    """The process's global rank: from torch.distributed, else from the launcher's environment, else None."""
    return _of_job("get_rank", RANK_VARIABLES)


def world_size() -> int | None:
    """The number of ranks of the job, likewise."""
    return _of_job("get_world_size", SIZE_VARIABLES)


def _of_job(function: str, variables: tuple[str, ...]) -> int | None:
    torch: Any = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(getattr(distributed, function)())
    values = (os.environ[name] for name in variables if name in os.environ)
    return next((int(value) for value in values if value.isdecimal()), None)


def set_step(number: int | None) -> None:
    """From here on blocks belong to the step that the user calls `number`; None: steps are counted by passes again."""
    state.step = number
    try:
        _locate(None)
    except BaseException as error:
        give_up(error)


def begin_pass() -> None:
    """A pipeline schedule starts its pass over a batch: that is a step, unless the user counts steps himself."""
    close(lingering_only=True)
    state.passes += 1
    _locate(None)


def _locate(stage: int | None) -> Where:
    """Where the next blocks are. A rank has one place, also for blocks that were given none."""
    if stage is None and state.where is not None:
        stage = state.where.stage
    step = state.passes if state.step is None and state.passes >= 0 else state.step
    numbers = (("stage", stage), ("step", step), ("rank", rank := global_rank()))
    written = "".join(f" {name}={value}" for name, value in numbers if value is not None)
    state.where = Where(stage, step, rank, written)
    return state.where


def begin(mark: Mark, lingering: bool = False) -> Open | None:
    """The block begins, unless one is open on this thread: the outermost wins, so that blocks never nest.

    A `lingering` block is one whose end may never be reported (an optimizer that raises): the next block ends it.
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
        where = state.where
        if where is None or (mark.stage is not None and mark.stage != where.stage):
            where = _locate(mark.stage)
        return Open(backend, backend.begin(mark, where), lingering)
    except BaseException as error:
        give_up(error)
        return None


def end_range(range_: Open | None) -> None:
    """The end of what `begin_range` gave."""
    if range_ is None:
        return
    try:
        range_.backend.end(range_.token)
    except BaseException as error:
        give_up(error)


def linger(block: Open | None) -> None:
    """The function has returned, but its block goes on until `close` or the next block."""
    if block is not None and _thread.block is block:
        block.lingering = True


def close(lingering_only: bool = False) -> None:
    """Ends the block that is open on this thread."""
    block = _thread.block
    if block is not None and (block.lingering or not lingering_only):
        end(block)


def give_up(error: BaseException) -> None:
    """Turns the marks off for the rest of the process, whatever a profiler raised; the user's own errors pass."""
    raise_if_users(error)
    if not state.off:
        log.warning("trace_export: the marks are off from here on: %s: %s", type(error).__name__, error)
    state.off = True


def raise_if_users(error: BaseException) -> None:
    """Raises `error` where it is the user's Ctrl-C, or comes from a signal handler that ran while a mark was set."""
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()} - {None}
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code not in handlers:
        trace = trace.tb_next
    if trace is not None or isinstance(error, KeyboardInterrupt):
        raise error


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
