"""The command line run in this process: a test that asks much of it cannot wait for an interpreter each time."""

import atexit
import faulthandler
import gc
import io
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from unittest import mock

from tests.support.wait import HANGS_S
from trace_export.cli import main


@cache
def parser() -> Any:
    """What Typer makes of the commands; it would make it anew for each call."""
    from typer.main import get_command

    from trace_export.cli.app import app

    return get_command(app)


def command(*arguments: object, cwd: Path | None = None) -> CompletedProcess[str]:
    """Runs `trace-export` with the arguments, in the folder `cwd`; returns what `subprocess.run` would. Fails where the
    program reports an error of its own, and ends the process where it hangs."""
    given = [str(argument) for argument in arguments]
    out, err = _stream(), _stream()
    with redirect_stdout(out), redirect_stderr(err), chdir(cwd or Path.cwd()), _unchanged():
        code = _exit_code(given)
    ended = CompletedProcess(["trace-export", *given], code, _text(out), _text(err))
    assert "internal error, " not in ended.stderr, ended.stderr
    return ended


def _exit_code(arguments: list[str]) -> int:
    try:
        with mock.patch("trace_export.cli.app.app", parser()):
            main(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception:  # with --debug, which leaves it to the interpreter
        traceback.print_exc()
        return 1
    return 0


def _stream() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)


def _text(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


@contextmanager
def _unchanged() -> Iterator[None]:
    """Without colours; what the command sets for the rest of its process is as before at the end."""
    changed = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ)
    handlers = {number: signal.getsignal(number) for number in changed}
    threshold = gc.get_threshold()
    with mock.patch.dict(os.environ, {"NO_COLOR": "1"}):
        faulthandler.dump_traceback_later(HANGS_S, exit=True, file=sys.__stderr__)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            atexit.unregister(gc.freeze)
            gc.set_threshold(*threshold)
            for number, handler in handlers.items():
                signal.signal(number, handler)
