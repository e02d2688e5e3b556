"""Perfetto's trace processor as a server for its UI: a trace that no browser can hold stays in that process.

It is started where the user has installed it, with the flags that all versions know, and it listens on localhost by
itself. The UI looks for it on port 9001.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from trace_export.errors import TraceExportError, UsageError
from trace_export.viewer.serve import PORT
from trace_export.viewer.server import LOOPBACK

PROGRAMS = ("trace_processor", "trace_processor_shell")
MISSING = (
    f"needs Perfetto's trace processor, and neither {' nor '.join(PROGRAMS)} is installed",
    "install it as https://perfetto.dev/docs/analysis/trace-processor says, so that a shell finds it",
)
ASKED_EVERY_S = 0.1


@contextmanager
def serving(trace: Path, port: int = PORT) -> Iterator[subprocess.Popen[bytes]]:
    """A trace processor that has loaded `trace` and answers on this machine; it is ended with the block.

    Raises UsageError where none is installed, TraceExportError where the port is taken or it ends by itself.
    """
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        raise UsageError(*MISSING, parameter="server")
    _check_free(port)
    with TemporaryFile() as said:
        process = subprocess.Popen(
            [program, "--httpd", "--http-port", str(port), str(trace)],
            stdin=subprocess.DEVNULL, stdout=said, stderr=said,
        )  # fmt: skip
        try:
            _wait(process, port, said)
            yield process
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
            process.kill()
            process.wait()


def ended(process: subprocess.Popen[bytes]) -> TraceExportError:
    """The error of a trace processor that ended although nobody asked it to, once it has.

    Asked again and again: a signal may reach another thread than this one, which then would not wake up.
    """
    while (code := process.poll()) is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=ASKED_EVERY_S)
    return TraceExportError(f"the trace processor has ended with code {code}", "start it again")


def _check_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            what = f"port {port} of {LOOPBACK} is taken ({error.strerror})"
            raise TraceExportError(what, "stop what runs there, such as another trace_processor") from error


def _wait(process: subprocess.Popen[bytes], port: int, said: IO[bytes]) -> None:
    """Until it answers: a large trace takes minutes to load."""
    while True:
        with suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
            return
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(timeout=ASKED_EVERY_S)
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines()
            last = f": {lines[-1]}" if lines else ""
            raise TraceExportError(f"the trace processor has ended with code {code}{last}")
