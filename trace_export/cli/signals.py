"""Signals that end the program: Ctrl-C, the end of the terminal, the end of a batch job.

What was ignored when the program started stays ignored, as under `nohup` or behind `&` in a script.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from signal import SIGINT
from types import FrameType

INTERRUPTED = "trace-export: interrupted; files already written are complete"

ENDING = (SIGINT, signal.SIGTERM, signal.SIGHUP)

SOON_S = 0.001
"""A finalizer has returned after this time."""

_received = 0

Handler = Callable[[int, FrameType | None], None]


def end_at_once() -> None:
    """A signal ends the program, Ctrl-C with a sentence: while it loads and while it ends, when there is nothing to
    undo."""
    _handle(ENDING, _end_at_once)


def end_in_order() -> None:
    """From here on a signal unwinds the program, so that workers stop and temporary files go; a second one does not
    wait for that."""
    sys.unraisablehook = _unwind_later
    _handle(ENDING, _unwind)


def ignore() -> None:
    """For the very end of the process: Python takes its handlers off before it frees its modules, and the program would
    die of the signal instead of its own exit code."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


def forget_unhandled() -> None:
    """Where the exception of a Ctrl-C leaves code that was made from text, as in a dataclass that is being made, Python
    notes an unhandled interrupt and at its end dies of the signal, whoever handles it. The next such code deletes the
    note (run_eval_code_obj in Python/pythonrun.c)."""
    exec("")


def received() -> int:
    """The number of the signal that unwinds the program, or 0. The exception that it raised may have become another:
    `class` statements turn it into a RuntimeError, for example."""
    return _received


def _handle(numbers: tuple[signal.Signals, ...], handler: Handler) -> None:
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _unwind(number: int, frame: FrameType | None) -> None:
    global _received
    _received = number
    signal.signal(number, _end_at_once)
    # It may come between the opening of a file and the `with` that closes it. The file is closed when it is freed.
    warnings.simplefilter("ignore", ResourceWarning)
    if number == SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)


def _unwind_later(unraisable: sys.UnraisableHookArgs) -> None:
    """Python drops an exception that leaves a finalizer, or a callback of a weak reference, as imports have: what a
    signal raised there is raised again once that has returned."""
    if not _received or not isinstance(unraisable.exc_value, KeyboardInterrupt | SystemExit):
        sys.__unraisablehook__(unraisable)
        return
    signal.signal(signal.SIGALRM, lambda _, frame: _unwind(_received, frame))
    signal.setitimer(signal.ITIMER_REAL, SOON_S)


def _end_at_once(number: int, frame: FrameType | None) -> None:
    if number == SIGINT and sys.stderr is not None:
        with suppress(OSError):  # closed, or not a file
            os.write(sys.stderr.fileno(), f"{INTERRUPTED}\n".encode())
    os._exit(128 + number)
