"""The command line: `main` starts it, `app` lists the commands, and each command has a file of its own that parses,
calls the library and prints.

Commands import what they need when they run, so that `--help` is quick and a training machine needs few packages. This
file imports only what it needs to catch signals: the rest takes some tenths of a second to load, and Ctrl-C must find
a handler from the start.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from signal import SIGINT

from trace_export.cli import signals


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits with the codes of the README; an error is one sentence on stderr."""
    arguments = sys.argv[1:] if arguments is None else arguments
    atexit.register(signals.ignore)  # the first to be registered is the last to be called
    signals.end_at_once()
    from trace_export.cli import streams

    streams.prepare()
    try:
        signals.end_in_order()
        _run(arguments)
    except BaseException as error:  # a panic inside Polars is no Exception
        if number := signals.received():  # whatever became of the exception that the signal raised
            if number == SIGINT:
                signals.forget_unhandled()
                streams.say(signals.INTERRUPTED)
            sys.exit(128 + number)
        if isinstance(error, SystemExit) or "--debug" in arguments:
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.ctx.get_help())  # type: ignore[attr-defined]
            sys.exit(2)
        streams.say(f"trace-export: {_sentence(error)}")
        sys.exit(getattr(error, "exit_code", 1))
    finally:
        signals.end_at_once()


def _run(arguments: list[str]) -> None:
    if arguments[:1] == ["--version"]:  # before options are declared, which takes as long as all else
        from importlib.metadata import version

        print(f"trace-export {version('trace-export')}", flush=True)
        return
    _tune()
    import resource

    from trace_export.cli import streams
    from trace_export.cli.app import app

    # Where memory is limited, what Rust prints before it aborts is all that the user gets to know.
    limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    limited = any(limit != resource.RLIM_INFINITY for limit in limits)
    with streams.foreign_text(hidden=not limited and arguments[:1] != ["run"] and "--debug" not in arguments):
        try:
            code = app(arguments, prog_name="trace-export", standalone_mode=False)
        finally:
            sys.stdout.flush()
    sys.exit(code)


def _tune() -> None:
    """Settings of a short run, each with what it saves (samples/ascend, and a Kineto trace of 60 MB; 2 cores)."""
    atexit.register(gc.freeze)  # no search for cycles at the end: 0.06 of 0.69 s
    gc.set_threshold(100_000, 20, 20)  # few searches before: 0.1 of 1.0 s where events are Python objects
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the matrices are small; a thread reserves 44 MB


def _sentence(error: BaseException) -> str:
    from trace_export.cli import wrong_words
    from trace_export.errors import TraceExportError, printable

    if wrong := wrong_words.sentence(error):
        return wrong
    if isinstance(error, TraceExportError):
        return str(error)
    if isinstance(error, MemoryError):
        return "there is not enough memory; choose --ranks or --steps, or read one at a time with --jobs 1"
    return f"internal error, {type(error).__name__}: {printable(error)} (--debug shows where)"
